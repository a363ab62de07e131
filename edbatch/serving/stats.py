"""Statistics of a server since its start."""

import threading
from dataclasses import dataclass, field
from typing import Any

from edbatch.serving.durations import Durations, Histogram, Latency
from edbatch.serving.slow_turns import SlowTurn


@dataclass(frozen=True)
class ServerStats:
    """Statistics of a server since its start; see `edbatch.Server.stats`.

    Attributes:
        submitted: Accepted requests.
        answered: Accepted requests that were answered.
        failed: Accepted requests that failed, usually since the model raised an error.
        cancelled: Accepted requests that were cancelled.
        expired: Accepted requests whose deadline passed.
        refused: Requests that were not accepted because the queue was full.
        waiting: Requests that have not started to run.
        in_flight: Requests that are running.
        held: Requests in flight that wait for a program that has their types, or has
            room for them.
        waves: Waves run.
        nodes: Nodes run.
        batches: Batches in the waves' schedules.
        rows: Rows computed, including padding.
        overruled: Waves that ran all needed nodes because the serving policy had made
            nodes or an idle device wait for too long.
        width: Mean number of nodes per batch.
        latency: Time from submission to the answer, in milliseconds.
        first_value: Time from submission to the first value that a request read, or to
            its answer, in milliseconds.
        latency_histogram: Histogram of `latency` over all answers.
        first_value_histogram: Histogram of `first_value` over all answers.
        slowest_turns: The slowest of the latest turns of the server's thread, with a
            breakdown of their time.

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
    """Thread-safe counters of a server."""

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
        """Increments counters by name."""
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
        """Returns a snapshot of the counts.

        Args:
            waiting: Number of requests that have not started to run.
            in_flight: Number of running requests.
            held: Number of held requests.
            slowest_turns: The slowest turns.

        Returns:
            The statistics.
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
