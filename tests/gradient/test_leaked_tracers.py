"""JAX's leak check finds no tracers of edbatch, so users can find their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb

WIDTH = 4


@eb.cell
def leaf(params, word):
    return params["table"][word]


@eb.cell
def join(params, left, right):
    both = jnp.concatenate([left, right])
    return jnp.tanh(params["weights"] @ both + params["bias"])


@eb.cell(padded=("parts",))
def total(params, parts, mask):
    scores = jnp.where(mask, parts @ params["bias"], -jnp.inf)
    return jax.nn.softmax(scores) @ parts


@eb.cell
def layer(weights, state):
    return jax.nn.relu(weights @ state)


@eb.cell
def noisy(params, state, rng):
    return state * jax.random.bernoulli(rng, 0.5, state.shape)


def tree(params, instance):
    if isinstance(instance, int):
        return leaf(params, np.int32(instance))
    return join(params, *(tree(params, each) for each in instance))


def padded(params, instance):
    count = instance if isinstance(instance, int) else 4
    return total(params, [leaf(params, np.int32(k)) for k in range(1 + count)])


def stacked(params, instance):
    state = tree(params, instance)
    for weights in params["layers"]:
        state = layer(weights, state)
    return state


def dropping(params, instance):
    return noisy(params, tree(params, instance))


def make_params():
    keys = iter(jax.random.split(jax.random.key(0), 7))
    return {
        "table": jax.random.normal(next(keys), (6, WIDTH)),
        "weights": jax.random.normal(next(keys), (WIDTH, 2 * WIDTH)),
        "bias": jax.random.normal(next(keys), (WIDTH,)),
        "layers": [jax.random.normal(next(keys), (WIDTH, WIDTH)) for _ in range(4)],
    }


INSTANCES = [((0, 1), 2), 3, (4, (5, 0))]


@pytest.mark.parametrize(
    ("model", "tiers"),
    [(tree, "fine"), (padded, "coarse"), (stacked, "coarse"), (dropping, "fine")],
)
def test_forward_and_gradient(model, tiers):
    params = make_params()
    key = jax.random.key(1) if model is dropping else None

    def loss(params, plan):
        return (batched.apply(params, plan, rng=key) ** 2).sum()

    with jax.checking_leaks(), eb.use_tiers(tiers):
        batched = eb.batch(model, params=params)
        plan = batched.plan(INSTANCES)
        value = eb.jit(loss)(params, plan)
        compiled = eb.jit(jax.grad(loss))(params, plan)
        outside = jax.grad(loss)(params, plan)
        inside = jax.jit(jax.value_and_grad(loss))(params, plan)
    np.testing.assert_allclose(inside[0], value, rtol=1e-5)
    for found in (compiled, outside):
        for own, other in zip(*map(jax.tree.leaves, (found, inside[1])), strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-5)


def test_rows_of_a_table():
    params = make_params()

    def loss(params, plan):
        return (batched.apply(params, plan) ** 2).sum()

    with jax.checking_leaks():
        batched = eb.batch(tree, params=params)
        plan = batched.plan(INSTANCES)
        both = eb.sparse.value_and_grad(loss, "table")
        value, gradient = eb.jit(both)(params, plan)
    np.testing.assert_allclose(value, loss(params, plan), rtol=1e-5)
    expected = jax.grad(loss)(params, plan)
    np.testing.assert_allclose(gradient["bias"], expected["bias"], rtol=1e-4)


def test_values_on_the_way():
    def asking(params, instance):
        state = tree(params, instance)
        return state if eb.value(state)[0] > 0 else join(params, state, state)

    params = make_params()
    with jax.checking_leaks():
        found = eb.batch(asking)(params, INSTANCES)
    expected = jnp.stack([asking(params, each) for each in INSTANCES])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
