"""The process of an HTTP server: socket, signals and shutdown.

The first SIGTERM, SIGINT or SIGHUP drains: the server becomes not ready at once,
refuses new requests, and answers accepted ones; then the process ends. A second SIGTERM
or SIGINT ends it at once.
"""

import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette

from edbatch.errors import ServiceError
from edbatch.http.connections import close_idle, connection_class, most_connections
from edbatch.http.daemon_thread import in_daemon_thread
from edbatch.http.endpoints import Endpoints
from edbatch.http.request_log import flush_log, say

_BACKLOG = 1024
_CLOSE_S = 2  # for the last answers to reach their clients
_FULL_S = 10.0  # between log lines about the same problem
_KEEP_ALIVE_S = 30
# While the event loop parses requests, the thread that runs waves releases the GIL in
# each wave, and by default would wait 5 ms to get it back.
_SWITCH_S = 2e-4


def listen(host: str, port: int) -> socket.socket:
    """Binds a socket; called first, so that a port in use is reported at once.

    Args:
        host: A name or address of this machine.
        port: The port; 0 for any free one.

    Returns:
        The listening socket.

    Raises:
        ServiceError: The socket cannot be bound, or the host is not this machine.
    """
    try:
        [first, *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:  # for example a label that is too long
        raise _not_of_this_machine(host) from error
    family, kind, protocol, _, address = first
    try:
        # With the protocol given, asyncio recognizes TCP and sets TCP_NODELAY: answers
        # send their body without waiting 40 ms for the acknowledgement of their head.
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind(address)
            found.listen(_BACKLOG)
        except OSError:
            found.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise _not_of_this_machine(host) from error
        raise ServiceError(
            f"port {port} of {host} cannot be used: {error.strerror}; choose another"
            " with --port, or --port 0 for any that is free"
        ) from error
    return found


def _not_of_this_machine(host: str) -> ServiceError:
    return ServiceError(
        f"--host takes a name or an address of this machine but {host!r} is none; give"
        " 127.0.0.1 for programs on this machine, 0.0.0.0 for all"
    )


class _Uvicorn(uvicorn.Server):
    """Uvicorn without its own signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Installs no signal handlers."""
        yield


class Process:
    """Runs an application until a signal.

    Args:
        app: The application.
        socket: A listening socket.
        drain_s: Maximum seconds to wait for answers after the first signal.

    Attributes:
        error: The exception of the warm-up, if it failed.
    """

    def __init__(self, app: Starlette, socket: socket.socket, drain_s: float) -> None:
        self._endpoints: Endpoints = app.state.endpoints
        self._endpoints.on_failure = self._fail
        self._endpoints.on_warm = _freeze
        self._socket, self._drain_s = socket, drain_s
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="on",
            server_header=False,
            ws="none",
            http=connection_class(most_connections()),
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_CLOSE_S,
        )
        self._uvicorn = _Uvicorn(config)
        self._signals = self._code = 0
        self._full_until = 0.0
        self.error: Exception | None = None
        self._ending: asyncio.Task[None] | None = None

    def run(self) -> int:
        """Serves until a signal.

        Returns:
            The exit code: 0 if all accepted requests were answered, otherwise 1.
        """
        before = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        try:
            asyncio.run(self._serve())
        finally:
            sys.setswitchinterval(before)
            gc.unfreeze()
        return self._code

    def _fail(self, error: Exception) -> None:
        """Ends the process after a failed warm-up, since it can never serve."""
        self.error = error
        self._uvicorn.should_exit = True

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        signals = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup sets it
            signals.append(signal.SIGHUP)
        for each in signals:
            loop.add_signal_handler(each, self._on_signal, each)
        loop.set_exception_handler(self._on_problem)
        host, port = self._socket.getsockname()[:2]
        say("listening", host=host, port=port, model=self._endpoints.name)
        closing = loop.create_task(close_idle(self._uvicorn.server_state.connections))
        try:
            await self._uvicorn.serve(sockets=[self._socket])
        finally:
            closing.cancel()

    def _on_problem(
        self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]
    ) -> None:
        """Logs one line if file descriptors run out, where asyncio logs thousands."""
        if not str(context.get("message")).startswith("socket.accept() out of"):
            loop.default_exception_handler(context)
        elif loop.time() > self._full_until:
            self._full_until = loop.time() + _FULL_S
            say("no file descriptor is left for more connections", logging.WARNING)

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGHUP and self._signals:
            return  # both the shell and the kernel may send it
        self._signals += 1
        if self._signals > 1:
            say("ended by a second signal", logging.WARNING)
            end_now(128 + number)
        self._ending = asyncio.create_task(self._shut_down(number))

    async def _shut_down(self, number: int) -> None:
        endpoints = self._endpoints
        active = endpoints.lifecycle.active
        say("shutting down", signal=signal.Signals(number).name, active=active)
        if not await endpoints.lifecycle.drain(self._drain_s):
            self._code = 1
            left = endpoints.lifecycle.active
            say("requests without an answer", logging.WARNING, active=left)
        # Requests without an answer fail now.
        try:
            closing = in_daemon_thread(endpoints.server.close)
            await asyncio.wait_for(closing, _CLOSE_S)
        except TimeoutError:  # the model's code does not return
            endpoints.lifecycle.give_up()
        self._uvicorn.should_exit = True


def _freeze() -> None:
    """Excludes long-lived objects from Python's garbage collector, as vLLM does.

    Compilation and tracing leave some 100,000 objects; while the collector scans them,
    no request is served.
    """
    gc.collect()
    gc.freeze()


def end_now(code: int) -> None:
    """Ends the process at once, without waiting for threads that compile or run."""
    # Flushing a stream that no one reads would block forever. It may also be closed.
    streams = (sys.stdout, sys.stderr if flush_log() else None)
    for stream in filter(None, streams):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
