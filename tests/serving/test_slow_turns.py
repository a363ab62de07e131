"""A server reports where its slowest turns spent time, and starts few at once."""

import gc
import time

import numpy as np
import pytest
from asking_models import embed, make_params, score

import edbatch as eb
from edbatch.serving import wave_loop
from edbatch.serving.generation import Generation
from edbatch.serving.slow_turns import PAUSES, SlowTurn, TurnLog


@pytest.fixture(autouse=True)
def coarse():
    with eb.use_tiers("coarse"):
        yield


def slow(params, instance):
    """Calls one function before and one after it reads a value."""
    before, after = instance
    before()
    state = embed(params, 1)[0]
    eb.value(score(params, state))
    after()
    return state


def nothing():
    """Does nothing."""


def sleep():
    """Sleeps longer than anything else here takes."""
    time.sleep(0.3)


def served(*instances):
    params = make_params()
    with eb.Server(eb.batch(slow), params) as server:
        server.warm_up([(nothing, nothing)])
        for each in instances:
            server.submit_nowait(each).result(60)
        return server.stats().slowest_turns


def test_time_is_charged_to_its_stage():
    [first, second, *rest] = served(
        (nothing, nothing), (lambda: (sleep(), sleep()), nothing), (nothing, sleep)
    )
    assert first.start_ms >= 600 and first.started == 1
    assert second.resume_ms >= 300 and first.total_ms >= second.total_ms >= 300
    for turn in (first, second):
        assert turn.off_cpu_ms >= 250  # sleeping
        stages = turn.start_ms + turn.schedule_ms + turn.run_ms + turn.resume_ms
        assert stages == pytest.approx(turn.total_ms, rel=0.01)
    assert all(turn.total_ms <= second.total_ms for turn in rest)
    assert sum(turn.started for turn in (first, second, *rest)) == 3
    assert sum(turn.nodes for turn in (first, second, *rest)) == 6
    assert all(0 <= turn.ago_s < 60 for turn in (first, second))


def test_work_of_the_thread_is_not_off_the_core():
    def work():
        end = time.thread_time() + 0.4
        while time.thread_time() < end:
            pass

    first, *_ = served((work, nothing))
    assert first.start_ms >= 400 and first.total_ms - first.off_cpu_ms >= 399


def test_pauses_of_the_collector_are_told():
    garbage = [[] for _ in range(300_000)]
    turns = served((gc.collect, nothing))
    assert len(garbage) and max(turn.collector_ms for turn in turns) > 1
    assert sum(each == PAUSES._note for each in gc.callbacks) == 1


def test_the_slowest_of_the_latest_turns_are_kept():
    log, rng = TurnLog(), np.random.default_rng(0)
    times = rng.random(3000)
    for each in times.tolist():
        rest = [0.0] * 6
        log.add(SlowTurn(time.perf_counter(), each, *rest, 1, 2, 3, 4))
    found = log.slowest()
    expected = sorted(times[-1024:], reverse=True)[:8]
    assert [each.total_ms for each in found] == expected
    assert {(each.started, each.moves) for each in found} == {(1, 4)}
    assert TurnLog().slowest() == ()


@pytest.mark.parametrize("values_are_there", [True, False])
def test_values_that_are_there_go_before_many_requests(monkeypatch, values_are_there):
    """Then few requests start per turn; all are answered, urgent ones first."""
    monkeypatch.setattr(wave_loop, "_AT_ONCE", 2)
    monkeypatch.setattr(wave_loop, "_FEW", 1)
    monkeypatch.setattr(Generation, "has_values", lambda self: values_are_there)
    params, order = make_params(), []

    def model(params, number):
        if number < 0:
            time.sleep(0.3)  # until the others have arrived
        order.append(number)
        return embed(params, abs(number))

    with eb.Server(eb.batch(model), params) as server:
        first = server.submit_nowait(-1)
        time.sleep(0.1)
        futures = [server.submit_nowait(k, priority=k) for k in range(9)]
        for number, future in enumerate(futures):
            expected = embed(params, number)
            np.testing.assert_allclose(future.result(60)[0], expected[0], rtol=1e-4)
        first.result(60)
        most = max(turn.started for turn in server.stats().slowest_turns)
    assert order == [-1, *range(8, -1, -1)]
    assert most == (2 if values_are_there else 9)


def test_a_wave_that_has_run_has_values():
    from edbatch.serving.request import Request

    params = make_params()
    with eb.Server(eb.batch(slow), params) as server:
        generation = server._new(
            params, counts=server._counts, policy=None, type_limit=None
        )
        assert not generation.has_values()
        generation.start(Request((nothing, nothing), 0, 0, None))
        assert not generation.has_values()  # nothing was launched
        generation.step()
        generation.runner.wait()
        assert generation.has_values()
        generation.fail_all(RuntimeError("the end of the test"))
        assert not generation.has_values()


def test_few_new_requests_join_the_next_wave(monkeypatch):
    """If there are many requests, a wave runs half of them and the new ones."""
    from edbatch.serving import generation as module
    from edbatch.serving.request import Request

    monkeypatch.setattr(module, "_TWO_PARTS", 8)
    params = make_params()
    with eb.Server(eb.batch(slow), params) as server:
        generation = server._new(
            params, counts=server._counts, policy=None, type_limit=None, holds=False
        )
        sizes = []
        for step, new in enumerate((8, 0, 0, 2)):
            for k in range(new):
                generation.start(Request((nothing, nothing), 10 * step + k, 0, None))
            generation.step()
            sizes.append([len(own) for own, _ in generation._launched])
        generation.fail_all(RuntimeError("the end of the test"))
    assert sizes == [[4], [4, 4], [4], [4, 6]]
