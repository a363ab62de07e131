"""Tests static arguments: which constants are equal, so that nodes share a type."""

import copy
import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.graph.constants import constant_key
from edbatch.graph.context import jitted_cells


@dataclass(frozen=True)
class Size:
    of: object


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (2, 2.0),
        (1, True),
        (0.0, -0.0),
        (np.float32(2), 2.0),
        (0j, -0j),
        (np.float32(0), np.float32(-0.0)),
        ((1, (2, 3)), (1, (2.0, 3))),
        (frozenset({1}), frozenset({True})),
        ("1", 1),
        (Size(2), Size(2.0)),
        (Size((1,)), Size((True,))),
    ],
)
def test_constants_that_compute_differently_are_told_apart(one, other):
    assert constant_key(one) != constant_key(other)


@pytest.mark.parametrize(
    "value",
    [
        3,
        0.1,
        math.nan,
        "relu",
        None,
        (1, ("a", 2.5)),
        frozenset({1, "b"}),
        Size(3),
        Size,
        math.tanh,
    ],
)
def test_equal_constants_are_one(value):
    again = copy.deepcopy(value)
    assert constant_key(value) == constant_key(again)
    assert hash(constant_key(value)) == hash(constant_key(again))


@eb.cell(static=("by",))
def divide(params, x, by):
    return params["w"] * (x // by if type(by) is int else jnp.arctan2(x, by))


@pytest.mark.parametrize("pair", [(2, 2.0), (2.0, 2), (0.0, -0.0), (1, True)])
def test_each_constant_computes_its_own(pair):
    params = {"w": jnp.float32(3)}
    instances = [(np.float32(3.5), by) for by in pair]

    def model(params, instance):
        return divide(params, *instance)

    batched = eb.batch(model, params=params)
    expected = [model(params, each) for each in instances]
    np.testing.assert_allclose(batched(params, instances), expected, rtol=1e-6)
    with jitted_cells():
        compiled = [model(params, each) for each in instances]
    np.testing.assert_allclose(compiled, expected, rtol=1e-6)


def test_where_cells_are_compiled_constants_need_a_hash_too():
    with jitted_cells(), pytest.raises(eb.CellError, match="pass a tuple in place of"):
        divide({"w": jnp.float32(3)}, np.float32(1), by=[2])


def test_not_a_number_is_compiled_once():
    traced = []

    @eb.cell(static=("by",))
    def shift(x, by):
        traced.append(by)
        return x + by

    with jitted_cells():
        for by in (math.nan, float("nan"), np.float64("nan")):
            assert math.isnan(shift(jnp.float32(1), by))
    assert len(traced) == 2, "a float, and a scalar of NumPy"


def test_not_a_number_is_one_constant():
    def model(params, count):
        return [divide(params, np.float32(1), float("nan")) for _ in range(count)][-1]

    batched = eb.batch(model, params={"w": jnp.float32(3)})
    assert batched.record(3).structure.num_types == 1
