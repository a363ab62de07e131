"""Limits on connections: how many there are, and how long one may do nothing.

Uvicorn bounds neither: a client that only connects, that never ends the head of its
request, or that never reads its answer, would hold a file for good; and where the
process has no file left, it answers nobody.
"""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Collection
from typing import Any

import h11

# Not httptools, where that is installed: it bounds no head, drops the body of a request
# that asks for another protocol, and of requests in a row tells only the last one that
# the client has hung up.
from uvicorn.protocols.http.h11_impl import H11Protocol

from edbatch.http.request_log import say

try:
    import fcntl
    import termios

    # As SIOCOUTQ of Linux; the kernel takes megabytes at once of what is written.
    _OUTPUT_QUEUE = termios.TIOCOUTQ if sys.platform == "linux" else None
except ImportError:  # on Windows
    _OUTPUT_QUEUE = None

_HEAD_S = 30.0
_HEAD_BYTES = 65_536  # as of Uvicorn, if nothing else is asked for
_LOOK_S = 2.0
_LINGER_S = 2.0
_OWN_FILES = 100  # for what the process opens itself
_MOST_PIECES = 10_000  # of a body; each takes the event loop some 20 µs
_PIECE_BYTES = 64  # of a longer body, which may have more


def most_connections() -> int:
    """Returns how many connections fit, after asking for as many files as allowed."""
    try:
        import resource
    except ImportError:  # not on Windows
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
    """Makes the class of Uvicorn's connections that closes those that are too many.

    Each one knows in ``waits_since`` when it began to wait for a request, by
    `time.monotonic`, and in ``unread`` how many bytes of answers the client had not
    taken at the last look, and since when these are as many.

    Args:
        most: How many there may be at once.
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
            # Answers of one length, each on its way at a look, are not one that stays.
            self.unread = 0, self.waits_since
            super().on_response_complete()

        def _unsupported_upgrade_warning(self) -> None:
            """Says nothing, where Uvicorn advises a library that changes nothing.

            A client may offer another protocol, and is answered by this one.
            """

        def send_400_response(self, msg: str) -> None:
            client = (self.client or ("", 0))[0]
            error = sys.exception()
            # Not what was sent, which follows.
            reason, _, _ = str(error or msg).partition(":")
            say("no HTTP request", logging.WARNING, client=client, reason=reason)
            if isinstance(error, _TooManyPieces):
                self._refuse_pieces(str(error))
            else:
                super().send_400_response(msg)

        def _refuse_pieces(self, told: str) -> None:
            """Answers, and throws away what comes, so that the client reads that."""
            self.ignores = True
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if not self.cycle.response_started:
                self.transport.write(
                    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n"
                    b"Content-Type: text/plain; charset=utf-8\r\n\r\n" + told.encode()
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
    """Refuses a body that comes in very many pieces, such as chunks of one byte.

    To read a megabyte of them would keep everybody else waiting for seconds.
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
    """Bytes that the client has not received, those that the kernel holds as well."""
    found = transport.get_write_buffer_size()
    socket = transport.get_extra_info("socket")
    if socket is not None and _OUTPUT_QUEUE is not None:
        with contextlib.suppress(OSError, ValueError):  # it is closed
            queued = fcntl.ioctl(socket.fileno(), _OUTPUT_QUEUE, bytes(4))
            found += int.from_bytes(queued, sys.byteorder)
    return found


async def close_idle(connections: Collection[Any], limit_s: float = _HEAD_S) -> None:
    """Closes connections on which for a while no whole head of a request has come.

    Those of clients that for as long have taken nothing of an answer end at once, with
    what is left of it.

    Args:
        connections: Those of Uvicorn, a collection that changes, of the class that
            `connection_class` makes.
        limit_s: How long one may wait, in seconds.
    """
    while True:
        now = time.monotonic()
        for each in [*connections]:
            unread = _unread(each.transport)
            if unread != each.unread[0]:
                each.unread = unread, now
            if unread:  # to close it would wait for the client
                if now - each.unread[1] > limit_s:
                    each.transport.abort()
                continue
            waits = each.cycle is None or each.cycle.response_complete
            if waits and now - each.waits_since > limit_s:
                each.transport.close()
        await asyncio.sleep(min(_LOOK_S, limit_s / 4))
