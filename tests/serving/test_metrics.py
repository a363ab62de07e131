"""The Prometheus metrics of a server, without HTTP."""

import math
import time

import pytest
from asking_models import embed, make_params
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

import edbatch as eb
from edbatch.serving.durations import BOUNDS_MS, Durations
from edbatch.serving.metrics import ServerCollector, buckets


def model(params, word):
    if word == 5:
        raise ValueError("five")
    return embed(params, word)[0]


@pytest.fixture(autouse=True)
def coarse():
    with eb.use_tiers("coarse"):
        yield


def samples(registry):
    text = generate_latest(registry).decode()
    return {
        (each.name, *sorted(each.labels.items())): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


def test_what_is_collected_is_what_happened():
    registry = CollectorRegistry()
    with eb.Server(eb.batch(model), make_params()) as server:
        registry.register(ServerCollector(server))
        before = samples(registry)
        futures = [server.submit_nowait(k) for k in range(8)]
        cancelled = server.submit_nowait(1, deadline_ms=0)
        for each in (*futures, cancelled):
            each.exception(60)
    found, stats = samples(registry), server.stats()
    requests = "edbatch_requests_total"
    assert before[requests, ("outcome", "answered")] == 0
    outcomes = {
        name: found[requests, ("outcome", name)]
        for name in ("answered", "failed", "expired", "cancelled", "refused")
    }
    assert outcomes == {
        **{"answered": 7, "failed": 1, "expired": 1, "cancelled": 0, "refused": 0}
    }
    assert found["edbatch_requests_submitted_total",] == 9
    assert found["edbatch_waves_total",] == stats.waves >= 1
    assert found["edbatch_nodes_total",] == stats.nodes == 7
    assert found["edbatch_rows_total",] == stats.rows >= 7
    assert found["edbatch_batches_total",] == stats.batches
    assert found["edbatch_requests_waiting",] == 0
    for name in ("edbatch_request_latency", "edbatch_request_first_value"):
        assert found[f"{name}_seconds_count",] == 7
        assert found[f"{name}_seconds_bucket", ("le", "+Inf")] == 7
    total = found["edbatch_request_latency_seconds_sum",]
    assert total == pytest.approx(stats.latency_histogram.sum_ms / 1e3)
    assert 0 < total < 7 * 60


def test_several_servers_are_told_apart_by_labels():
    registry = CollectorRegistry()
    params = make_params()
    with (
        eb.Server(eb.batch(model), params) as one,
        eb.Server(eb.batch(model), params) as other,
    ):
        registry.register(ServerCollector(one, {"model": "one"}))
        with pytest.raises(ValueError, match="Duplicated"):
            registry.register(ServerCollector(one))
        one.submit_nowait(1).result(60)
        second = CollectorRegistry()
        second.register(ServerCollector(other, {"model": "other"}))
    name = "edbatch_requests_total"
    outcome = ("outcome", "answered")
    assert samples(registry)[name, ("model", "one"), outcome] == 1
    assert samples(second)[name, ("model", "other"), outcome] == 0


def test_buckets_are_cumulative():
    durations = Durations()
    for each in (0.1, 0.5, 0.6, 70.0, 1e6):
        durations.append(each)
    found = durations.histogram()
    assert sum(found.counts) == 5 and found.sum_ms == pytest.approx(1_000_071.2)
    by_bound = dict(buckets(found))
    assert by_bound["0.0005"] == 2  # a bound belongs to its bucket
    assert by_bound["0.00075"] == 3
    assert by_bound["0.05"] == 3 and by_bound["0.075"] == 4
    assert by_bound["60"] == 4 and by_bound["+Inf"] == 5
    assert list(BOUNDS_MS) == sorted(BOUNDS_MS)


def test_percentiles_of_nothing_are_nan():
    found = Durations().percentiles()
    assert math.isnan(found.p50) and math.isnan(found.p99)


def test_counting_costs_little():
    durations = Durations()
    began = time.process_time()
    for k in range(20_000):
        durations.append(k * 0.01)
    assert (time.process_time() - began) / 20_000 < 50e-6
    assert durations.percentiles().p50 == pytest.approx(159, abs=1)  # of the last ones
