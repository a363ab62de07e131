"""Sparse gradients of tables, as rows and values, on several devices."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch import sparse

pytestmark = pytest.mark.devices


@eb.cell
def leaf(params, word):
    return jnp.tanh(params["embedding"][word])


@eb.cell
def join(params, left, right):
    return jnp.tanh(params["W"] @ left - right)


def encode(params, tree):
    if isinstance(tree, int):
        return leaf(params, np.int32(tree))
    return join(params, *(encode(params, child) for child in tree))


def random_tree(rng, depth):
    if depth == 0 or rng.random() < 0.2:
        return int(rng.integers(997))
    return random_tree(rng, depth - 1), random_tree(rng, depth - 1)


@pytest.mark.parametrize("jit", [jax.jit, lambda step: step], ids=["jit", "eager"])
@pytest.mark.parametrize("count", [1, 2, 13])
def test_the_same_gradient_as_on_one_device(count, jit):
    rng = np.random.default_rng(count)
    params = {
        "embedding": jnp.asarray(rng.normal(size=(997, 5)), jnp.float32),
        "W": jnp.asarray(rng.normal(size=(5, 5)), jnp.float32),
    }
    batched = eb.batch(encode, params=params)
    sharded = batched.sharded()
    trees = [random_tree(rng, 4) for _ in range(count)]

    def loss(params, plan, run):
        return jnp.sum(run.apply(params, plan) ** 2)

    step = sparse.value_and_grad(loss, "embedding")
    plan, whole = sharded.plan(trees), batched.plan(trees)
    on_all = jit(lambda params, plan: step(params, plan, sharded))
    value, found = on_all(sharded.replicate(params), plan)
    expected = jax.value_and_grad(lambda params: loss(params, whole, batched))(params)
    np.testing.assert_allclose(value, expected[0], rtol=1e-5)
    for name, own in expected[1].items():
        dense = found[name] if name == "W" else found[name].to_dense()
        np.testing.assert_allclose(dense, own, rtol=2e-5, atol=2e-6)
    assert len(found["embedding"].rows) % 2 == 0


def test_a_table_that_no_device_looks_up():
    params = {"embedding": jnp.ones((7, 5)), "W": jnp.eye(5), "other": jnp.ones((9, 2))}
    sharded = eb.batch(encode, params=params).sharded()
    step = sparse.value_and_grad(
        lambda params, plan: jnp.sum(sharded.apply(params, plan)),
        ("embedding", "other"),
    )
    _, found = jax.jit(step)(params, sharded.plan([((1, 2), 3), 4]))
    assert found["other"].to_dense().tolist() == np.zeros((9, 2)).tolist()
    assert found["embedding"].to_dense().any()


def test_devices_do_not_add_up_arrays_of_the_size_of_the_table():
    params = {"embedding": jnp.ones((997, 5)), "W": jnp.eye(5)}
    sharded = eb.batch(encode, params=params).sharded()
    plan = sharded.plan([((1, 2), 3), 4, (5, 6)])

    def loss(params, plan):
        return jnp.sum(sharded.apply(params, plan))

    def added_up(step):
        text = jax.jit(step).lower(params, plan).compile().as_text()
        lines = [each for each in text.splitlines() if " all-reduce(" in each]
        shapes = [re.findall(r"f32\[([\d,]*)\]", each.split("(%")[0]) for each in lines]
        return sum(
            math.prod(map(int, shape.split(","))) for own in shapes for shape in own
        )

    assert added_up(jax.value_and_grad(loss)) == 997 * 5 + 5 * 5
    assert added_up(sparse.value_and_grad(loss, "embedding")) == 5 * 5
