"""Statistics of a server so far."""

import threading
from dataclasses import dataclass, field
from typing import Any

from edbatch.serving.durations import Durations, Histogram, Latency
from edbatch.serving.slow_turns import SlowTurn


@dataclass(frozen=True)
class ServerStats:
    """Statistics of a server so far; see `edbatch.Server.stats`.

    Attributes:
        submitted: Requests that were accepted.
        answered: Those that were answered.
        failed: Those for which the model raised an exception.
        cancelled: Those that were cancelled.
        expired: Those whose deadline has passed.
        refused: Requests that were not accepted, since too many waited.
        waiting: Requests that have not begun to run.
        in_flight: Requests that run.
        held: Those of them that wait for a program that knows their types of cells, or
            has room for them.
        waves: Waves so far.
        nodes: Nodes that ran.
        batches: Batches of their schedules.
        rows: Rows that were computed, padding included.
        overruled: Waves in which all ran that was needed, since the serving policy
            had let something wait for too long, or an idle device.
        width: Nodes per batch, on average.
        latency: From submission to the answer, in milliseconds.
        first_value: From submission to the first value that a request looked at, or its
            answer, likewise.
        latency_histogram: Of all answers, how many took how long.
        first_value_histogram: Likewise for the first value.
        slowest_turns: The slowest of the latest turns of the server's thread, and where
            their time went.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> batched = eb.batch(double, params=2.0)
        >>> with eb.Server(batched, 2.0) as server:
        ...     answer = server.submit_nowait(3.0).result()
        >>> stats = server.stats()
        >>> stats.submitted, stats.answered, stats.waiting
        (1, 1, 0)
    """

    submitted: int
    answered: int
    failed: int
    cancelled: int
    expired: int
    refused: int
    waiting: int
    in_flight: int
    held: int
    waves: int
    nodes: int
    batches: int
    rows: int
    overruled: int
    width: float
    latency: Latency
    first_value: Latency
    latency_histogram: Histogram
    first_value_histogram: Histogram
    slowest_turns: tuple[SlowTurn, ...]


@dataclass(eq=False)
class Counts:
    """Counts of a server, which several threads change."""

    submitted: int = 0
    answered: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    refused: int = 0
    waves: int = 0
    nodes: int = 0
    batches: int = 0
    rows: int = 0
    overruled: int = 0
    latency: Durations = field(default_factory=Durations)
    first_value: Durations = field(default_factory=Durations)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, **more: int) -> None:
        """Adds to counts, by their names."""
        with self.lock:
            for name, value in more.items():
                setattr(self, name, getattr(self, name) + value)

    def summary(
        self,
        waiting: int,
        in_flight: int,
        held: int,
        slowest_turns: tuple[SlowTurn, ...],
    ) -> ServerStats:
        """Returns the counts, as they are now.

        Args:
            waiting: Requests that have not begun to run.
            in_flight: Requests that run.
            held: Those that wait for a compiler.
            slowest_turns: The slowest turns.

        Returns:
            The summary.
        """
        with self.lock:
            own: dict[str, Any] = {
                name: value for name, value in vars(self).items() if name != "lock"
            }
        for name in ("latency", "first_value"):
            durations: Durations = own[name]
            own[name] = durations.percentiles()
            own[f"{name}_histogram"] = durations.histogram()
        width = own["nodes"] / max(1, own["batches"])
        own |= {"waiting": waiting, "in_flight": in_flight, "held": held}
        own["width"] = width
        return ServerStats(slowest_turns=slowest_turns, **own)
