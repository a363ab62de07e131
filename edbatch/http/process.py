"""The process of a server: its socket, its signals, and how it ends.

The first SIGTERM, SIGINT or SIGHUP drains: the server is not ready at once, refuses new
requests, and answers those that it took; then the process ends. A second one ends it at
once.
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
_FULL_S = 10.0  # between lines about the same trouble
_KEEP_ALIVE_S = 30
# The event loop parses requests beside the thread that runs waves, which gives up
# Python's lock in each of them, and would wait 5 ms to have it back.
_SWITCH_S = 2e-4


def listen(host: str, port: int) -> socket.socket:
    """Binds a socket, so that a port in use is told about before anything is loaded.

    Args:
        host: A name or address of this machine.
        port: The port; 0 for any that is free.

    Returns:
        The socket.

    Raises:
        ServiceError: It cannot be bound, or the host is none of this machine.
    """
    try:
        [first, *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:  # a label that is too long, say
        raise _not_of_this_machine(host) from error
    family, kind, protocol, _, address = first
    try:
        # With the protocol: by it asyncio knows that connections are of TCP, and has
        # them send an answer's body without waiting 40 ms for the head's receipt.
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
    """Uvicorn without its own signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals alone."""
        yield


class Process:
    """Runs an application until a signal.

    Args:
        app: The application.
        socket: A socket that listens.
        drain_s: Seconds to wait at most, after the first signal, for answers.

    Attributes:
        error: What the warm-up ended with, if it failed.
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
            The exit code: 0 if all requests that were taken have an answer.
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
        """Ends the process, since it can never serve."""
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
        """Writes one line while no file is left, where asyncio writes thousands."""
        if not str(context.get("message")).startswith("socket.accept() out of"):
            loop.default_exception_handler(context)
        elif loop.time() > self._full_until:
            self._full_until = loop.time() + _FULL_S
            say("no file is left for more connections", logging.WARNING)

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGHUP and self._signals:
            return  # a shell sends it to its jobs, and the kernel sends it again
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
        # Those that have no answer by now fail.
        try:
            closing = in_daemon_thread(endpoints.server.close)
            await asyncio.wait_for(closing, _CLOSE_S)
        except TimeoutError:  # a model does not return
            endpoints.lifecycle.give_up()
        self._uvicorn.should_exit = True


def _freeze() -> None:
    """Keeps Python's collector from looking through what stays, as vLLM does.

    What was compiled and traced is some 100,000 objects; while they are looked through,
    nobody is served.
    """
    gc.collect()
    gc.freeze()


def end_now(code: int) -> None:
    """Ends the process as it is: threads that compile or run a model do not hold it."""
    # To flush a stream that nobody reads would wait for ever. One may be closed, too.
    streams = (sys.stdout, sys.stderr if flush_log() else None)
    for stream in filter(None, streams):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
