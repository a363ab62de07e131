"""Tests that padded lists keep the values in the first row of arenas and pools."""

import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb


@eb.cell
def leaf(params, word):
    return params * (word + 1.0)


@eb.cell(padded=("items",))
def total(params, items, mask):
    return params * jnp.where(mask, items, 0.0).sum(), mask.sum()


def of_operands(params, words):
    return total(params, [leaf(params, each) for each in words])


def of_inputs(params, words):
    return total(params, [np.float32(each) for each in words])


@pytest.mark.parametrize("model", [of_operands, of_inputs])
def test_the_first_row_is_not_missing(model):
    params = jnp.float32(2)
    minibatch = [[3.0], [5.0, 7.0, 1.0], [4.0, 2.0]]
    batched = eb.batch(model, params=params)
    sums, counts = batched(params, minibatch)
    assert counts.tolist() == [1, 3, 2]
    expected = [float(model(params, each)[0]) for each in minibatch]
    np.testing.assert_allclose(sums, expected, rtol=1e-6)
    eb.verify(batched, params, minibatch)
