"""Futures of requests, and waiting requests: cancelled, late, or too many."""

import concurrent.futures
import itertools
import math
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from asking_models import embed, make_params, steps
from compared_answers import assert_same
from held_server import HeldServer

import edbatch as eb
from edbatch.policies.serving.choices import LARGEST
from edbatch.policies.serving.heuristics import ServingHeuristic
from edbatch.schedule.serving.policy import Admission
from edbatch.serving import queue
from edbatch.serving.request import late
from edbatch.serving.stats import Counts


@pytest.fixture(autouse=True)
def coarse():
    with eb.use_tiers("coarse"):
        yield


def test_who_waits_for_a_cancelled_request_is_told():
    """Cancelled while it waits and while it runs."""
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
    """Even if no other request ends, so that it never joins."""
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
    """The policy makes requests wait for others that never come."""
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
    """However long the submitting thread is delayed."""
    clock = itertools.count(1e6, 0.01)
    monkeypatch.setattr(queue.time, "perf_counter", lambda: next(clock))
    one, other = queue.Queue(8, Counts()).put([1, 2], 200.0, 0.0)
    for each in (one, other):
        assert "deadline of 200 ms" in str(late(each))


class PlainQueue:
    """Reference `Queue` that searches all waiting requests each time."""

    def __init__(self):
        self.waiting = []

    def take(self, most):
        self.waiting.sort(key=lambda each: (-each.priority, each.number))
        taken, self.waiting = self.waiting[:most], self.waiting[most:]
        return taken

    def drop_cancelled(self):
        kept = [each for each in self.waiting if not each.future.cancelled()]
        dropped = len(self.waiting) - len(kept)
        self.waiting = kept
        return dropped

    def take_late(self, now):
        late = [each for each in self.waiting if each.is_late(now)]
        self.waiting = [each for each in self.waiting if each not in late]
        return late

    def oldest(self):
        return min((each.submitted for each in self.waiting), default=math.inf)


@pytest.mark.parametrize("seed", range(6))
def test_a_queue_gives_what_one_that_looks_through_all_gives(monkeypatch, seed):
    rng = np.random.default_rng(seed)
    now = 0.0
    monkeypatch.setattr(queue.time, "perf_counter", lambda: now)
    counts = Counts()
    own, plain, taken, cancelled = queue.Queue(150, counts), PlainQueue(), [], 0
    for _ in range(2000):
        now += rng.exponential(0.01)
        action = rng.integers(9)
        if action < 4:
            deadline_ms = None if rng.random() < 0.6 else rng.exponential(200.0)
            new = own.put([None] * rng.integers(4), deadline_ms, rng.integers(3).item())
            plain.waiting += new
        elif action == 4:
            taken = own.take(int(rng.integers(12)))
            assert taken == plain.take(len(taken))
        elif action < 7 and plain.waiting + taken:
            some = [*plain.waiting, *taken]
            some[rng.integers(len(some))].future.cancel()
        elif action == 7:
            cancelled += plain.drop_cancelled()
            late = own.take_late()
            assert {each.number for each in late} == {
                each.number for each in plain.take_late(now)
            }
            assert len(own) == len(plain.waiting)
            assert counts.summary(0, 0, 0, ()).cancelled == cancelled
            assert own.deadline <= min(
                (each.deadline for each in plain.waiting if each.deadline is not None),
                default=math.inf,
            )
        else:
            cancelled += plain.drop_cancelled()
            own.take_late()
            plain.take_late(now)
            assert own.oldest() == plain.oldest()
        if len(plain.waiting) > 140:
            assert own.take(140) == plain.take(140)
    assert cancelled > 20
    assert own.take(1000) == plain.take(1000)
    assert len(own) == 0 and own.oldest() == math.inf


def executed(call):
    """The number of Python bytecode instructions that a call executes."""
    found = 0

    def count(frame, event, _):
        nonlocal found
        frame.f_trace_opcodes = True
        found += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(before)
    return found


def turn_of(waiting):
    """Cost of a turn with `waiting` requests, some of them late or cancelled."""
    counts = Counts()
    own = queue.Queue(waiting + 100, counts)
    requests = own.put([None] * waiting, None, 0.0)
    own.put([None] * 4, 0.0, 0.0)
    for each in requests[waiting // 2 :: waiting // 8]:
        each.future.cancel()

    def turn():
        assert len(own.take_late()) == 4
        assert len(own.take(16)) == 16
        own.oldest()

    found = executed(turn)
    assert counts.summary(0, 0, 0, ()).cancelled >= 4
    assert len(own) < waiting
    return found


def test_a_turn_takes_as_long_however_many_wait():
    """Otherwise an overloaded server would never catch up."""
    few, many = turn_of(64), turn_of(6400)
    assert many < 1.5 * few


def test_what_has_left_the_queue_is_forgotten():
    """Even behind a request that waits forever, and before deadlines have passed."""
    own = queue.Queue(8, Counts())
    own.put([None], None, -1.0)
    for _ in range(5000):
        [request] = own.put([None], 1e9, 0.0)
        assert own.take(1) == [request]
    heaps = (own._by_urgency, own._by_arrival, own._by_deadline)
    assert max(len(each._entries) for each in heaps) < 100
    assert len(own) == 1


def test_numbers_of_numpy():
    """Priorities that would wrap, and a deadline that would round to infinity."""
    with HeldServer(max_in_flight=1) as held:
        priorities = [0, 3, np.uint8(5), np.int8(-128), np.uint8(0)]
        ended = []
        futures = [held.server.submit_nowait(1, priority=each) for each in priorities]
        for each, future in zip(priorities, futures, strict=True):
            future.add_done_callback(lambda _, each=int(each): ended.append(each))
        before = time.perf_counter()
        last = held.server.submit_nowait(2, deadline_ms=np.float16(60_000), priority=-9)
        waits_s = held.server._queue.deadline - before
        assert 59 < waits_s < 62
        held.go_on.set()
        concurrent.futures.wait([*futures, last], timeout=60)
    assert ended == [5, 3, 0, 0, -128]


@pytest.mark.parametrize("how", ["cancelled", "late"])
def test_what_nobody_waits_for_is_not_resumed(how):
    """Not even where its values arrived with others', whose Python code took long."""
    params, resumed, submitted = make_params(), [], threading.Event()
    futures = []

    def model(params, k):
        h = embed(params, k)[0]
        eb.value(h)
        if k == 0:
            assert submitted.wait(60)
            if how == "cancelled":
                assert futures[1].cancel()
            else:
                time.sleep(0.25)
        resumed.append(k)
        return h

    with eb.Server(eb.batch(model), params) as server:
        server.submit_nowait(5).result(60)  # compiles before the timed part
        server.submit_many([5, 6, 7])[-1].result(60)
        resumed.clear()
        deadline_ms = 200 if how == "late" else None
        for k in range(3):
            limit = deadline_ms if k == 1 else None
            futures.append(server.submit_nowait(k, deadline_ms=limit))
        submitted.set()
        for k in (0, 2):
            assert_same(futures[k].result(60), embed(params, k)[0])
        error = eb.DeadlineError if how == "late" else concurrent.futures.CancelledError
        with pytest.raises(error):
            futures[1].result(60)
    assert 1 not in resumed


def test_a_server_that_stands_still_is_not_waited_for_for_ever():
    with HeldServer() as held:
        assert not held.server.close(0.05)
        assert held.server.is_running
        held.go_on.set()
        assert held.server.close(60) and held.server.close()
    with pytest.raises(eb.errors.ServerClosedError):
        held.server.submit_nowait(1)


STANDS_STILL = """
import threading
import edbatch as eb
from edbatch.serving import server

server._AT_EXIT_S = 0.2
started = threading.Event()

def model(params, instance):
    started.set()
    threading.Event().wait()

eb.Server(eb.batch(model), {}).submit_nowait(0)
assert started.wait(60)
"""


def test_a_model_that_never_returns_does_not_keep_the_process():
    done = subprocess.run(
        [sys.executable, "-P", "-c", STANDS_STILL],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
