"""Waves too large for the current program run in parts or wait for a larger one."""

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from asking_models import grow_tree, make_params, sample_words, shift_reduce
from served_bursts import check_bursts
from served_process import wait_until
from wave_programs import wave_programs

import edbatch as eb
from edbatch.compilation.worker import WORKER
from edbatch.policies.serving import ServingHeuristic
from edbatch.policies.serving.choices import READY
from edbatch.serving import generation
from edbatch.stream import wave_sizes
from edbatch.waves.program_maker import ProgramMaker
from edbatch.waves.resident_values import ResidentValues
from edbatch.waves.runner import WaveRunner

PARAMS = jnp.float32(0.5)
FEW = {"stream": 32, "steps": 4, "arena": 16, "pool": 8, "fetch": 2}


@pytest.fixture(autouse=True)
def small_programs(monkeypatch):
    monkeypatch.setattr(wave_sizes, "_SMALLEST", FEW)
    with eb.use_tiers("coarse"):
        yield


@eb.cell
def scale(params, x):
    return params * x + 1


def chain(params, count):
    """One wave of `count` nodes."""
    state = np.float32(0)
    for _ in range(count):
        state = scale(params, state)
    return state


def looking(params, count):
    """`count` waves and one more, whose values stay in the arena."""
    kept = [scale(params, np.float32(0))]
    for _ in range(count):
        kept.append(scale(params, np.float32(eb.value(kept[-1]))))
    return kept


def expected(count):
    return [2 - 2 * 0.5**k for k in range(1, count + 1)]


def check_chain(future, count):
    np.testing.assert_allclose(future.result(60), expected(count)[-1], rtol=1e-6)


def check_looking(future, count):
    found = np.asarray(future.result(60))
    np.testing.assert_allclose(found, expected(count + 1), rtol=1e-6)


def many_at_once(server, instances):
    """Submits requests that all join before the first wave."""
    entered, go_on = threading.Event(), threading.Event()
    start = generation.Generation.start

    def slow(self, request):
        if not entered.is_set():
            entered.set()
            assert go_on.wait(60)
        start(self, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation.Generation, "start", slow)
        futures = server.submit_many(instances[:1])
        assert entered.wait(60)
        futures += server.submit_many(instances[1:])
        go_on.set()
        return [*zip(instances, futures, strict=True)]


def test_more_requests_than_a_wave_holds_run_in_parts(compiler):
    with eb.Server(eb.batch(chain), PARAMS) as server:
        check_chain(server.submit_nowait(2), 2)
        before, ran = wave_programs(), server.stats().waves
        for count, each in many_at_once(server, [1] * 30):
            check_chain(each, count)
        assert wave_programs() == before
        assert server.stats().waves > ran + 2
        compiler.set()
        assert eb.wait_for_compilations(60)
        check_chain(server.submit_nowait(2), 2)
        ran = server.stats().waves
        for count, each in many_at_once(server, [1] * 30):
            check_chain(each, count)
        assert server.stats().waves <= ran + 2
        assert wave_programs()[1] == before[1]


def test_one_that_is_too_large_waits_alone(compiler):
    with eb.Server(eb.batch(chain), PARAMS) as server:
        check_chain(server.submit_nowait(2), 2)
        before = wave_programs()
        large = {n: server.submit_nowait(n) for n in (100, 200)}
        for n in (1, 2, 3) * 7:
            check_chain(server.submit_nowait(n), n)
        assert not any(each.done() for each in large.values())
        assert server.stats().held == 2
        assert wave_programs() == before
        compiler.set()
        for n, each in large.items():
            check_chain(each, n)
        for n in (100, 200):
            check_chain(server.submit_nowait(n), n)
        assert wave_programs()[1] == before[1]


def test_few_waves_are_planned_in_vain(compiler, monkeypatch):
    tries = []
    launch = WaveRunner.launch

    def counting(self, runs, **options):
        tries.append(len(runs))
        return launch(self, runs, **options)

    monkeypatch.setattr(WaveRunner, "launch", counting)
    with eb.Server(eb.batch(chain), PARAMS) as server:
        check_chain(server.submit_nowait(2), 2)
        del tries[:]
        large = many_at_once(server, [100] * 24)
        wait_until(lambda: server.stats().held == 24)
        assert len(tries) <= 24 + 5
        del tries[:]
        for count, each in many_at_once(server, [1] * 24):
            check_chain(each, count)
        assert len(tries) <= 5 + 2 * 12  # a wave fetches two values
        compiler.set()
        for count, each in large:
            check_chain(each, count)


def test_values_of_one_that_fill_the_arena(compiler):
    with eb.Server(eb.batch(looking), PARAMS) as server:
        check_looking(server.submit_nowait(1), 1)
        before = wave_programs()
        large = server.submit_nowait(60)
        others = [(n, server.submit_nowait(n)) for n in (1, 2, 3) * 4]
        wait_until(lambda: server.stats().held)
        assert wave_programs() == before
        compiler.set()
        check_looking(large, 60)
        for n, each in others:
            check_looking(each, n)
        for count, each in many_at_once(server, [9, 40, 3, 60, 1, 33]):
            check_looking(each, count)
        assert wave_programs()[1] == before[1]


def test_requests_that_fill_the_arenas_together_end(compiler):
    """All requests are held once no request has room for its next value."""
    with eb.Server(eb.batch(looking), PARAMS) as server:
        check_looking(server.submit_nowait(1), 1)
        before = wave_programs()
        futures = many_at_once(server, [12] * 8)
        wait_until(lambda: server.stats().held == 8)
        late = server.submit_nowait(1, deadline_ms=100)
        with pytest.raises(eb.errors.DeadlineError):
            late.result(60)
        assert futures[0][1].cancel()
        compiler.set()
        for count, each in futures[1:]:
            check_looking(each, count)
        assert wave_programs()[1] == before[1]
        assert server.stats().in_flight == 0


def test_where_nothing_may_be_compiled(caplog):
    """Parts that fit are answered, and a request that does not fit fails."""
    with eb.Server(eb.batch(chain), PARAMS) as server:
        check_chain(server.submit_nowait(2), 2)
        with eb.set_stance("fail_on_compile"):
            for count, each in many_at_once(server, [1] * 30):
                check_chain(each, count)
            large = [server.submit_nowait(100) for _ in range(2)]
            for _ in range(20):
                check_chain(server.submit_nowait(2), 2)
            for each in large:
                with pytest.raises(eb.CompilationError, match="forbids it"):
                    each.result(60)
            check_chain(server.submit_nowait(3), 3)
        for count, each in many_at_once(server, [100, 1, 2, 3] * 3):
            check_chain(each, count)
    told = [each.message for each in caplog.records if "in parts" in each.message]
    assert len(told) == 1


@pytest.mark.parametrize("parts", [1, 2])
def test_a_serving_policy_decides(compiler, monkeypatch, parts):
    monkeypatch.setattr(generation, "_TWO_PARTS", 2 if parts == 2 else 1000)
    policy = ServingHeuristic("cells", READY, max_rows=64)
    with eb.Server(eb.batch(looking), PARAMS, policy=policy) as server:
        check_looking(server.submit_nowait(1), 1)
        before = wave_programs()
        futures = many_at_once(server, [1, 2, 3] * 10)
        large = server.submit_nowait(70)
        time.sleep(0.1)
        assert wave_programs() == before
        compiler.set()
        for count, each in futures:
            check_looking(each, count)
        check_looking(large, 70)
        assert wave_programs()[1] == before[1]


def test_parameters_that_are_swapped_meanwhile(compiler):
    with eb.Server(eb.batch(chain), PARAMS) as server:
        check_chain(server.submit_nowait(2), 2)
        before = wave_programs()
        large = server.submit_nowait(100)
        check_chain(server.submit_nowait(2), 2)
        server.swap_params(PARAMS * 0)
        for count in (1, 3, 1):
            assert server.submit_nowait(count).result(60) == 1
        other = server.submit_nowait(90)
        assert server.submit_nowait(1).result(60) == 1
        assert not large.done() and not other.done()
        compiler.set()
        check_chain(large, 100)
        assert other.result(60) == 1
        assert wave_programs()[1] == before[1]


def test_sizes_that_another_server_has_need_no_compiler(compiler):
    batched = eb.batch(chain)
    with eb.Server(batched, PARAMS) as server:
        check_chain(server.submit_nowait(2), 2)
        with eb.Server(batched, PARAMS) as other:
            other.warm_up([100])
        before = wave_programs()
        check_chain(server.submit_nowait(100), 100)
        assert wave_programs() == before


@pytest.mark.parametrize("differs", ["key", "device"])
def test_another_server_with_other_programs_spares_no_compiler(compiler, differs):
    """Its sizes are known, but no request waits for the server's own program."""
    batched, placed = eb.batch(chain), jax.device_put(PARAMS, jax.devices()[0])
    rng = jax.random.key(0) if differs == "key" else None
    params = placed if differs == "device" else PARAMS
    with eb.Server(batched, params, rng=rng) as server:
        check_chain(server.submit_nowait(2), 2)
        with eb.Server(batched, PARAMS) as other:
            other.warm_up([2, 100])
        before = wave_programs()
        large = server.submit_nowait(100)
        for n in (1, 2, 3):
            check_chain(server.submit_nowait(n), n)
        assert not large.done()
        compiler.set()
        check_chain(large, 100)
        assert wave_programs()[1] == before[1]


def test_those_that_had_no_room_go_on_when_others_end(compiler, monkeypatch):
    monkeypatch.setattr(wave_sizes, "_SMALLEST", FEW | {"fetch": 32})
    with eb.Server(eb.batch(looking), PARAMS) as server:
        check_looking(server.submit_nowait(1), 1)
        before = wave_programs()
        futures = many_at_once(server, [12, 13, 14])
        wait_until(lambda: server.stats().held == 3)
        for _, each in futures[1:]:
            assert each.cancel()
        check_looking(futures[0][1], 12)
        assert wave_programs() == before


def test_old_ones_end_first_where_values_fill_the_arenas(compiler, monkeypatch):
    """This makes room, so that the requests do not all wait for the compiler."""
    monkeypatch.setattr(wave_sizes, "_SMALLEST", FEW | {"arena": 64, "fetch": 32})
    with eb.Server(eb.batch(looking), PARAMS) as server:
        check_looking(server.submit_nowait(1), 1)
        before = wave_programs()
        for count, each in many_at_once(server, [3] * 20 + [12] * 3):
            check_looking(each, count)
        assert wave_programs() == before


def test_requests_that_fit_one_after_the_other_do_not_all_fail(monkeypatch):
    monkeypatch.setattr(wave_sizes, "_SMALLEST", FEW | {"arena": 64, "fetch": 32})
    with eb.Server(eb.batch(looking), PARAMS) as server:
        for _ in range(3):  # compiles the functions that move rows, too
            check_looking(server.submit_nowait(6), 6)
        assert eb.wait_for_compilations(60)
        with eb.set_stance("fail_on_compile"):
            answered = 0
            for count, each in many_at_once(server, [3] * 20 + [20] * 3):
                try:
                    check_looking(each, count)
                    answered += 1
                except eb.CompilationError:
                    assert count == 20
        assert answered >= 21
        check_looking(server.submit_nowait(20), 20)


def test_what_cannot_be_compiled_is_not_compiled_over_and_over(monkeypatch):
    tried = []

    def failing(self, found, wave):
        tried.append(wave.needs)
        raise MemoryError("no memory for a program")

    with eb.Server(eb.batch(chain), PARAMS) as server:
        check_chain(server.submit_nowait(2), 2)
        monkeypatch.setattr(ProgramMaker, "_make_next", failing)
        for _ in range(10):
            for count, each in many_at_once(server, [1] * 30):
                check_chain(each, count)
        assert len(tried) == 1
        large = [server.submit_nowait(n) for n in (200, 100, 150, 100)]
        for each in large:
            with pytest.raises(MemoryError, match="for a program"):
                each.result(60)
        assert len(tried) < 6  # sizes above one that failed are not tried
        monkeypatch.undo()
        check_chain(server.submit_nowait(100), 100)


def test_arenas_without_memory_end_no_later_request(monkeypatch):
    failures = [MemoryError("for an arena")]
    move = ResidentValues._take_over

    def once(self, moved, sizes):
        if failures and max(sizes.values()) > 64:
            raise failures.pop()
        return move(self, moved, sizes)

    with eb.Server(eb.batch(looking), PARAMS) as server:
        check_looking(server.submit_nowait(1), 1)
        monkeypatch.setattr(ResidentValues, "_take_over", once)
        with pytest.raises(MemoryError):
            server.submit_nowait(60).result(60)
        for n in (1, 2, 40):
            check_looking(server.submit_nowait(n), n)
        assert not failures


@pytest.mark.parametrize("policy", [None, ServingHeuristic("cells", READY)])
def test_all_have_a_turn_where_waves_have_no_room(compiler, monkeypatch, policy):
    """A long request with many waves does not run to its end before the others."""

    def wide(params, count):
        state = np.float32(0)
        for _ in range(count):
            parts = [scale(params, state), scale(params, state)]
            state = np.float32(eb.value(parts)[0])
        return state

    monkeypatch.setattr(wave_sizes, "_SMALLEST", FEW | {"arena": 512})
    with eb.Server(eb.batch(wide), PARAMS, policy=policy) as server:
        check_chain(server.submit_nowait(2), 2)
        ended = []
        for count, each in (found := many_at_once(server, [40] + [4] * 12)):
            each.add_done_callback(lambda _, count=count: ended.append(count))
        for count, each in found:
            check_chain(each, count)
        wait_until(lambda: len(ended) == len(found))
        assert ended[-1] == 40


def test_those_that_end_meanwhile_are_forgotten(compiler):
    with eb.Server(eb.batch(chain), PARAMS) as server:
        check_chain(server.submit_nowait(2), 2)
        late = server.submit_nowait(100, deadline_ms=50)
        cancelled = server.submit_nowait(120)
        check_chain(server.submit_nowait(2), 2)
        assert cancelled.cancel()
        with pytest.raises(eb.errors.DeadlineError):
            late.result(60)
        compiler.set()
        for n in (1, 100, 120):
            check_chain(server.submit_nowait(n), n)
        [own] = server._loop._generations
        held = own._held
        assert not held and not held._next_for
        assert not own.runner.pending._aside and not own.runner._aside


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("model", [grow_tree, shift_reduce])
def test_random_requests_as_unbatched(model, seed):
    """Requests of any size, while sizes grow; only the first waits for a program."""
    rng = np.random.default_rng(seed)
    params = make_params()
    instances = sample_words(24, seed) if model is shift_reduce else [*range(24)]
    with eb.Server(eb.batch(model), params) as server:
        server.submit_nowait(instances[0]).result(120)
        before = wave_programs()
        check_bursts(server, model, params, instances, rng)
        assert wave_programs()[1] == before[1]
    assert WORKER.wait(120)
