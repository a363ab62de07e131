"""Clients of a test of faults: they submit, cancel and hang up, and check answers."""

import asyncio
import queue
import threading
import time
from array import array
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from faulty_requests import (
    CANCELLED,
    GOOD,
    HUNG_UP,
    LATE,
    OVERSIZED,
    POISONED,
    Faulty,
    PoisonedError,
    oversized,
    poisoned,
)
from load_models import ServedModel, encode_answer, same_answer

import edbatch as eb

# Exceptions that a fault may end with.
_ENDS: dict[str, tuple[type[BaseException], ...]] = {
    GOOD: (),
    POISONED: (PoisonedError, eb.RecordingError),
    CANCELLED: (),
    OVERSIZED: (eb.RecordingError,),
    LATE: (eb.DeadlineError,),
    HUNG_UP: (),
}
MAY_BE_ANSWERED = (GOOD, CANCELLED, LATE, HUNG_UP)


@dataclass
class Outcomes:
    """What became of requests.

    Attributes:
        sent: By kind.
        ended: By kind and end: "answered", "failed as it should", "cancelled",
            "refused", and what should not be, "wrong answer", "failed otherwise".
        latency_s: Of good requests that were answered rightly.
        problems: The first texts of what should not be.
    """

    sent: Counter[str] = field(default_factory=Counter)
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    latency_s: "array[float]" = field(default_factory=lambda: array("d"))
    problems: list[str] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """Requests that nothing is known of."""
        return sum(self.sent.values()) - sum(self.ended.values())

    def count(self, end: str) -> int:
        """How many ended so, of all kinds."""
        return sum(n for (_, each), n in self.ended.items() if each == end)


@dataclass(eq=False)
class Sent:
    """A request on its way.

    Attributes:
        kind: What is to become of it.
        number: Of its instance.
        intended: When it was to be sent.
        swaps: How many parameters had come into force then.
    """

    kind: str
    number: int
    intended: float
    swaps: int


class Clients:
    """All clients of a server, in two threads besides the caller's.

    Args:
        server: The server.
        served: The model, whose instances are sent.
        expected: The answers of the unbatched model, for each set of parameters.
        deadline_ms: Of requests that have one.
    """

    def __init__(
        self,
        server: eb.Server,
        served: ServedModel,
        expected: list[list[bytes]],
        deadline_ms: float,
    ) -> None:
        self.outcomes = Outcomes()
        self.swaps = 0  # sets of parameters take turns; the first is current
        self._server, self._served = server, served
        self._expected, self._deadline_ms = expected, deadline_ms
        self._ended: queue.SimpleQueue[tuple[Sent, Any, float, int] | None] = (
            queue.SimpleQueue()
        )
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = [
            threading.Thread(target=self._loop.run_forever, daemon=True),
            threading.Thread(target=self._check_all, daemon=True),
        ]
        for each in self._threads:
            each.start()

    def send(self, kind: str, number: int, intended: float, patience_s: float) -> None:
        """Sends a request.

        Args:
            kind: What is to become of it.
            number: Of its instance.
            intended: When it was to be sent, by `time.monotonic`.
            patience_s: After which it is cancelled, or its client hangs up.
        """
        sent = Sent(kind, number, intended, self.swaps)
        self.outcomes.sent[kind] += 1
        instance = self._served.instances[number]
        if kind == HUNG_UP:
            request = self._hang_up(sent, Faulty(instance), patience_s)
            asyncio.run_coroutine_threadsafe(request, self._loop)
            return
        request = Faulty(instance)
        if kind == POISONED:
            request = poisoned(instance, self.outcomes.sent[kind])
        elif kind == OVERSIZED:
            request = oversized(instance)
        deadline = self._deadline_ms if kind == LATE else None
        try:
            future = self._server.submit_nowait(request, deadline_ms=deadline)
        except eb.ServerFullError as error:
            self._note_end(sent, error)
            return
        future.add_done_callback(partial(self._note_end, sent))
        if kind == CANCELLED:
            self._loop.call_soon_threadsafe(
                self._loop.call_later, patience_s, future.cancel
            )

    async def _hang_up(self, sent: Sent, request: Faulty, patience_s: float) -> None:
        """Waits in an event loop as long as its patience lasts."""
        try:
            waiting = asyncio.wait_for(self._server.submit(request), patience_s)
            found: Any = await waiting
        except (TimeoutError, asyncio.CancelledError):
            found = None
        except Exception as error:
            found = error
        self._note_end(sent, found)

    def _note_end(self, sent: Sent, found: Any) -> None:
        self._ended.put((sent, found, time.monotonic(), self.swaps))

    def wait(self, limit_s: float) -> None:
        """Waits until all that was sent has ended, but not longer than a limit."""
        end = time.monotonic() + limit_s
        while self.outcomes.lost and time.monotonic() < end:
            time.sleep(0.02)

    def close(self) -> None:
        """Checks what came; the server has been drained."""
        self.wait(10.0)
        self._ended.put(None)
        self._threads[1].join()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._threads[0].join()
        self._loop.close()

    def _check_all(self) -> None:
        while (each := self._ended.get()) is not None:
            sent, found, now, swaps = each
            end = self._end_of(sent, found, swaps)
            self.outcomes.ended[sent.kind, end] += 1
            if end == "answered" and sent.kind == GOOD:
                self.outcomes.latency_s.append(now - sent.intended)

    def _end_of(self, sent: Sent, found: Any, swaps: int) -> str:
        """Says how a request has ended, and whether that is right."""
        if isinstance(found, Future):
            found = _outcome(found)
        if found is None:
            return self._judge(sent, found, "cancelled", (CANCELLED, HUNG_UP))
        if isinstance(found, eb.ServerFullError):
            return "refused"
        if isinstance(found, BaseException):
            right = isinstance(found, _ENDS[sent.kind])
            return "failed as it should" if right else self._problem(sent, found)
        if not self._is_right(sent, encode_answer(found), swaps):
            self._note(sent, "another answer than the model alone gives")
            return "wrong answer"
        return self._judge(sent, found, "answered", MAY_BE_ANSWERED)

    def _judge(self, sent: Sent, found: Any, end: str, kinds: tuple[str, ...]) -> str:
        return end if sent.kind in kinds else self._problem(sent, found)

    def _problem(self, sent: Sent, found: Any) -> str:
        self._note(sent, repr(found))
        return "failed otherwise"

    def _note(self, sent: Sent, text: str) -> None:
        if len(self.outcomes.problems) < 20:
            self.outcomes.problems.append(f"{sent.kind}, {sent.number}: {text}")

    def _is_right(self, sent: Sent, found: bytes, swaps: int) -> bool:
        """Whether it is the answer under parameters that were current meanwhile."""
        sets = len(self._expected)
        current = {k % sets for k in range(sent.swaps, swaps + 1)}
        return any(
            same_answer(found, self._expected[k][sent.number], asks=self._served.asks)
            for k in current
        )


def _outcome(future: "Future[Any]") -> Any:
    """What a future holds: a result, an exception, or None if it was cancelled."""
    if future.cancelled():
        return None
    return future.exception() or future.result()
