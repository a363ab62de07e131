"""Tests the warning for cells that are called with arrays of many shapes."""

import itertools
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.errors import ManyTypesWarning

PARAMS = jnp.float32(2)


@eb.cell
def total(params, x):
    return jnp.sum(params * x)


@eb.cell
def both(params, x, y):
    return jnp.sum(params * x) + jnp.sum(y)


def record(model, count=40):
    batched = eb.batch(model, params=PARAMS)
    batched.record_all([*range(1, count + 1)])
    return batched


def test_each_instance_with_a_length_of_its_own():
    with pytest.warns(ManyTypesWarning) as found:
        record(lambda params, n: total(params, np.ones(n, np.float32)))
    [message] = [str(each.message) for each in found]
    assert (
        "cell 'total' was called with arrays of 16 different shapes ([1], " in message
    )
    assert "[4], ...; test_input_shapes.py:" in message
    assert "or pass their elements as a list that is declared as padded" in message


def test_shapes_of_several_arrays():
    with pytest.warns(ManyTypesWarning, match="'both' was called with arrays of 16"):
        record(lambda params, n: both(params, np.ones(n % 5), np.ones((n % 7, 2))))


def sized(params, n):
    return total(params, np.ones(n % 15 + 1, np.float32))


def at_once(params, n):
    """All shapes occur in each instance, as with tables of several sizes."""
    return [total(params, np.ones(k, np.float32)) for k in range(1, 30)]


def numbers(params, n):
    return both(params, float(n), n)


def beside_a_number(params, n):
    """Few lengths, next to a number with many values."""
    return both(params, np.ones(n % 3, np.float32), n)


CELLS = [eb.cell(lambda params, x: jnp.sum(params * x), name="one") for _ in range(9)]


def of_one_name(params, n):
    """Each cell of the name has few shapes."""
    return CELLS[n % 9](params, np.ones(n, np.float32))


@pytest.mark.parametrize(
    "model", [sized, at_once, numbers, beside_a_number, of_one_name]
)
def test_few_shapes_are_not_warned_of(model):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ManyTypesWarning)
        record(model)


def test_what_was_warned_of_is_recorded_all_the_same():
    counter = itertools.count(1)
    with pytest.warns(ManyTypesWarning):
        batched = record(lambda params, n: total(params, np.ones(next(counter))), 20)
    assert len(batched.types) == 20
