"""Tests packing of Flax's own cells."""

import jax
import jax.numpy as jnp
import pytest
from flax import linen, nnx
from packed_cells import assert_packed, count_products, normal

pytestmark = pytest.mark.default_flags

HIDDEN, FEATURES = 6, 4
CARRIES = {"GRUCell": normal(1, HIDDEN)}
LSTM_CARRY = (normal(1, HIDDEN), normal(2, HIDDEN))


def not_zero(tree):
    """Nonzero parameters of the same shapes, biases included."""
    return jax.tree.map(lambda x: normal(x.size, *x.shape, dtype=x.dtype), tree)


def linen_cell(name, **options):
    module = getattr(linen, name)(HIDDEN, **options)
    carry, x = CARRIES.get(name, LSTM_CARRY), normal(0, FEATURES)
    params = not_zero(module.init(jax.random.key(0), carry, x))
    return module.apply, params, carry, x


def nnx_cell(name, **options):
    cell = getattr(nnx, name)(FEATURES, HIDDEN, rngs=nnx.Rngs(0), **options)
    graph, state = nnx.split(cell)
    carry, x = CARRIES.get(name, LSTM_CARRY), normal(0, FEATURES)
    return lambda s, *inputs: nnx.merge(graph, s)(*inputs), not_zero(state), carry, x


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [("LSTMCell", 8, 1), ("OptimizedLSTMCell", 2, 1), ("GRUCell", 6, 2)],
)
def test_linen(name, before, after):
    cell = linen_cell(name)
    packed = assert_packed(*cell)
    assert (packed.before.num_products, packed.after.num_products) == (before, after)
    assert count_products(packed, *cell[1:]) == after


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [("LSTMCell", 8, 1), ("OptimizedLSTMCell", 2, 1), ("GRUCell", 2, 2)],
)
def test_nnx(name, before, after):
    cell = nnx_cell(name)
    packed = assert_packed(*cell)
    assert (packed.before.num_products, packed.after.num_products) == (before, after)
    assert count_products(packed, *cell[1:]) == after


def test_a_cell_that_computes_in_half_precision():
    # Sums of products are rounded once instead of three times.
    cell = linen_cell("LSTMCell", dtype=jnp.bfloat16)
    packed = assert_packed(*cell, rtol=0.05, atol=0.05)
    assert packed.after.num_products == 1
    assert {each.dtype.name for each in packed.pack(cell[1])} == {"bfloat16"}
