"""Tests that minibatches that draw nothing need no key, whatever ran before."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb

KEY = jax.random.key(3)
NO_KEY = r"cell 'noisy' takes a key, 'rng', but the minibatch is run without one"


@eb.cell
def scaled(params, x):
    return params * x


@eb.cell
def noisy(params, x, rng):
    return params * x + jax.random.normal(rng, x.shape)


@eb.cell
def dropped(params, x, rng=None):
    return params * x if rng is None else params * x * jax.random.bernoulli(rng)


CELLS = {"scaled": scaled, "noisy": noisy, "dropped": dropped}


def model(params, instance):
    for name, x in instance:
        last = CELLS[name](params, jnp.float32(x) if name == "scaled" else x)
    return last


def mixed(batched, params):
    """Runs a minibatch of all cells, so that later programs have loops for all."""
    names = ["scaled", "noisy", "dropped"]
    return batched(params, [[(name, np.float32(1))] for name in names], rng=KEY)


PLAIN = [[("scaled", np.float32(2))], [("dropped", np.float32(5))]]


@pytest.fixture(params=["one device", "sharded"])
def batched(request):
    made = eb.batch(model)
    return made.sharded() if request.param == "sharded" else made


def test_a_minibatch_that_draws_nothing_needs_no_key(batched):
    params = jnp.float32(3)
    assert batched(params, PLAIN).tolist() == [6, 15]
    mixed(batched, params)
    assert batched(params, PLAIN).tolist() == [6, 15]
    plan = batched.plan(PLAIN, params=params)
    assert batched.apply(params, plan).tolist() == [6, 15]
    grown = jax.grad(lambda p: batched.apply(p, plan).sum())(params)
    assert grown == 2 + 5


def test_one_that_draws_needs_one(batched):
    params = jnp.float32(3)
    drawing = [*PLAIN, [("noisy", np.float32(1))]]
    for _ in range(2):
        with pytest.raises(eb.PlanError, match=NO_KEY):
            batched(params, drawing)
        with pytest.raises(eb.PlanError, match=NO_KEY):
            jax.grad(lambda p: batched(p, drawing).sum())(params)
    assert batched(params, PLAIN).tolist() == [6, 15]
    assert np.isfinite(batched(params, drawing, rng=KEY)).all()


def test_the_default_of_a_key_is_taken_beside_cells_that_need_one():
    params, batched = jnp.float32(3), eb.batch(model)
    mixed(batched, params)
    some = [[("dropped", np.float32(k))] for k in range(1, 40)]
    found = batched(params, some)
    np.testing.assert_array_equal(found, [3.0 * k for k in range(1, 40)])
    assert (np.asarray(batched(params, some, rng=KEY)) == 0).any(), "some are dropped"


def test_a_traced_plan_may_draw_so_it_needs_a_key():
    params, batched = jnp.float32(3), eb.batch(model)
    mixed(batched, params)
    plan = batched.plan(PLAIN, params=params)
    step = jax.jit(lambda p, plan, key: batched.apply(p, plan, rng=key))
    with pytest.raises(eb.PlanError, match=NO_KEY):
        step(params, plan, None)
    assert step(params, plan, KEY)[0] == 6
    closed_over = jax.jit(lambda p: batched.apply(p, plan))
    assert closed_over(params).tolist() == [6, 15]


def test_instances_that_ask_for_values():
    def asking(params, instance):
        value = model(params, instance)
        return eb.value(value) + 1

    batched, params = eb.batch(asking), jnp.float32(3)
    with eb.use_tiers("coarse"):
        assert batched(params, PLAIN).tolist() == [7, 16]
        with pytest.raises(eb.PlanError, match=NO_KEY) as caught:
            batched(params, [*PLAIN, [("noisy", np.float32(1))]])
        assert "instance 2 of the minibatch" in "".join(caught.value.__notes__)
        batched(params, [[("noisy", np.float32(1))]], rng=KEY)
        assert batched(params, PLAIN).tolist() == [7, 16]
