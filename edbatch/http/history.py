"""Statistics of the last minutes, second by second, for the status page."""

import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

from edbatch.serving.durations import percentiles
from edbatch.serving.stats import ServerStats

SECONDS = 300
_MOST_PER_SECOND = 1000  # durations kept per second
_COUNTED = ("answered", "failed", "cancelled", "expired", "refused")


@dataclass(frozen=True)
class Second:
    """Statistics of one second; rates are per second.

    Attributes:
        time: When it ended, in seconds since the epoch; adjustments of the system clock
            after the start are ignored.
        answered: Rate of answered requests.
        failed: Rate of failed requests, usually since the model raised an error.
        cancelled: Rate of requests whose client disconnected.
        expired: Rate of requests whose deadline passed.
        refused: Rate of requests refused because the queue was full.
        malformed: Rate of requests that are not JSON, or do not match the schema.
        p50: Median of the time to the answer, in milliseconds; or None.
        p95: Its 95th percentile.
        p99: Its 99th percentile.
        waiting: Number of waiting requests at its end.
        in_flight: Number of running requests at its end.
        width: Mean number of nodes per batch; or None.
        waves: Rate of waves run.
    """

    time: float
    answered: float
    failed: float
    cancelled: float
    expired: float
    refused: float
    malformed: float
    p50: float | None
    p95: float | None
    p99: float | None
    waiting: int
    in_flight: int
    width: float | None
    waves: float


class History:
    """Statistics of a server's last minutes. All methods run in the event loop."""

    def __init__(self) -> None:
        self._seconds: deque[Second] = deque(maxlen=SECONDS)
        self._minute: deque[list[float]] = deque(maxlen=60)
        self._durations: list[float] = []
        self._of_minute = _percentiles([])
        self._malformed = 0
        self._before: ServerStats | None = None
        self._at = time.monotonic()
        self._epoch = time.time() - self._at  # later clock adjustments have no effect

    def add(self, milliseconds: float) -> None:
        """Adds the time of a request, from its head to its answer."""
        if len(self._durations) < _MOST_PER_SECOND:
            self._durations.append(milliseconds)

    def tick(self, stats: ServerStats, malformed: int) -> None:
        """Ends a second; rates are computed from the actually elapsed time.

        Args:
            stats: The server's statistics so far.
            malformed: Number of malformed requests so far.
        """
        now = time.monotonic()
        passed, before = max(now - self._at, 1e-3), self._before or stats
        batches = stats.batches - before.batches
        own = self._durations
        rates: dict[str, Any] = {
            name: (getattr(stats, name) - getattr(before, name)) / passed
            for name in _COUNTED
        }
        rates["malformed"] = (malformed - self._malformed) / passed
        self._malformed = malformed
        self._minute.append(own)
        self._of_minute = _percentiles([each for some in self._minute for each in some])
        self._seconds.append(
            Second(
                time=self._epoch + now,
                **rates,
                **_percentiles(own),
                waiting=stats.waiting,
                in_flight=stats.in_flight,
                width=(stats.nodes - before.nodes) / batches if batches else None,
                waves=(stats.waves - before.waves) / passed,
            )
        )
        self._durations, self._before, self._at = [], stats, now

    def seconds(self, since: float) -> list[dict[str, float | None]]:
        """Returns the seconds that ended after a time."""
        return [asdict(each) for each in self._seconds if each.time > since]

    def minute(self) -> dict[str, float | None]:
        """Returns the percentiles of the last minute."""
        return self._of_minute


def _percentiles(milliseconds: list[float]) -> dict[str, Any]:
    if not milliseconds:
        return {"p50": None, "p95": None, "p99": None}
    return asdict(percentiles(milliseconds))
