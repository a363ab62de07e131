"""The last minutes, second by second, for the status page."""

import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

from edbatch.serving.durations import percentiles
from edbatch.serving.stats import ServerStats

SECONDS = 300
_MOST_PER_SECOND = 1000  # durations that are kept of one second
_COUNTED = ("answered", "failed", "cancelled", "expired", "refused")


@dataclass(frozen=True)
class Second:
    """Counts of one second.

    Attributes:
        time: Its end, in seconds since the epoch by the clock as it was at the start.
        answered: Requests that were answered.
        failed: Those for which the model raised an exception.
        cancelled: Those whose client hung up.
        expired: Those whose deadline has passed.
        refused: Those that a full queue refused.
        malformed: Requests that are no JSON, or do not fit the schema.
        p50: Percentile of the time to the answer, in milliseconds; or None.
        p95: Likewise.
        p99: Likewise.
        waiting: Requests that wait, at its end.
        in_flight: Requests that run, at its end.
        width: Nodes per batch; or None.
        waves: Waves that ran.
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
    """Keeps the last minutes of a server. All of it happens in the event loop."""

    def __init__(self) -> None:
        self._seconds: deque[Second] = deque(maxlen=SECONDS)
        self._minute: deque[list[float]] = deque(maxlen=60)
        self._durations: list[float] = []
        self._of_minute = _percentiles([])
        self._malformed = 0
        self._before: ServerStats | None = None
        self._at = time.monotonic()
        self._epoch = time.time() - self._at  # a clock that is set does not go back

    def add(self, milliseconds: float) -> None:
        """Adds the time that a request took from its head to its answer."""
        if len(self._durations) < _MOST_PER_SECOND:
            self._durations.append(milliseconds)

    def tick(self, stats: ServerStats, malformed: int) -> None:
        """Ends a second; rates are by the time that has really passed.

        Args:
            stats: What the server has done so far.
            malformed: How many requests were malformed so far.
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
