"""Tests that entries of an array that a cell indexes are members of a family."""

import importlib
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layered_models import (
    OPTIONS,
    SIZES,
    choices,
    families,
    make_mixture,
    mixture,
    start,
)

import edbatch as eb

pytestmark = pytest.mark.usefixtures("quick_compiles")


@pytest.mark.parametrize("name", ["default", "as it is written", "remat"])
def test_arrays_that_a_cell_indexes(name):
    params = make_mixture(seed=1)
    own = eb.batch(mixture, params=params, sizes=SIZES, **OPTIONS[name])
    first, second = choices(0), choices(1)
    plans = [own.plan(each) for each in (first, second)]
    assert families(plans[0]) == {"choose": 6}
    assert plans[1].shape.program.types is plans[0].shape.program.types
    for each in (first, second, first):
        eb.verify(own, params, each)


def test_experts_with_one_or_two_inputs_each():
    params, instances = make_mixture(experts=90), choices(0, 64, experts=90)
    own = eb.batch(mixture, params=params)
    loops = own.plan(instances).shape.program.loops
    assert 1 in {each.width for each in loops}
    eb.verify(own, params, instances)


def test_other_indices_are_another_plan():
    params = make_mixture(seed=1)
    own = eb.batch(mixture, params=params, sizes=SIZES)
    _, vector = choices()[1]
    for chosen in ([0, 1, 2], [2, 1, 0], [0, 1, 2], [5, 5, 5]):
        expected = mixture(params, (chosen, vector))
        found = own(params, [(chosen, vector)])[0]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_thread_that_was_held_up_plans_for_its_own_indices(monkeypatch):
    """It looked for a plan before another thread made indices part of plans' keys."""
    planning = importlib.import_module("edbatch.planning")
    params = make_mixture(seed=1)
    own = eb.batch(mixture, params=params, sizes=SIZES)
    vectors = [each for _, each in choices()]
    one, other = ([(k, each) for each in vectors] for k in ([0, 1, 2], [2, 1, 0]))
    has_looked, go_on = threading.Event(), threading.Event()

    def held_up(*parts, key=planning.plan_identity):
        found = key(*parts)
        if threading.current_thread() is thread and not has_looked.is_set():
            has_looked.set()
            assert go_on.wait(60)
        return found

    monkeypatch.setattr(planning, "plan_identity", held_up)
    plans = []
    thread = threading.Thread(target=lambda: plans.append(own.plan(other)))
    thread.start()
    assert has_looked.wait(60)
    plans.append(own.plan(one))
    go_on.set()
    thread.join(60)
    for plan, instances in ((plans[0], one), (plans[1], other)):
        found = own.apply(params, plan)
        expected = [mixture(params, each) for each in instances]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@eb.cell
def odd(mixture, k, state):
    return state @ mixture["W"][k] + mixture["V"].sum() * k


@eb.cell
def shifted(mixture, k, state):
    return state @ mixture["W"][k // 2] + mixture["V"][(k + 1) % 6, 0]


def test_entries_that_other_rules_select_are_gathered():
    params = make_mixture()

    def model(params, instance):
        [k, *_], vector = instance
        state = odd(params["mixture"], k, start(vector))
        return shifted(params["mixture"], k, state)

    own = eb.batch(model, params=params, sizes=SIZES)
    assert families(own.plan(choices())) == {"odd": 6}
    eb.verify(own, params, choices())


@pytest.mark.devices
def test_two_devices():
    params = make_mixture(seed=2)
    own = eb.batch(mixture, params=params, sizes=SIZES)
    sharded = own.sharded()
    instances = choices(3)
    plan = sharded.plan(instances)

    def total(params, run, plan):
        return jnp.sin(run.apply(params, plan)).sum()

    found = jax.jit(jax.value_and_grad(lambda p: total(p, sharded, plan)))(params)
    one = own.plan(instances)
    expected = jax.jit(jax.value_and_grad(lambda p: total(p, own, one)))(params)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@eb.cell
def unknown_is_first(mixture, k, state):
    return state @ mixture["W"][jnp.where(k == 999, 0, k)]


@eb.cell
def narrowed(mixture, k, state):
    return state @ mixture["W"][k.astype(np.uint8)]


@pytest.mark.parametrize("cell", [unknown_is_first, narrowed])
def test_an_index_that_is_another_far_away(cell):
    params, vector = make_mixture(seed=1), np.ones(64, np.float32)

    def model(params, number):
        return cell(params["mixture"], number, start(vector))

    own = eb.batch(model, params=params, sizes=SIZES)
    instances = [np.int32(k) for k in (0, 3, 999, 257, 1)]
    eb.verify(own, params, instances)
    assert families(own.plan(instances)) == {}


def test_the_first_call_may_be_inside_of_a_compiled_function():
    params, (first, second) = jax.device_put(make_mixture(seed=1)), choices(0)[:2]
    own = eb.batch(mixture, params=params, sizes=SIZES)
    found = jax.jit(lambda params: own(params, [first, second]))(params)
    expected = [mixture(params, first), mixture(params, second)]
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-5, atol=1e-5)


def test_types_are_met_after_one_that_indexes_parameters():
    @eb.cell
    def entry(params, k):
        return params[k].sum()

    @eb.cell
    def total(params, x):
        return x.sum()

    def model(params, length):
        found = entry(params, length % 4)
        return total(params, np.ones(length, np.float32)) if length else found

    batched = eb.batch(model, params=jnp.ones((4, 128, 64)))
    assert batched.plan([0, 0]).num_instances == 2
    assert batched.states.default().planning.index_values(batched.graph([0]))
    assert batched.plan([3, 3]).num_instances == 2  # of new types
