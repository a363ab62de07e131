"""Arenas of waves grow, and rows of instances that have ended are used again."""

import jax
import numpy as np
import pytest
from asking_models import embed, make_params, score, turn

import edbatch as eb
from edbatch.stream import wave_sizes


@pytest.fixture(autouse=True)
def small_arenas(monkeypatch):
    eb.use_tiers("coarse")
    smallest = dict(wave_sizes._SMALLEST, arena=16)
    monkeypatch.setattr(wave_sizes, "_SMALLEST", smallest)
    yield
    eb.use_tiers("fine")


def walk(params, instance):
    """Takes so many steps; some instances end early, others go on for long."""
    word, steps = instance
    first = state = embed(params, word)[0]
    for k in range(steps):
        scores = eb.value(score(params, state))
        state = turn(params, state, 1.0 if scores[0] > 0 else 0.5 + k % 3)
    return first, state


def sample(count, longest, seed=0):
    rng = np.random.default_rng(seed)
    return [(int(rng.integers(12)), int(rng.integers(longest))) for _ in range(count)]


def check(outputs, params, instances):
    for k, each in enumerate(instances):
        for found, expected in zip(outputs, walk(params, each), strict=True):
            np.testing.assert_allclose(found[k], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_moved_values_are_the_same_values(seed):
    params, instances = make_params(seed), sample(20, 25, seed)
    found = eb.batch(walk).rollout(params, instances)
    check(found.outputs, params, instances)
    assert found.report.moves >= 2


def test_arenas_hold_what_is_in_flight():
    """One long walk beside many short ones that come and go needs few rows."""
    params = make_params()
    batched = eb.batch(walk)
    instances = [(1, 60), *sample(3, 3)]
    batched.rollout(params, instances)
    (sizes,) = batched.states.default().waves.values()
    before = dict(sizes.bucket.sizes)
    found = batched.rollout(params, instances * 2)
    check(found.outputs, params, instances * 2)
    for name, size in sizes.bucket.sizes.items():
        assert size <= 4 * before[name]


def test_waves_of_a_warm_model_compile_nothing():
    params = make_params()
    batched = eb.batch(walk)
    for seed in range(3):
        batched(params, sample(32, 20, seed))
    with eb.set_stance("fail_on_compile"):
        for count in (32, 31, 8, 1, 2, 3, 20):
            instances = sample(count, 20, seed=count)
            check(batched(params, instances), params, instances)


@pytest.mark.parametrize("block", [True, False])
def test_a_warm_up_compiles_what_waves_need(block):
    params = make_params()
    batched = eb.batch(walk)
    with eb.use_tiers("auto"):
        done = batched.warm_up(sample(32, 20), [32, 4], params=params, block=block)
        assert done.wait() and done.programs >= 1
        with eb.set_stance("fail_on_compile"):
            for count in (32, 4, 17, 1):
                instances = sample(count, 20, seed=count)
                check(batched(params, instances), params, instances)
    eb.wait_for_compilations()
    ran = [each.tier for each in eb.compile_report() if "waves" in each.function]
    assert ran[-1] == "fine"


def test_many_instances_in_flight():
    params = make_params()
    instances = [(k % 12, k % 3) for k in range(10_000)]
    outputs = eb.batch(walk)(params, instances)
    for k in np.random.default_rng(0).integers(10_000, size=20).tolist():
        one = walk(params, instances[k])[1]
        np.testing.assert_allclose(outputs[1][k], one, rtol=1e-4, atol=1e-5)


def test_wide_waves_after_narrow_ones():
    params = make_params()
    batched = eb.batch(walk)
    for count in (1, 70, 3, 200):
        instances = sample(count, 6, count)
        check(batched(params, instances), params, instances)


def test_deep_recursion():
    def model(params, depth):
        def visit(state, depth):
            if not depth:
                return eb.value(score(params, state))[0], state
            found, state = visit(turn(params, state, 1.0), depth - 1)
            return found, turn(params, state, 1.0 if found > 0 else 0.5)

        return visit(embed(params, 1)[0], depth)[1]

    params = make_params()
    depths = [300, 0, 7]
    found = eb.batch(model)(params, depths)
    for one, depth in zip(found, depths, strict=True):
        expected = jax.tree.map(np.asarray, model(params, depth))
        np.testing.assert_allclose(one, expected, rtol=1e-3, atol=1e-4)
