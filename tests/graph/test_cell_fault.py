"""Tests errors of exceptions in cells: they name the cell, line and available keys."""

import json
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import pytest

import edbatch as eb

PARAMS = {"encoder": {"weight": jnp.ones(3), "bias": jnp.ones(3)}, "scale": 1.0}
WORDS = MappingProxyType({"the": 1, "dog": 2})


@eb.cell
def nested(params, x):
    return params["encoder"]["wieght"] * x


@eb.cell
def in_an_argument(params, pair):
    return pair["left"][0]["hiden"]


@eb.cell
def global_dict(x):
    return WORDS["dgo"] * x


@eb.cell
def number(x):
    return {1: x, 2: x}[3]


def helper(part):
    return part["weigth"]


@eb.cell
def in_a_helper(params, x):
    return helper(params["encoder"]) * x


@eb.cell
def in_a_library(x):
    return json.JSONEncoder().encode({"a": pop({})})


def pop(empty):
    return empty.pop("b")


@eb.cell
def attribute(params, x):
    return params["encoder"].weight


@eb.cell
def shapes(params, x):
    return params["encoder"]["weight"] + jnp.ones(2)


def line_of(function: Any, offset: int = 2) -> int:
    return function.__code__.co_firstlineno + offset


PAIR = {"left": [{"hidden": 1.0, "cell": 2.0}]}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            lambda params, x: nested(params, x),
            r"cell 'nested' .*: KeyError: there is no key 'wieght'"
            rf" \(test_cell_fault\.py:{line_of(nested.function)}\), did you mean"
            r" 'weight'\?; a cell must be",
        ),
        (
            lambda params, x: in_an_argument(params, PAIR),
            rf"'hiden' \(.*:{line_of(in_an_argument.function)}\), did you mean 'hidd",
        ),
        (
            lambda params, x: global_dict(x),
            rf"'dgo' \(.*:{line_of(global_dict.function)}\), did you mean 'dog'",
        ),
        (
            lambda params, x: number(x),
            rf"there is no key 3 \(.*:{line_of(number.function)}\); a cell must be",
        ),
        (
            lambda params, x: in_a_helper(params, x),
            rf"'in_a_helper' .* 'weigth' \(.*:{line_of(helper, 1)}\), did you mean 'w",
        ),
        (
            lambda params, x: in_a_library(x),
            rf"there is no key 'b' \(.*:{line_of(pop, 1)}\); a cell must be",
        ),
        (
            lambda params, x: attribute(params, x),
            rf"AttributeError: .*'weight' \(.*:{line_of(attribute.function)}\); a cell",
        ),
        (
            lambda params, x: shapes(params, x),
            rf"\(3,\).* \(.*:{line_of(shapes.function)}\); a cell must be",
        ),
    ],
)
def test_the_line_and_the_nearest_key_are_named(model: Any, message: str) -> None:
    batched = eb.batch(model)
    with pytest.raises(eb.CellError, match=message) as caught:
        batched(PARAMS, [1.0, 2.0])
    assert isinstance(caught.value.__cause__, Exception)


def test_parameters_of_another_name_have_a_line() -> None:
    batched = eb.batch(lambda params, x: nested(params["encodr"], x))
    with pytest.raises(
        eb.RecordingError,
        match=r"at params have no 'encodr' \(test_cell_fault\.py:\d+\); did you mean '",
    ):
        batched(PARAMS, [1.0])
