"""Tests calls inside functions that JAX traces, where plans are constants."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb

pytestmark = pytest.mark.usefixtures("quick_compiles")


@eb.cell
def scaled(params, x):
    return params["h"] * x


def lists(params, n):
    return [scaled(params, float(k)) for k in range(n)]


def inputs(params, n):
    """Also returns values that no cell computed: arrays, numbers and lists of them."""
    return scaled(params, 2.0), [n] * n, n, [1.5] * n, np.full(2, n, np.float32)


PARAMS = {"h": jnp.arange(3.0)}


def assert_same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for own, expected in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_array_equal(own, expected)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("model", [lists, inputs])
def test_direct_calls_that_pad_the_number_of_instances(model, count):
    batched = eb.batch(model)
    minibatch = [1 + k % 3 for k in range(count)]
    expected = batched(PARAMS, minibatch)
    assert_same(jax.jit(lambda params: batched(params, minibatch))(PARAMS), expected)

    def loss(params):
        return sum(
            each.sum()
            for each in jax.tree.leaves(batched(params, minibatch))
            if jnp.issubdtype(each.dtype, jnp.floating)
        )

    scales = sum(sum(range(n)) if model is lists else 2.0 for n in minibatch)
    for found in (jax.grad(loss)(PARAMS), jax.jit(jax.grad(loss))(PARAMS)):
        np.testing.assert_allclose(found["h"], np.full(3, scales))


@pytest.mark.parametrize("model", [lists, inputs])
def test_plans_that_a_function_closes_over(model):
    batched = eb.batch(model)
    plan = batched.plan([1, 2, 3], params=PARAMS)
    found = jax.jit(lambda params: batched.apply(params, plan))(PARAMS)
    assert_same(found, batched.apply(PARAMS, plan))
