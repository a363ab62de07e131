"""Answers to event loops: one wake-up for all that end together.

To wake an event loop from another thread takes a lock and a write to a pipe, and the
thread that it wakes then wants Python's lock. Where a wave answers many requests of one
loop, that is done once, and the loop is told of all of them in the order of their ends.
"""

import asyncio
import contextlib
import threading
from concurrent.futures import Future
from functools import partial
from typing import Any

_Pair = tuple["asyncio.Future[Any]", "Future[Any]"]  # that of the loop, the request's


class LoopAnswers:
    """Answers of one server that are on their way to event loops.

    What ends in the server's thread is kept until that calls `send`; what ends in
    another one, by being cancelled, is sent at once.
    """

    def __init__(self) -> None:
        self._thread: int | None = None  # whose ends are kept until it sends
        self._kept: dict[asyncio.AbstractEventLoop, list[_Pair]] = {}

    def begin(self) -> None:
        """Keeps what ends in this thread, from now on."""
        self._thread = threading.get_ident()

    def end(self) -> None:
        """Sends what is kept, and keeps nothing any more."""
        self.send()
        self._thread = None  # another thread may come to have its number

    def future(self, request: "Future[Any]") -> "asyncio.Future[Any]":
        """Returns a future of the running event loop for that of a request.

        Args:
            request: The request's. It is cancelled if that of the loop is.

        Returns:
            The future of the loop.
        """
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Any] = loop.create_future()
        found.add_done_callback(partial(_cancel, request))
        request.add_done_callback(partial(self._ended, loop, found))
        return found

    def send(self) -> None:
        """Tells each event loop of what has ended since the last time."""
        if not self._kept:
            return
        kept, self._kept = self._kept, {}
        for loop, pairs in kept.items():
            _send(loop, pairs)

    def _ended(
        self,
        loop: asyncio.AbstractEventLoop,
        found: "asyncio.Future[Any]",
        request: "Future[Any]",
    ) -> None:
        if threading.get_ident() == self._thread:
            self._kept.setdefault(loop, []).append((found, request))
        elif not found.done():
            _send(loop, [(found, request)])


def _send(loop: asyncio.AbstractEventLoop, pairs: list[_Pair]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
        loop.call_soon_threadsafe(_tell, pairs)


def _tell(pairs: list[_Pair]) -> None:
    """Ends futures of the running event loop."""
    for found, request in pairs:
        if found.done():
            continue  # its task was cancelled meanwhile
        if request.cancelled():
            found.cancel()
        elif (error := request.exception()) is None:
            found.set_result(request.result())
        else:
            _fail(found, error)


def _fail(found: "asyncio.Future[Any]", error: BaseException) -> None:
    try:
        found.set_exception(error)
    except TypeError:  # no future of asyncio takes a StopIteration, before Python 3.12
        other = RuntimeError(f"the request raised {type(error).__name__}")
        other.__cause__ = error
        found.set_exception(other)


def _cancel(request: "Future[Any]", found: "asyncio.Future[Any]") -> None:
    if found.cancelled():
        request.cancel()
