"""Request durations: percentiles of the latest, and a histogram of all."""

import threading
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass

import numpy as np

_KEPT = 8192  # number of latest durations used for percentiles
# Percentiles that a monitoring system interpolates between these bounds are correct to
# within a third, from half a millisecond to a minute.
BOUNDS_MS = (
    *(0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5),
    *(10.0, 15.0, 20.0, 30.0, 50.0, 75.0),
    *(100.0, 150.0, 200.0, 300.0, 500.0, 750.0),
    *(1e3, 1.5e3, 2e3, 3e3, 5e3, 7.5e3, 1e4, 3e4, 6e4),
)


@dataclass(frozen=True)
class Latency:
    """Percentiles of the latest requests, in milliseconds; NaN if there are none.

    Attributes:
        p50: The median.
        p95: The 95th percentile.
        p99: The 99th percentile.
    """

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True)
class Histogram:
    """Histogram of request durations since the server started.

    Attributes:
        bounds_ms: Upper bounds of the buckets, in milliseconds, ascending. ``[B]``
        counts: Requests in each bucket, and in a last one above all bounds; not
            cumulative. ``[B + 1]``
        sum_ms: The sum of all durations, in milliseconds.
    """

    bounds_ms: tuple[float, ...]
    counts: tuple[int, ...]
    sum_ms: float

    def __repr__(self) -> str:
        """Summary in one line."""
        return f"<Histogram of {sum(self.counts)} durations>"


class Durations:
    """Thread-safe collection of request durations."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=_KEPT)
        self._counts = [0] * (len(BOUNDS_MS) + 1)
        self._sum_ms = 0.0
        self._lock = threading.Lock()

    def append(self, milliseconds: float) -> None:
        """Adds the duration of a request."""
        with self._lock:
            self._latest.append(milliseconds)
            self._counts[bisect_left(BOUNDS_MS, milliseconds)] += 1
            self._sum_ms += milliseconds

    def percentiles(self) -> Latency:
        """Returns the percentiles of the latest requests."""
        with self._lock:
            latest = list(self._latest)
        return percentiles(latest)

    def histogram(self) -> Histogram:
        """Returns the histogram of all durations."""
        with self._lock:
            return Histogram(BOUNDS_MS, tuple(self._counts), self._sum_ms)


def percentiles(milliseconds: list[float]) -> Latency:
    """Returns the percentiles of durations.

    Args:
        milliseconds: The durations, in any order.

    Returns:
        The percentiles; NaN if there are no durations.

    Example:
        >>> percentiles([1.0, 2.0, 3.0]).p50
        2.0
    """
    if not milliseconds:
        return Latency(*[float("nan")] * 3)
    return Latency(*np.percentile(milliseconds, [50, 95, 99]).tolist())
