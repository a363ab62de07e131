"""The time that counts as waiting for plans."""

import pytest

from edbatch.loader import LoaderReport, report


@pytest.fixture
def clock(monkeypatch):
    """A clock whose time, in seconds, is set by the test."""
    clock = report.WaitClock()
    clock.now = 0.0
    monkeypatch.setattr(report.time, "perf_counter", lambda: clock.now)
    return clock


def run(clock, waits, work):
    clock.begin()
    for wait in waits:
        clock.ask()
        clock.now += wait
        clock.hand_out()
        clock.now += work
    clock.ask()


def test_waits_and_work_are_told_apart(clock):
    run(clock, [5.0, 1.0, 2.0], work=4.0)
    assert clock.report == LoaderReport(3, 5000.0, 3000.0, 15_000.0)
    assert clock.report.wait_share == 0.2


def test_the_pause_between_two_loops_does_not_count(clock):
    run(clock, [5.0, 1.0], work=4.0)
    clock.now += 100.0
    run(clock, [7.0, 2.0], work=4.0)
    assert clock.report == LoaderReport(4, 12_000.0, 3000.0, 19_000.0)


def test_no_time_no_share():
    assert LoaderReport().wait_share == 0.0
