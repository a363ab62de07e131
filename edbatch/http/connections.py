"""Limits on the number of connections and on their idle time.

Uvicorn limits neither: a client that only connects, never completes its request head,
or never reads its answer would keep a file descriptor forever; and a process without
free file descriptors answers no one.
"""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Collection
from typing import Any

import h11

# Not httptools, even if installed: it does not limit the head, drops the body of an
# upgrade request, and reports a disconnect only to the last of several pipelined
# requests.
from uvicorn.protocols.http.h11_impl import H11Protocol

from edbatch.http.request_log import say

try:
    import fcntl
    import termios

    # SIOCOUTQ on Linux; the kernel buffers megabytes of written data.
    _OUTPUT_QUEUE = termios.TIOCOUTQ if sys.platform == "linux" else None
except ImportError:  # on Windows
    _OUTPUT_QUEUE = None

_HEAD_S = 30.0
_HEAD_BYTES = 65_536  # Uvicorn's default
_LOOK_S = 2.0
_LINGER_S = 2.0
_OWN_FILES = 100  # file descriptors reserved for the process itself
_MOST_PIECES = 10_000  # of a body; each takes the event loop about 20 µs
_PIECE_BYTES = 64  # bytes of a body that allow one more piece


def most_connections() -> int:
    """Raises the limit on open files; returns how many connections fit into it."""
    try:
        import resource
    except ImportError:  # Windows
        return 10_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft == resource.RLIM_INFINITY:
        return 65_536
    return max(soft // 2, soft - _OWN_FILES)


def connection_class(most: int) -> type[Any]:
    """Creates a class of Uvicorn connections; those above a limit are aborted.

    ``waits_since`` of a connection is when it began to wait for a request, by
    `time.monotonic`. ``unread`` is a pair: how many bytes of answers the client had not
    received at the last check, and since when this number is unchanged.

    Args:
        most: Maximum number of open connections.
    """

    class Connection(H11Protocol):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.ignores = False
            most = self.config.h11_max_incomplete_event_size
            self.conn = _Parser(h11.SERVER, most or _HEAD_BYTES)

        def connection_made(self, transport: Any) -> None:
            self.waits_since = time.monotonic()
            self.unread = 0, self.waits_since
            super().connection_made(transport)
            if len(self.connections) > most:
                transport.abort()

        def on_response_complete(self) -> None:
            self.waits_since = time.monotonic()
            # Otherwise equally long answers, each in transit at a check, would look
            # like a stalled one.
            self.unread = 0, self.waits_since
            super().on_response_complete()

        def _unsupported_upgrade_warning(self) -> None:
            """Suppresses Uvicorn's advice to install a library that would not help.

            A client may offer another protocol, but is answered in this one.
            """

        def send_400_response(self, msg: str) -> None:
            client = (self.client or ("", 0))[0]
            error = sys.exception()
            # Without the received bytes, which follow the colon.
            reason, _, _ = str(error or msg).partition(":")
            say("not an HTTP request", logging.WARNING, client=client, reason=reason)
            if isinstance(error, _TooManyPieces):
                self._refuse_pieces(str(error))
            else:
                super().send_400_response(msg)

        def _refuse_pieces(self, message: str) -> None:
            """Sends a 400, and discards further input so that the client reads it."""
            self.ignores = True
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if not self.cycle.response_started:
                self.transport.write(
                    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n"
                    b"Content-Type: text/plain; charset=utf-8\r\n\r\n"
                    + message.encode()
                )
            self.transport.write_eof()
            self.flow.resume_reading()
            self.loop.call_later(_LINGER_S, self.transport.close)

        def data_received(self, data: bytes) -> None:
            if not self.ignores:
                super().data_received(data)

    return Connection


class _TooManyPieces(h11.RemoteProtocolError):
    pass


class _Parser(h11.Connection):
    """Refuses a body in very many pieces, such as chunks of one byte.

    Reading a megabyte of them would block all other requests for seconds.
    """

    _pieces = _bytes = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Data):
            self._pieces += 1
            self._bytes += len(event.data)
            if self._pieces > _MOST_PIECES + self._bytes // _PIECE_BYTES:
                raise _TooManyPieces(
                    "the body comes in too many pieces; send larger chunks"
                )
        elif isinstance(event, h11.Request):
            self._pieces = self._bytes = 0
        return event


def _unread(transport: asyncio.Transport) -> int:
    """Bytes that the client has not received, including those in kernel buffers."""
    found = transport.get_write_buffer_size()
    socket = transport.get_extra_info("socket")
    if socket is not None and _OUTPUT_QUEUE is not None:
        with contextlib.suppress(OSError, ValueError):  # it is closed
            queued = fcntl.ioctl(socket.fileno(), _OUTPUT_QUEUE, bytes(4))
            found += int.from_bytes(queued, sys.byteorder)
    return found


async def close_idle(connections: Collection[Any], limit_s: float = _HEAD_S) -> None:
    """Closes idle connections, forever.

    A connection is closed if no complete request head has arrived within the limit. If
    the client has received no byte of an answer for as long, the connection is aborted,
    and the rest of the answer is lost.

    Args:
        connections: Uvicorn's open connections, a collection that changes, of the class
            from `connection_class`.
        limit_s: The limit, in seconds.
    """
    while True:
        now = time.monotonic()
        for each in [*connections]:
            unread = _unread(each.transport)
            if unread != each.unread[0]:
                each.unread = unread, now
            if unread:  # closing would wait for the client
                if now - each.unread[1] > limit_s:
                    each.transport.abort()
                continue
            waits = each.cycle is None or each.cycle.response_complete
            if waits and now - each.waits_since > limit_s:
                each.transport.close()
        await asyncio.sleep(min(_LOOK_S, limit_s / 4))
