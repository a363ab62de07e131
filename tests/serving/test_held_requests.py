"""Requests with new types wait for the compiler; all other requests do not."""

import functools
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from asking_models import grow_tree, make_params, sample_words, shift_reduce
from compared_answers import assert_same
from never_lowered import uncompiled
from served_bursts import check_bursts
from wave_programs import wave_programs as waves

import edbatch as eb
from edbatch.compilation.worker import WORKER
from edbatch.errors import DeadlineError, ServerClosedError
from edbatch.policies.serving import ServingHeuristic
from edbatch.policies.serving.choices import READY
from edbatch.serving import generation
from edbatch.stream import wave_sizes
from edbatch.waves import pending

PARAMS = jnp.float32(2)


@pytest.fixture(autouse=True)
def coarse():
    with eb.use_tiers("coarse"):
        yield


@eb.cell
def scale(params, x):
    return jnp.cumsum(params * x)


def model(params, x):
    return scale(params, np.asarray(x, np.float32))


def asking(params, x):
    """Reads values with `eb.value`, and calls the cell once with a new shape."""
    state = model(params, [1.0])
    for _ in range(3):
        state = scale(params, np.asarray(eb.value(state)) / 2)
    return state, model(params, x)


def check(future, length):
    found = future.result(60)
    np.testing.assert_allclose(np.ravel(found), 2.0 * np.arange(1, length + 1))


def ones(length):
    return [1.0] * length


def test_others_are_answered_meanwhile(compiler):
    with eb.Server(eb.batch(model), PARAMS) as server:
        check(server.submit_nowait(ones(1)), 1)
        before = waves()
        new = {n: server.submit_nowait(ones(n)) for n in (2, 3)}
        for _ in range(50):
            check(server.submit_nowait(ones(1)), 1)
        late = {n: server.submit_nowait(ones(n)) for n in (4, 5, 2, 6)}
        for _ in range(5):
            check(server.submit_nowait(ones(1)), 1)
        assert not any(each.done() for each in (*new.values(), *late.values()))
        assert waves() == before
        stats = server.stats()
        assert (stats.in_flight, stats.held) == (6, 6)
        compiler.set()
        for n, each in (*new.items(), *late.items()):
            check(each, n)
        # One program for the first requests, and one for all that came meanwhile.
        assert waves() in ((before[0] + 2, before[1]), (before[0] + 1, before[1]))
        for n in range(1, 7):
            check(server.submit_nowait(ones(n)), n)
        assert waves()[0] <= before[0] + 2


def test_a_wave_by_the_new_program_holds_what_waves_before_held():
    """After the new program is in use, ordinary requests compile nothing."""
    with eb.Server(eb.batch(model), PARAMS) as server:
        for _ in range(3):
            for each in server.submit_many([ones(1)] * 40):
                check(each, 1)
        before = waves()
        check(server.submit_nowait(ones(2)), 2)
        assert waves() == (before[0] + 1, before[1])
        for _ in range(3):
            for each in server.submit_many([ones(1)] * 40):
                check(each, 1)
        assert waves() == (before[0] + 1, before[1])


@pytest.mark.parametrize("tiers", ["fine", "auto"])
def test_other_tiers(tiers, quick_compiles):
    with eb.use_tiers(tiers), eb.Server(eb.batch(model), PARAMS) as server:
        check(server.submit_nowait(ones(1)), 1)
        before = waves()
        for n in (2, 3):
            check(server.submit_nowait(ones(n)), n)
        assert waves()[1] == before[1]
        assert eb.wait_for_compilations(60)


def test_new_types_between_two_values(compiler):
    with eb.Server(eb.batch(asking), PARAMS) as server:
        first = server.submit_nowait(ones(1)).result(60)
        new = [server.submit_nowait(ones(n)) for n in (2, 3)]
        for _ in range(10):
            assert_same(server.submit_nowait(ones(1)).result(60), first)
        assert not any(each.done() for each in new)
        compiler.set()
        for n, each in enumerate(new, start=2):
            state, last = each.result(60)
            np.testing.assert_allclose(state, first[0])
            np.testing.assert_allclose(last, 2.0 * np.arange(1, n + 1))


def some_uncompiled(params, x):
    if len(x) % 2 == 0:
        return uncompiled(params, np.asarray(x, np.float32))
    return model(params, x)


def test_those_that_cannot_be_compiled_fail_alone(compiler):
    with eb.Server(eb.batch(some_uncompiled), PARAMS) as server:
        check(server.submit_nowait(ones(1)), 1)
        good = {n: server.submit_nowait(ones(n)) for n in (3, 5)}
        bad = [server.submit_nowait(ones(n)) for n in (2, 4, 2)]
        check(server.submit_nowait(ones(1)), 1)
        compiler.set()
        for n, each in good.items():
            check(each, n)
        for each in bad:
            with pytest.raises(NotImplementedError, match="never_lowered"):
                each.result(60)
        errors = {id(each.exception()) for each in bad}
        assert len(errors) == 3
        for n in (1, 3, 5, 7):
            check(server.submit_nowait(ones(n)), n)
        assert server.stats().failed == 3


def test_a_stance_that_forbids_to_compile():
    with eb.Server(eb.batch(model), PARAMS) as server:
        check(server.submit_nowait(ones(1)), 1)
        with eb.set_stance("fail_on_compile"):
            new = server.submit_nowait(ones(2))
            check(server.submit_nowait(ones(1)), 1)
            with pytest.raises(eb.CompilationError, match="forbids it"):
                new.result(60)
        check(server.submit_nowait(ones(2)), 2)


def test_cancelled_late_and_drained(compiler):
    with eb.Server(eb.batch(model), PARAMS) as server:
        check(server.submit_nowait(ones(1)), 1)
        late = server.submit_nowait(ones(2), deadline_ms=50)
        cancelled, kept = (server.submit_nowait(ones(n)) for n in (3, 4))
        assert cancelled.cancel()
        with pytest.raises(DeadlineError):
            late.result(60)
        check(server.submit_nowait(ones(1)), 1)
        assert not server.drain(0.2) and not kept.done()
        compiler.set()
        assert server.drain(60)
        check(kept, 4)
        stats = server.stats()
        assert (stats.expired, stats.cancelled, stats.in_flight) == (1, 1, 0)


def test_closed(compiler):
    server = eb.Server(eb.batch(model), PARAMS)
    check(server.submit_nowait(ones(1)), 1)
    held = server.submit_nowait(ones(2))
    check(server.submit_nowait(ones(1)), 1)
    assert server.close(60)
    with pytest.raises(ServerClosedError):
        held.result(0)


def test_swapped_parameters(compiler):
    with eb.Server(eb.batch(model), PARAMS) as server:
        check(server.submit_nowait(ones(1)), 1)
        held = server.submit_nowait(ones(3))
        check(server.submit_nowait(ones(1)), 1)
        before = waves()
        server.swap_params(PARAMS / 2)
        for _ in range(3):
            assert server.submit_nowait(ones(1)).result(60) == 1
        other = server.submit_nowait(ones(3))
        assert server.submit_nowait(ones(1)).result(60) == 1
        assert waves() == before and not held.done() and not other.done()
        compiler.set()
        check(held, 3)  # with the parameters that it started with
        np.testing.assert_allclose(other.result(60), [1, 2, 3])
        assert waves()[1] == before[1]


def test_sizes_that_have_grown_meanwhile(compiler, monkeypatch):
    """Waves that were planned for smaller sizes are planned again."""
    smallest = dict(wave_sizes._SMALLEST, fetch=1, stream=16, pool=8)
    monkeypatch.setattr(wave_sizes, "_SMALLEST", smallest)
    with eb.Server(eb.batch(model), PARAMS) as server:
        check(server.submit_nowait(ones(1)), 1)
        held = server.submit_nowait(ones(2))
        [own] = server._loop._generations
        before = own.runner.execution._sizes.bucket
        server.warm_up([ones(1)])
        assert own.runner.execution._sizes.bucket is not before
        for each in server.submit_many([ones(1)] * 40):
            check(each, 1)
        assert not held.done()
        compiler.set()
        check(held, 2)
        before = waves()
        for _ in range(3):
            for each in server.submit_many([ones(1)] * 40 + [ones(2)]):
                each.result(60)
        assert waves()[1] == before[1]


def test_what_is_held_does_not_run_where_much_waits(compiler, monkeypatch):
    monkeypatch.setattr(pending, "_MOST_WAITING", 2)
    monkeypatch.setattr(pending, "_MOST_PARTS", 2)

    def many(params, x):
        """Records more than a few nodes that the value it reads does not need."""
        kept = [model(params, [1.0]) for _ in range(8)]
        found = model(params, x)
        for k in range(4):
            eb.value(kept[k])
        return found, kept[5:]

    with eb.Server(eb.batch(many), PARAMS) as server:
        first = server.submit_nowait(ones(1)).result(60)
        held = {n: server.submit_nowait(ones(n)) for n in (2, 3)}
        before = waves()
        for _ in range(10):
            futures = server.submit_many([ones(1)] * 3)
            assert_same([each.result(60) for each in futures], [first] * 3)
        assert waves() == before and not any(each.done() for each in held.values())
        compiler.set()
        for n, each in held.items():
            found, rest = each.result(60)
            np.testing.assert_allclose(found, 2.0 * np.arange(1, n + 1))
            assert_same(rest, first[1])


def test_unneeded_types_are_looked_at_once():
    def lazy(params, x):
        model(params, x)  # its value is not needed
        return model(params, [1.0])

    with eb.Server(eb.batch(lazy), PARAMS) as server:
        check(server.submit_nowait(ones(1)), 1)
        before = waves()
        for n in (2, 3, 2, 3):
            check(server.submit_nowait(ones(n)), 1)
        assert waves() == before


@pytest.mark.parametrize("parts", [1, 2])
def test_a_serving_policy_decides_beside(compiler, monkeypatch, parts):
    monkeypatch.setattr(generation, "_TWO_PARTS", 2 if parts == 2 else 1000)
    policy = ServingHeuristic("cells", READY, max_rows=2)
    with eb.Server(eb.batch(asking), PARAMS, policy=policy) as server:
        first = server.submit_nowait(ones(1)).result(60)
        new = [server.submit_nowait(ones(n)) for n in (2, 3)]
        for _ in range(5):
            futures = server.submit_many([ones(1)] * 3)
            assert_same([each.result(60) for each in futures], [first] * 3)
        assert not any(each.done() for each in new)
        compiler.set()
        for n, each in enumerate(new, start=2):
            np.testing.assert_allclose(each.result(60)[1], 2.0 * np.arange(1, n + 1))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("own", [grow_tree, shift_reduce])
def test_random_requests_whose_types_come_one_after_the_other(own, seed):
    """Answers equal unbatched ones; each request calls a cell with a random shape."""
    rng = np.random.default_rng(seed)
    params = make_params()

    def both(params, instance):
        length, early, words = instance
        first = other(params, length) if early else None
        found = own(params, words)
        return found, first if early else other(params, length)

    @eb.cell
    def shifted(params, x):
        return jnp.cumsum(x) + jax.tree.leaves(params)[0].sum()

    def other(params, length):
        return shifted(params, np.arange(length, dtype=np.float32))

    inputs = sample_words(24, seed) if own is shift_reduce else range(24)
    instances = [
        (int(rng.integers(1, 6)), bool(rng.random() < 0.5), each) for each in inputs
    ]
    with eb.Server(eb.batch(both), params) as server:
        check_bursts(server, both, params, instances, rng)


@eb.cell
def expert(weights, x):
    return jnp.tanh(x * weights)


def test_types_of_a_family_with_loops_wait_for_nobody(compiler):
    def chosen(params, instance):
        return expert(params[instance], np.float32(1))

    params = [jnp.float32(k) for k in range(8)]
    with eb.Server(eb.batch(chosen), params) as server:
        server.submit_nowait(0).result(60)
        before = waves()
        for k in range(1, 8):  # the background thread is busy
            found = server.submit_nowait(k).result(60)
            np.testing.assert_allclose(found, np.tanh(k), rtol=1e-6)
        assert waves() == before


@pytest.mark.parametrize("how", ["another server", "a warm-up", "not blocking"])
def test_types_that_are_compiled_elsewhere_wait_for_nobody(compiler, how):
    tiers = "auto" if how == "not blocking" else "coarse"
    batched = eb.batch(model)
    with eb.use_tiers(tiers), eb.Server(batched, PARAMS) as server:
        check(server.submit_nowait(ones(1)), 1)
        if how == "another server":
            with eb.Server(batched, PARAMS) as other:
                other.warm_up([ones(2)])
        else:
            server.warm_up([ones(2), ones(1)], block=how == "a warm-up")
        check(server.submit_nowait(ones(2)), 2)
        compiler.set()
        assert eb.wait_for_compilations(60)


def test_those_of_the_same_type_that_came_meanwhile_go_on_with_it(compiler):
    second, go_on = threading.Event(), threading.Event()

    def hold():
        second.set()
        go_on.wait(60)

    with eb.Server(eb.batch(model), PARAMS) as server:
        check(server.submit_nowait(ones(1)), 1)
        early = server.submit_nowait(ones(2))
        check(server.submit_nowait(ones(1)), 1)
        WORKER.submit(hold)  # queued behind the compilation for the first request
        late = server.submit_nowait(ones(2))
        check(server.submit_nowait(ones(1)), 1)
        compiler.set()
        assert second.wait(60)
        check(early, 2)
        check(late, 2)
        go_on.set()


def test_arenas_that_are_full_do_not_wait_for_the_compiler(compiler, monkeypatch):
    """The function that moves rows leaves the queue; its user compiles it instead."""
    monkeypatch.setattr(wave_sizes, "_SMALLEST", dict(wave_sizes._SMALLEST, arena=16))

    def chain(params, instance):
        length, steps = instance
        state = model(params, ones(length))
        for _ in range(steps):
            state = scale(params, np.asarray(eb.value(state)) / 2)
        return state

    with eb.Server(eb.batch(chain), PARAMS) as server:
        check(server.submit_nowait((1, 12)), 1)
        held = server.submit_nowait((2, 0))
        for _ in range(8):
            check(server.submit_nowait((1, 12)), 1)
        assert not held.done()
        compiler.set()
        check(held, 2)


def test_held_requests_take_no_place_of_others(compiler):
    with eb.Server(eb.batch(model), PARAMS, max_in_flight=3) as server:
        check(server.submit_nowait(ones(1)), 1)
        held = server.submit_many([ones(2)] * 3)
        check(server.submit_nowait(ones(1)), 1)
        held += server.submit_many([ones(3)] * 5)
        until = time.perf_counter() + 60
        while server.stats().in_flight < 6 and time.perf_counter() < until:
            time.sleep(0.01)
        stats = server.stats()  # 3 more besides those held
        assert (stats.held, stats.in_flight, stats.waiting) == (6, 6, 2)
        assert server._loop._joining() == 0
        server._loop._max_in_flight = 2  # as if fewer were held when others joined
        assert server._loop._joining() == 0
        server._loop._max_in_flight = 3
        compiler.set()
        for k, each in enumerate(held):
            check(each, 2 if k < 3 else 3)


def test_what_fails_beside_the_model_ends_held_requests_and_not_the_server(
    compiler, monkeypatch
):
    add, fails = pending.PendingNodes.add, []

    def failing(self, *arguments):
        if fails:
            raise MemoryError("no room for the pool")
        return add(self, *arguments)

    monkeypatch.setattr(pending.PendingNodes, "add", failing)
    with eb.Server(eb.batch(model), PARAMS) as server:
        check(server.submit_nowait(ones(1)), 1)
        held = server.submit_nowait(ones(2))
        check(server.submit_nowait(ones(1)), 1)
        fails.append(True)
        with pytest.raises(MemoryError):
            server.submit_nowait(ones(1)).result(60)
        with pytest.raises(MemoryError):
            held.result(60)
        fails.clear()
        check(server.submit_nowait(ones(1)), 1)
        assert server.is_running


def test_parameters_on_a_device_compile_once():
    """The first program returns arenas of the same kind as its inputs."""
    params = jax.device_put(PARAMS, jax.devices()[0])
    with eb.Server(eb.batch(model), params) as server:
        before = waves()
        for n in (1, 1, 2, 2, 1):
            check(server.submit_nowait(ones(n)), n)
        assert waves() == (before[0] + 2, before[1] + 1)


def test_nothing_is_kept_of_requests_that_were_held():
    with eb.Server(eb.batch(functools.partial(asking)), PARAMS) as server:
        for n in (1, 2, 3):
            server.submit_nowait(ones(n)).result(60)
        loop = server._loop
        [own] = loop._generations
        until = time.perf_counter() + 60
        while own.runner.pending and time.perf_counter() < until:
            time.sleep(0.01)
        held = own._held
        assert not held and not held._next and not held._next_for
        assert not own.runner.pending._aside and not own.runner._aside
