"""Tests digests of parameters, which identify batches of other processes."""

import functools
from dataclasses import dataclass, field
from typing import Any

import jax
import pytest

from edbatch.graph.parameter_digest import parameter_digest

ARRAY = jax.ShapeDtypeStruct((2, 3), "float32")


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=["static"]
)
@dataclass
class Layer:
    w: Any
    static: Any = field(default=None)


def digest(static):
    return parameter_digest({"layer": Layer(ARRAY, static)})


def gelu(x, approximate):
    return x if approximate else -x


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        ({"a": 1, "b": 2}, {"a": 2, "b": 1}),
        ((1, 2), (2, 1)),
        (functools.partial(gelu, approximate=True), functools.partial(gelu)),
        (functools.partial(max, 1), functools.partial(max, 2)),
        (functools.partial(max, 1), functools.partial(min, 1)),
        ("a" * 2000, "a" * 1999 + "b"),
    ],
)
def test_static_fields_that_differ(one, other):
    assert digest(one) != digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1, "a"}, {"a", 1}),
        (functools.partial(max, 1), functools.partial(max, 1)),
    ],
)
def test_static_fields_that_are_equal(one, other):
    assert digest(one) == digest(other)


def test_parts_that_are_shared_are_looked_at_once():
    shared: Any = 1
    for _ in range(60):
        shared = shared, shared
    assert digest(shared) == digest(shared)  # otherwise it would take exponential time
