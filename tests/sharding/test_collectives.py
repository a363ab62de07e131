"""Collective operations: there are few, and gradients equal those on one device."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import edbatch as eb
from edbatch.sharding import collectives

pytestmark = pytest.mark.devices

WIDTH = 6


@eb.cell
def leaf(params, word):
    return jnp.tanh(params["table"][word])


@eb.cell
def join(params, left, right):
    for weights, bias in params["layers"]:
        left = jnp.tanh(weights @ left + bias - right)
    return left


@eb.cell
def describe(params, state):
    narrow = (params["narrow"] * state.astype(jnp.bfloat16)).sum()
    return state.sum(), narrow, jnp.argmax(state), state[:2] + params["shift"]


def model(params, tree):
    if isinstance(tree, int):
        return leaf(params, np.int32(tree))
    return join(params, *(model(params, each) for each in tree))


def whole_model(params, tree):
    state = model(params, tree)
    return {"state": state, "facts": describe(params, state)}


def random_tree(rng, depth):
    if depth == 0 or rng.random() < 0.2:
        return int(rng.integers(50))
    return random_tree(rng, depth - 1), random_tree(rng, depth - 1)


def make_params(rng):
    def array(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    return {
        "table": array(50, WIDTH),
        "layers": [(array(WIDTH, WIDTH), array(WIDTH)) for _ in range(3)],
        "narrow": array(WIDTH).astype(jnp.bfloat16),
        "shift": jnp.int32(3),
        "unread": array(4),
    }


def loss(params, plan, function):
    found = function.apply(params, plan)
    total, narrow, best, first = found["facts"]
    weights = jnp.arange(1.0, 1 + total.shape[0])
    value = (weights * total**2).sum() + (first**3).sum()
    value += (narrow.astype(jnp.float32) * weights).sum()
    return value + (found["state"] * best[:, None]).sum()


def operands(text, operation):
    """The number of operands of each such operation in a compiled program."""
    lines = [line for line in text.splitlines() if f" {operation}(" in line]
    return [
        len(re.findall("%", line.split(f" {operation}(")[1].split(")")[0]))
        for line in lines
    ]


@pytest.mark.parametrize("most_bytes", [0, 100, 1 << 20])
@pytest.mark.parametrize("count", [1, 2, 9])
def test_gradients_of_all_dtypes_are_those_of_one_device(
    count, most_bytes, monkeypatch
):
    monkeypatch.setattr(collectives, "MOST_BYTES", most_bytes)
    rng = np.random.default_rng(count)
    params = make_params(rng)
    batched = eb.batch(whole_model, params=params)
    sharded = batched.sharded()
    trees = [random_tree(rng, 4) for _ in range(count)]

    def value_and_grad(function, params):
        grad = jax.value_and_grad(loss, allow_int=True)
        return jax.jit(lambda params, plan: grad(params, plan, function))(
            params, function.plan(trees)
        )

    expected = value_and_grad(batched, params)
    found = value_and_grad(sharded, sharded.replicate(params))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    for own, other in zip(*map(jax.tree.leaves, (found[1], expected[1])), strict=True):
        assert own.dtype == other.dtype
        if own.dtype == jax.dtypes.float0:
            continue
        tolerance = 2e-2 if own.dtype == jnp.bfloat16 else 1e-4
        np.testing.assert_allclose(
            np.float32(own), np.float32(other), rtol=tolerance, atol=tolerance
        )
    assert np.abs(found[1]["layers"][0][0]).max() > 0


def test_parameters_of_a_dtype_are_added_up_as_one_array():
    rng = np.random.default_rng(0)
    params = make_params(rng)
    sharded = eb.batch(model, params=params).sharded()
    plan = sharded.plan([random_tree(rng, 4) for _ in range(6)])

    def total(params, plan):
        return (sharded.apply(params, plan) ** 2).sum()

    step = jax.jit(jax.grad(total, allow_int=True))
    text = step.lower(sharded.replicate(params), plan).compile().as_text()
    # One for the float32 vector, and one for the only bfloat16 parameter.
    assert sum(operands(text, "all-reduce")) <= 2
    assert len(operands(text, "all-gather")) == 1
    assert not operands(text, "reduce-scatter")


def test_large_arrays_are_sent_as_they_are(monkeypatch):
    monkeypatch.setattr(collectives, "MOST_BYTES", 200)
    rng = np.random.default_rng(0)
    params = make_params(rng)
    leaves = jax.tree.leaves(params)
    found = collectives.buckets(leaves)
    assert len(found) == 1
    assert all(leaves[k].size * 4 <= 200 for k in found[0])
    assert len(found[0]) == sum(
        each.dtype == jnp.float32 and each.size * 4 <= 200 for each in leaves
    )


@eb.cell
def rotate(params, state):
    turned = state * params["turn"] + params["phase"].sum()
    return (turned * turned.conj()).real, turned


def rotated(params, tree):
    return rotate(params, model(params, tree))


@pytest.mark.parametrize("most_bytes", [0, 1 << 20])
@pytest.mark.parametrize("unread", [(), (3,), (2, 2)])
def test_gradients_of_complex_parameters_read_or_not(unread, most_bytes, monkeypatch):
    """XLA aborts the process when it sums constant complex zeros over devices."""
    monkeypatch.setattr(collectives, "MOST_BYTES", most_bytes)
    rng = np.random.default_rng(0)

    def array(*shape):
        return jnp.asarray(rng.normal(size=(2, *shape)).T @ [1, 1j], jnp.complex64).T

    params = {
        **make_params(rng),
        "turn": array(WIDTH),
        "phase": array(2, 2),
        "nobody's": jnp.ones(unread, jnp.complex64),
    }
    batched = eb.batch(rotated, params=params)
    trees = [random_tree(rng, 3) for _ in range(5)]

    def gradient(function):
        def loss(params, plan):
            length, turned = function.apply(params, plan)
            return (length**2).sum() + (turned * (1 + 2j)).real.sum()

        grad = jax.jit(jax.grad(loss, allow_int=True))
        return grad(params, function.plan(trees))

    expected = gradient(batched)
    found = gradient(batched.sharded())
    for name in ("turn", "phase", "nobody's"):
        assert found[name].dtype == jnp.complex64
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5)
    assert np.abs(found["turn"].imag).min() > 0
    assert not np.any(found["nobody's"])


def test_gathered_arrays_come_back_in_their_shapes_and_dtypes():
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))
    arrays = (
        jnp.arange(12.0).reshape(4, 3),
        jnp.arange(4),
        jnp.arange(8.0).reshape(4, 2, 1),
        jnp.arange(4.0, dtype=jnp.bfloat16),
        jnp.zeros((4, 0)),
        jnp.arange(4) * (1 + 2j),
        jnp.arange(8).reshape(4, 2) * (3 - 1j),
    )
    found = jax.jit(
        jax.shard_map(
            lambda own: collectives.gather(own, "d"),
            mesh=mesh,
            in_specs=(P("d"),),
            out_specs=P(),
            check_vma=False,
        )
    )(arrays)
    for own, expected in zip(found, arrays, strict=True):
        assert own.dtype == expected.dtype
        np.testing.assert_array_equal(own, expected)
