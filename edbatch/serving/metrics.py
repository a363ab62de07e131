"""Prometheus metrics of a server.

Prometheus scrapes at intervals; the collector reads the server's statistics at each
scrape, so nothing is counted twice and requests have no overhead. The client library
comes with ``pip install 'edbatch[serve]'``.
"""

from collections.abc import Iterator, Mapping
from itertools import accumulate

from edbatch.errors import MissingServeExtraError
from edbatch.serving.durations import Histogram
from edbatch.serving.server import Server
from edbatch.serving.stats import ServerStats

try:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingServeExtraError(error.name) from error

_OUTCOMES = ("answered", "failed", "cancelled", "expired", "refused")
_COUNTERS = {
    "submitted": ("edbatch_requests_submitted", "Requests that were accepted."),
    "waves": ("edbatch_waves", "Waves that ran."),
    "batches": ("edbatch_batches", "Batches of the waves' schedules."),
    "nodes": ("edbatch_nodes", "Nodes that ran, one row each."),
    "rows": ("edbatch_rows", "Rows that were computed, padding included."),
}
_GAUGES = {
    "waiting": ("edbatch_requests_waiting", "Requests that have not begun to run."),
    "in_flight": ("edbatch_requests_in_flight", "Running requests."),
    "held": (
        "edbatch_requests_held",
        "Requests that wait for a program that knows their types or has room.",
    ),
}
_HISTOGRAMS = {
    "latency_histogram": (
        "edbatch_request_latency_seconds",
        "Time from the submission of a request to its answer.",
    ),
    "first_value_histogram": (
        "edbatch_request_first_value_seconds",
        "Time from the submission of a request to the first value it asked for.",
    ),
}


class ServerCollector(Collector):
    """Prometheus collector of a server; register it with a `CollectorRegistry`.

    The mean width of batches is ``rate(edbatch_nodes_total[1m]) /
    rate(edbatch_batches_total[1m])``.

    Args:
        server: The server.
        labels: Labels of all metrics, to distinguish servers in one process.

    Example:
        >>> import edbatch as eb
        >>> import jax.numpy as jnp
        >>> from prometheus_client import CollectorRegistry
        >>> registry = CollectorRegistry()
        >>> twice = eb.batch(eb.cell(lambda params, x: params * x))
        >>> with eb.Server(twice, jnp.float32(2)) as server:
        ...     registry.register(ServerCollector(server))
        ...     _ = server.submit_nowait(1.0).result()
        >>> registry.get_sample_value("edbatch_requests_total", {"outcome": "answered"})
        1
    """

    def __init__(self, server: Server, labels: Mapping[str, str] | None = None) -> None:
        self._server = server
        self._names = tuple(labels or ())
        self._values = tuple((labels or {}).values())

    def describe(self) -> Iterator[Metric]:
        """Yields the metrics' names, without their values."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics."""
        stats = self._server.stats()
        yield self._requests(stats)
        for field, (name, what) in _COUNTERS.items():
            counter = CounterMetricFamily(name, what, labels=self._names)
            counter.add_metric(self._values, getattr(stats, field))
            yield counter
        for field, (name, what) in _GAUGES.items():
            gauge = GaugeMetricFamily(name, what, labels=self._names)
            gauge.add_metric(self._values, getattr(stats, field))
            yield gauge
        for field, (name, what) in _HISTOGRAMS.items():
            histogram = HistogramMetricFamily(name, what, labels=self._names)
            found: Histogram = getattr(stats, field)
            histogram.add_metric(self._values, buckets(found), found.sum_ms / 1e3)
            yield histogram

    def _requests(self, stats: ServerStats) -> CounterMetricFamily:
        found = CounterMetricFamily(
            "edbatch_requests",
            "Requests that have ended, by how, and those that were refused.",
            labels=(*self._names, "outcome"),
        )
        for each in _OUTCOMES:
            found.add_metric((*self._values, each), getattr(stats, each))
        return found


def buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Returns cumulative counts by upper bound in seconds, as Prometheus expects.

    Args:
        histogram: Counts by bucket.

    Returns:
        Upper bounds as text, the last ``"+Inf"``, each with its cumulative count.
    """
    bounds = [f"{each / 1e3:g}" for each in histogram.bounds_ms]
    return list(zip([*bounds, "+Inf"], accumulate(histogram.counts), strict=True))
