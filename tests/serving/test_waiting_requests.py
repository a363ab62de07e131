"""Futures of requests, and requests that wait: cancelled, late, or too many."""

import concurrent.futures
import itertools
import threading

import pytest
from asking_models import make_params, steps
from compared_answers import assert_same
from held_server import HeldServer

import edbatch as eb
from edbatch.policies.serving.choices import LARGEST
from edbatch.policies.serving.heuristics import ServingHeuristic
from edbatch.schedule.serving.policy import Admission
from edbatch.serving import request
from edbatch.serving.stats import Counts


@pytest.fixture(autouse=True)
def coarse():
    with eb.use_tiers("coarse"):
        yield


def test_who_waits_for_a_cancelled_request_is_told():
    """While it waits, while it runs, and when the server is closed."""
    with HeldServer(max_in_flight=1) as held:
        server = held.server
        waiting = [server.submit_nowait(k) for k in range(4)]
        assert [each.cancel() for each in waiting[:2]] == [True, True]
        found = concurrent.futures.wait(waiting[:2], timeout=60)
        assert not found.not_done
        held.go_on.set()
        ended = list(concurrent.futures.as_completed(waiting, timeout=60))
        assert len(ended) == 4
        held.started.clear()
        endless = server.submit_nowait("endless")
        assert held.started.wait(60)
        assert endless.cancel() and endless.cancel() and endless.cancelled()
        assert not concurrent.futures.wait([endless], timeout=60).not_done
        last = server.submit_nowait(2)
        assert_same(last.result(60), steps(held.params, 2))
        assert not last.cancel()


def test_threads_may_cancel_the_same_request(caplog):
    with HeldServer(max_in_flight=1) as held:
        futures = [held.server.submit_nowait(k) for k in range(50)]
        start = threading.Barrier(4)

        def cancel():
            start.wait()
            for each in futures:
                assert each.cancel()

        threads = [threading.Thread(target=cancel) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert not concurrent.futures.wait(futures, timeout=60).not_done
    assert not caplog.records


def test_cancelled_requests_leave_room_for_others():
    with HeldServer(max_in_flight=1, max_waiting=4) as held:
        server = held.server
        for _ in range(3):
            dead = [server.submit_nowait(k) for k in range(3)]
            alive = server.submit_nowait(2)
            with pytest.raises(eb.ServerFullError):
                server.submit_nowait(1)
            for each in dead:
                each.cancel()
            futures = [server.submit_nowait(k) for k in range(3)]
            assert server.stats().waiting == 4
            with pytest.raises(eb.ServerFullError):
                server.submit_nowait(1)
            for each in (alive, *futures):
                each.cancel()
        last = [server.submit_nowait(k) for k in range(4)]
        held.go_on.set()
        for k, each in enumerate(last):
            assert_same(each.result(60), steps(held.params, k))
        stats = server.stats()
    assert (stats.cancelled, stats.answered, stats.refused) == (21, 5, 6)
    assert stats.submitted == 26 and stats.waiting == 0


def test_a_request_that_waits_is_told_of_its_deadline():
    """Though no other one ends, so that it never gets a place."""
    with HeldServer(max_in_flight=1) as held:
        held.go_on.set()
        held.first.result(60)
        held.started.clear()
        endless = held.server.submit_nowait("endless")
        assert held.started.wait(60)
        patient = held.server.submit_nowait(2, deadline_ms=1e6)
        late = [
            held.server.submit_nowait(1, deadline_ms=each, priority=each)
            for each in (40, 20, 80)
        ]
        calm = held.server.submit_nowait(3)
        for each in late:
            with pytest.raises(eb.DeadlineError):
                each.result(60)
        assert not patient.done() and not calm.done() and not endless.done()
        assert held.server.stats().expired == 3
        endless.cancel()
        assert_same(patient.result(60), steps(held.params, 2))
        assert_same(calm.result(60), steps(held.params, 3))


def test_an_idle_server_tells_of_deadlines():
    """A policy lets requests wait for company that never comes."""
    params = make_params()
    policy = ServingHeuristic("patient", LARGEST, 10**6, Admission(1e7, 4))
    with eb.Server(eb.batch(steps), params, policy=policy) as server:
        late = server.submit_nowait(1, deadline_ms=30)
        with pytest.raises(eb.DeadlineError):
            late.result(60)
        assert server.stats().in_flight == 0
        other = server.submit_nowait(2)
    assert_same(other.result(60), steps(params, 2))


def test_the_deadline_that_is_told_is_the_one_that_was_given(monkeypatch):
    """However long the thread that submits stands still."""
    clock = itertools.count(1e6, 0.01)
    monkeypatch.setattr(request.time, "perf_counter", lambda: next(clock))
    one, other = request.Queue(8, Counts()).put([1, 2], 200.0, 0.0)
    for each in (one, other):
        assert "deadline of 200 ms" in str(request.late(each))
