"""Clients of a test of faults: they send, cancel and hang up, and check answers.

They are in a process of their own, so that they take no lock from the server.
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

# Types of exceptions that a fault may end with.
_ENDS = {
    POISONED: ("PoisonedError", "RecordingError"),
    OVERSIZED: ("RecordingError",),
    LATE: ("DeadlineError",),
}
_MAY_BE_ANSWERED = (GOOD, CANCELLED, LATE, HUNG_UP)
_GLANCE_S = 0.02  # between two looks at whether to end

Draw = Iterator[tuple[str, int, float, float]]


@dataclass
class Outcomes:
    """What became of requests.

    Attributes:
        sent: By kind.
        ended: By kind and end: "answered", "failed as it should", "cancelled",
            "refused", and what should not be, "wrong answer", "failed otherwise".
        latency_s: Of good requests that were answered rightly.
        late_sends_s: How much later than intended requests went out.
        problems: The first texts of what should not be.
    """

    sent: Counter[str] = field(default_factory=Counter)
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    latency_s: "array[float]" = field(default_factory=lambda: array("d"))
    late_sends_s: "array[float]" = field(default_factory=lambda: array("d"))
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
        instance: Number of its instance.
        intended: When it was to be sent.
        swaps: How many sets of parameters had come into force then, at least.
        own: The connection of its own, if it has one.
    """

    kind: str
    instance: int
    intended: float
    swaps: int
    own: socket.socket | None = None


class Clients:
    """All clients of a server, in the caller's thread.

    Args:
        connection: The connection for requests whose clients wait.
        address: Where those that hang up connect.
        expected: The answers of the unbatched model, for each set of parameters.
        asks: Whether the model asks for values, so that answers are numbers.
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
        self.swaps = 0  # sets of parameters take turns; the first is current
        self._connection, self._address = connection, address
        self._expected, self._asks = expected, asks
        self.messages = 0  # over the connection that clients share
        self._number = 0
        self._sent: dict[int, Sent] = {}
        self._timers: list[tuple[float, int]] = []  # when patience is at its end
        self._selector = selectors.DefaultSelector()
        reader = Reader(connection)
        self._selector.register(connection, selectors.EVENT_READ, reader)

    def run(self, draw: Draw, seconds: float, swap_s: float) -> None:
        """Sends requests at their times, and takes answers.

        Args:
            draw: Kind, instance, seconds until it comes, and patience of requests.
            seconds: For how long.
            swap_s: Seconds between two swaps of the parameters.
        """
        due = time.monotonic()
        end, swap_at = due + seconds, due + swap_s
        gc.disable()  # as of any client, a pause would be the server's
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
        """Takes answers until something holds, but not longer than a limit.

        Args:
            until: What is to hold.
            limit_s: The limit, in seconds.

        Returns:
            Whether it holds.
        """
        end = time.monotonic() + limit_s
        while not until():
            if time.monotonic() > end:
                return False
            self._turn(_GLANCE_S)
        return True

    @property
    def on_their_way(self) -> int:
        """How many requests have not ended."""
        return len(self._sent)

    def all_ended(self) -> bool:
        """Whether there is no request on its way."""
        return not self._sent

    def none_hangs_up(self) -> bool:
        """Whether there is no connection of a client that will hang up."""
        return all(each.own is None for each in self._sent.values())

    def send(self, kind: str, instance: int, due: float, patience_s: float) -> None:
        """Sends a request.

        Args:
            kind: What is to become of it.
            instance: Number of its instance.
            due: When it was to be sent, by `time.monotonic`.
            patience_s: After which it is cancelled, or its client hangs up.
        """
        number, self._number = self._number, self._number + 1
        sent = self._sent[number] = Sent(kind, instance, due, self.swaps)
        self.outcomes.sent[kind] += 1
        message = FAULT.pack(number, KINDS.index(kind), instance)
        if kind == HUNG_UP:
            sent.own = socket.create_connection(self._address)
            # It may overtake the swap that was sent last, over another connection.
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
        """Waits for answers, but not beyond the next timer, and does what is due."""
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
        """Cancels a request, or hangs up, unless it has ended."""
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
        """Notes how a request has ended."""
        sent = self._sent.pop(answer.number)
        if sent.own is not None:
            self._hang_up(sent)
        end = self.end_of(sent, answer)
        self.outcomes.ended[sent.kind, end] += 1
        if end == "answered" and sent.kind == GOOD:
            self.outcomes.latency_s.append(now - sent.intended)

    def end_of(self, sent: Sent, answer: Answer) -> str:
        """Says how a request has ended, and whether that is right.

        Args:
            sent: The request.
            answer: What came.

        Returns:
            The end, one of those of `Outcomes`.
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
        """Whether it is the answer under parameters that were current meanwhile."""
        sets = len(self._expected)
        current = {k % sets for k in range(sent.swaps, self.swaps + 1)}
        return any(
            same_answer(found, self._expected[k][sent.instance], asks=self._asks)
            for k in current
        )
