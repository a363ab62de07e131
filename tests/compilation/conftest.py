"""Fixtures: a small batched function, and settings of its compilation."""

import threading

import jax
import pytest
from compile_report import BACKEND_COMPILE
from tiered_runs import COMPARING, PARAMS
from trees import encode, sample_trees

import edbatch as eb
from edbatch.compilation.tier import try_options
from edbatch.target import CPU


@pytest.fixture
def watched(monkeypatch):
    COMPARING.watch(monkeypatch)


@pytest.fixture
def auto(watched):
    with eb.use_tiers("auto"):
        yield
    assert eb.wait_for_compilations(60)


@pytest.fixture(scope="module")
def batched():
    return eb.batch(encode, params=PARAMS, sizes=eb.Sizes(widths=(8,)))


@pytest.fixture(scope="module")
def plan(batched):
    return batched.plan(sample_trees(0, 5))


@pytest.fixture
def compiled():
    """Names of the threads in which XLA compiles programs during a test."""
    try_options(CPU)
    found = []

    def count(event, duration, **details):
        if event == BACKEND_COMPILE:
            found.append(threading.current_thread().name)

    jax.monitoring.register_event_duration_secs_listener(count)
    yield found
    jax.monitoring.unregister_event_duration_listener(count)
