"""Prometheus metrics of HTTP answers: counts by status, and durations."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from edbatch.serving.durations import Durations
from edbatch.serving.metrics import buckets


class Timed:
    """Start time and status of one request.

    Attributes:
        status: The status of its answer.
    """

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.status = 500

    def passed_ms(self) -> float:
        """Returns the milliseconds since it began."""
        return 1e3 * (time.perf_counter() - self._began)


class HttpMetrics(Collector):
    """Prometheus collector of the answers of the model's endpoint."""

    def __init__(self) -> None:
        self._by_status: Counter[int] = Counter()
        self._durations = Durations()

    @contextmanager
    def timed(self) -> Iterator[Timed]:
        """Counts a request when the block ends."""
        found = Timed()
        try:
            yield found
        finally:
            self._by_status[found.status] += 1
            self._durations.append(found.passed_ms())

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics."""
        counter = CounterMetricFamily(
            "edbatch_http_answers",
            "Answers to POST /v1/run, by status; 499: the client hung up.",
            labels=("status",),
        )
        for status, count in sorted(self._by_status.items()):
            counter.add_metric((str(status),), count)
        yield counter
        found = self._durations.histogram()
        histogram = HistogramMetricFamily(
            "edbatch_http_seconds", "Time from a request's head to its answer."
        )
        histogram.add_metric((), buckets(found), found.sum_ms / 1e3)
        yield histogram
