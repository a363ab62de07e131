"""Delivers answers to event loops, with one wake-up for all that end together.

Waking an event loop from another thread takes a lock and a write to a pipe, and the
woken thread then competes for the GIL. If a wave answers many requests of one loop, the
loop is woken once, and its futures are set in the order in which the requests ended.
"""

import asyncio
import contextlib
import threading
from concurrent.futures import Future
from functools import partial
from typing import Any

_Pair = tuple["asyncio.Future[Any]", "Future[Any]"]  # the loop's and the request's


class LoopAnswers:
    """Answers of one server that are on their way to event loops.

    Requests that end in the server's thread are kept until it calls `send`; requests
    that end in another thread, by cancellation, are sent at once.
    """

    def __init__(self) -> None:
        self._thread: int | None = None  # the thread whose answers are kept
        self._kept: dict[asyncio.AbstractEventLoop, list[_Pair]] = {}

    def begin(self) -> None:
        """Keeps answers from this thread until `send`, from now on."""
        self._thread = threading.get_ident()

    def end(self) -> None:
        """Sends all kept answers, and keeps none from now on."""
        self.send()
        self._thread = None  # thread identifiers are reused

    def future(self, request: "Future[Any]") -> "asyncio.Future[Any]":
        """Returns a future of the running event loop for a request's future.

        Args:
            request: The request's future. It is cancelled if the loop's future is.

        Returns:
            The loop's future.
        """
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Any] = loop.create_future()
        found.add_done_callback(partial(_cancel, request))
        request.add_done_callback(partial(self._ended, loop, found))
        return found

    def send(self) -> None:
        """Sends each event loop its answers since the last call."""
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
    with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits
        loop.call_soon_threadsafe(_tell, pairs)


def _tell(pairs: list[_Pair]) -> None:
    """Sets futures of the running event loop."""
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
    except TypeError:  # before Python 3.12, asyncio futures reject StopIteration
        other = RuntimeError(f"the request raised {type(error).__name__}")
        other.__cause__ = error
        found.set_exception(other)


def _cancel(request: "Future[Any]", found: "asyncio.Future[Any]") -> None:
    if found.cancelled():
        request.cancel()
