"""Clients of the fault test: they send, cancel, hang up and check answers.

They run in a separate process, so that they do not compete for the server's locks.
"""

import gc
import heapq
import selectors
import socket
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fault_wire import (
    CANCEL,
    CANCELLATION,
    FAULT,
    KINDS,
    REFUSED,
    SWAP,
    failure_type,
)
from faulty_requests import (
    CANCELLED,
    GOOD,
    HUNG_UP,
    LATE,
    OVERSIZED,
    POISONED,
)
from load_models import same_answer
from load_wire import FAILED, Answer, Reader

# Types of exceptions that each fault may end with.
_ENDS = {
    POISONED: ("PoisonedError", "RecordingError"),
    OVERSIZED: ("RecordingError",),
    LATE: ("DeadlineError",),
}
_MAY_BE_ANSWERED = (GOOD, CANCELLED, LATE, HUNG_UP)
_GLANCE_S = 0.02  # between two checks of a condition to stop

Draw = Iterator[tuple[str, int, float, float]]


@dataclass
class Outcomes:
    """The outcomes of requests.

    Attributes:
        sent: Number of requests sent, by kind.
        ended: Number of requests by kind and end: "answered", "failed as it should",
            "cancelled", "refused"; and the bad ends "wrong answer", "failed otherwise".
        latency_s: Latencies of good requests with right answers.
        late_sends_s: How much later than intended requests were sent.
        problems: Descriptions of the first bad ends.
    """

    sent: Counter[str] = field(default_factory=Counter)
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    latency_s: "array[float]" = field(default_factory=lambda: array("d"))
    late_sends_s: "array[float]" = field(default_factory=lambda: array("d"))
    problems: list[str] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """Number of requests without any outcome."""
        return sum(self.sent.values()) - sum(self.ended.values())

    def count(self, end: str) -> int:
        """Counts the requests of all kinds with this end."""
        return sum(n for (_, each), n in self.ended.items() if each == end)


@dataclass(eq=False)
class Sent:
    """A request in flight.

    Attributes:
        kind: The kind of request, one of `KINDS`.
        instance: Index of its instance.
        intended: Intended time of sending.
        swaps: Minimum number of parameter swaps in effect when it was sent.
        own: Its separate connection, if it has one.
    """

    kind: str
    instance: int
    intended: float
    swaps: int
    own: socket.socket | None = None


class Clients:
    """All clients of a server, in the caller's thread.

    Args:
        connection: The connection of the clients that wait for answers.
        address: Address for the connections of clients that hang up.
        expected: The answers of the unbatched model, for each set of parameters.
        asks: Whether the model reads values, so that answers are Python numbers.
    """

    def __init__(
        self,
        connection: socket.socket,
        address: tuple[str, int],
        expected: Sequence[Sequence[bytes]],
        *,
        asks: bool,
    ) -> None:
        self.outcomes = Outcomes()
        self.swaps = 0  # parameter sets alternate; the first is current
        self._connection, self._address = connection, address
        self._expected, self._asks = expected, asks
        self.messages = 0  # sent over the shared connection
        self._number = 0
        self._sent: dict[int, Sent] = {}
        self._timers: list[tuple[float, int]] = []  # end of patience, request number
        self._selector = selectors.DefaultSelector()
        reader = Reader(connection)
        self._selector.register(connection, selectors.EVENT_READ, reader)

    def run(self, draw: Draw, seconds: float, swap_s: float) -> None:
        """Sends requests at their times and receives answers.

        Args:
            draw: Requests: kind, instance, seconds after the previous request, and
                patience.
            seconds: Length of the run.
            swap_s: Seconds between two swaps of the parameters.
        """
        due = time.monotonic()
        end, swap_at = due + seconds, due + swap_s
        gc.disable()  # a pause here would count as latency of the server
        try:
            for kind, instance, wait, patience_s in draw:
                due += wait
                if due >= end:
                    return
                while (left := due - time.monotonic()) > 0:
                    self._turn(left)
                if due >= swap_at:
                    swap_at += swap_s
                    self._swap()
                self.send(kind, instance, due, patience_s)
                self._turn(0.0)
        finally:
            gc.enable()

    def close(self) -> None:
        """Hangs up for all clients whose requests have not ended."""
        for sent in self._sent.values():
            if sent.own is not None:
                self._hang_up(sent)
        self._sent.clear()
        self._selector.close()

    def receive(self, until: Callable[[], bool], limit_s: float) -> bool:
        """Receives answers until a condition holds, but not longer than a limit.

        Args:
            until: The condition.
            limit_s: The limit, in seconds.

        Returns:
            Whether the condition holds.
        """
        end = time.monotonic() + limit_s
        while not until():
            if time.monotonic() > end:
                return False
            self._turn(_GLANCE_S)
        return True

    @property
    def in_flight_now(self) -> int:
        """Number of requests that have not ended."""
        return len(self._sent)

    def all_ended(self) -> bool:
        """Whether no request is in flight."""
        return not self._sent

    def no_hang_ups_pending(self) -> bool:
        """Whether no client that will hang up is connected."""
        return all(each.own is None for each in self._sent.values())

    def send(self, kind: str, instance: int, due: float, patience_s: float) -> None:
        """Sends a request.

        Args:
            kind: The kind of request, one of `KINDS`.
            instance: Index of its instance.
            due: Intended time of sending, by `time.monotonic`.
            patience_s: Seconds after which it is cancelled, or its client hangs up.
        """
        number, self._number = self._number, self._number + 1
        sent = self._sent[number] = Sent(kind, instance, due, self.swaps)
        self.outcomes.sent[kind] += 1
        message = FAULT.pack(number, KINDS.index(kind), instance)
        if kind == HUNG_UP:
            sent.own = socket.create_connection(self._address)
            # It may overtake the latest swap, which was sent over another connection.
            sent.swaps = max(0, self.swaps - 1)
            sent.own.sendall(message)
            self._selector.register(sent.own, selectors.EVENT_READ, Reader(sent.own))
        else:
            self._write(message)
        now = time.monotonic()
        self.outcomes.late_sends_s.append(now - due)
        if kind in (HUNG_UP, CANCELLED):
            heapq.heappush(self._timers, (now + patience_s, number))

    def _swap(self) -> None:
        self.swaps += 1
        self._write(FAULT.pack(0, SWAP, 0))

    def _write(self, message: bytes) -> None:
        self._connection.sendall(message)
        self.messages += 1

    def _turn(self, wait_s: float) -> None:
        """Waits for answers, at most until the next timer, and handles due timers."""
        if self._timers:
            wait_s = min(wait_s, self._timers[0][0] - time.monotonic())
        for key, _ in self._selector.select(max(0.0, wait_s)):
            answers = key.data.answers()
            now = time.monotonic()
            for each in answers:
                self._end(each, now)
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, number = heapq.heappop(self._timers)
            self._lose_patience(number)

    def _lose_patience(self, number: int) -> None:
        """Cancels a request or hangs up, unless the request has ended."""
        sent = self._sent.get(number)
        if sent is None:
            return
        if sent.own is None:
            self._write(FAULT.pack(number, CANCEL, 0))
        else:
            self._hang_up(sent)
            del self._sent[number]
            self.outcomes.ended[sent.kind, "cancelled"] += 1

    def _hang_up(self, sent: Sent) -> None:
        assert sent.own is not None, "it has a connection"
        self._selector.unregister(sent.own)
        sent.own.close()

    def _end(self, answer: Answer, now: float) -> None:
        """Records the end of a request."""
        sent = self._sent.pop(answer.number)
        if sent.own is not None:
            self._hang_up(sent)
        end = self.end_of(sent, answer)
        self.outcomes.ended[sent.kind, end] += 1
        if end == "answered" and sent.kind == GOOD:
            self.outcomes.latency_s.append(now - sent.intended)

    def end_of(self, sent: Sent, answer: Answer) -> str:
        """Classifies the end of a request, and notes a bad one.

        Args:
            sent: The request.
            answer: Its answer.

        Returns:
            The end, as in `Outcomes.ended`.
        """
        if answer.status == REFUSED:
            return "refused"
        if answer.status == CANCELLATION:
            is_right, end = sent.kind == CANCELLED, "cancelled"
        elif answer.status == FAILED:
            kind = failure_type(answer.content)
            is_right, end = kind in _ENDS.get(sent.kind, ()), "failed as it should"
        elif self._is_right(sent, answer.content):
            is_right, end = sent.kind in _MAY_BE_ANSWERED, "answered"
        else:
            self._note(sent, "another answer than the model alone gives")
            return "wrong answer"
        if not is_right:
            self._note(sent, f"{end}: {answer.content[:200]!r}")
            return "failed otherwise"
        return end

    def _note(self, sent: Sent, text: str) -> None:
        if len(self.outcomes.problems) < 20:
            self.outcomes.problems.append(f"{sent.kind}, {sent.instance}: {text}")

    def _is_right(self, sent: Sent, found: bytes) -> bool:
        """Whether an answer is right for parameters current during the request."""
        sets = len(self._expected)
        current = {k % sets for k in range(sent.swaps, self.swaps + 1)}
        return any(
            same_answer(found, self._expected[k][sent.instance], asks=self._asks)
            for k in current
        )
