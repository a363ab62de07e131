"""Tests the warning for static arguments that make many types."""

import dataclasses
import enum
import functools
import itertools
import math
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.errors import ManyTypesWarning

PARAMS = {"w": np.eye(3, dtype=np.float32)}


@eb.cell
def act(weights, x, f):
    return f(x @ weights)


@eb.cell
def act_of_pair(weights, x, both):
    return both["f"](x @ weights)


@eb.cell
def act_of_rest(weights, x, *rest):
    for f in rest:
        x = f(x @ weights)
    return x


@eb.cell(static=("scale",))
def scaled(weights, x, *, scale):
    return scale.factor * (x @ weights)


@eb.cell(static=("times",))
def grown(weights, x, times):
    return times * (x @ weights)


class Scale:
    def __init__(self, factor):
        self.factor = factor


class EqualScale(Scale):
    def __eq__(self, other):
        return self.factor == other.factor

    def __hash__(self):
        return hash(self.factor)


def chain(call):
    def model(params, length):
        x = np.ones(3, np.float32)
        for _ in range(length):
            x = call(params["w"], x)
        return x

    return model


def clip(low, x):
    return jnp.maximum(low, x)


@dataclasses.dataclass(frozen=True)
class Options:
    f: Callable

    def apply(self, x):
        return self.f(x)


class Kind(enum.Enum):
    A, B, C, D, E, F, G, H, I, J = range(10)  # noqa: E741


class Reading:
    """Exposes its entries as attributes, as configurations often do."""

    def __init__(self, entries):
        self.entries = entries

    def __getattr__(self, name):
        return self.entries[name]


@eb.cell(static=("options",))
def act_with(weights, x, *, options):
    f = options[0] if isinstance(options, tuple) else options
    return (f.apply if isinstance(f, Options) else jnp.tanh)(x @ weights)


ANEW = {
    "f": chain(lambda w, x: act(w, x, lambda y: 2 * y)),
    "both": chain(lambda w, x: act_of_pair(w, x, {"f": lambda y: 2 * y})),
    "*rest": chain(lambda w, x: act_of_rest(w, x, jnp.tanh, lambda y: 2 * y)),
    "f of partial": chain(lambda w, x: act(w, x, functools.partial(clip, 0.5))),
    "f of a method": chain(lambda w, x: act(w, x, Options(lambda y: 2 * y).apply)),
    "f of jit": chain(lambda w, x: act(w, x, jax.jit(lambda y: 2 * y))),
    "scale": chain(lambda w, x: scaled(w, x, scale=Scale(2.0))),
    "options in a tuple": chain(
        lambda w, x: act_with(w, x, options=(lambda y: 2 * y, 1))
    ),
    "options in a dataclass": chain(
        lambda w, x: act_with(w, x, options=Options(lambda y: 2 * y))
    ),
    "options": chain(lambda w, x: act_with(w, x, options=Reading({"a": 1}))),
}


def of_table(table):
    """A model that passes a cell the objects of a table in turn."""
    numbers = itertools.cycle(range(len(table)))
    return chain(lambda w, x: act_with(w, x, options=table[next(numbers)]))


POWERS = [functools.partial(jnp.power, k) for k in range(10)]
SCALES = [Scale(float(k)) for k in range(10)]
NAMED = [
    *(jnp.sin, jnp.cos, jnp.tan, jnp.sinh, jnp.cosh, jnp.tanh, jnp.exp, jnp.log),
    *(jnp.sqrt, jnp.square, jax.nn.relu, jax.nn.gelu, jax.nn.silu, jax.nn.elu, jnp.abs),
    *(np.sin, np.cos, np.tan, np.sinh, np.cosh, np.tanh, np.exp, np.log, np.sqrt),
    *(jnp.add, jnp.multiply, jnp.maximum, jnp.minimum, jnp.subtract, math, jnp, jax),
    *(np.float32, np.float64, np.int32, np.int8, float, int, str, act, act_of_pair),
]
ONCE = {
    "functions": chain(lambda w, x: act(w, act(w, x, jnp.tanh), jax.nn.relu)),
    "equal": chain(lambda w, x: scaled(w, x, scale=EqualScale(2.0))),
    "different": chain(lambda w, x: scaled(w, x, scale=EqualScale(float(id(x))))),
    "members": of_table([*Kind]),
    "named": of_table(NAMED),
    "partial": of_table(POWERS),
    "objects": of_table(SCALES),
    "lambdas": of_table([lambda y, k=k: k * y for k in range(20)]),
}


@pytest.mark.parametrize("name", ANEW)
def test_objects_made_in_each_call_are_warned_of_once(name):
    batched = eb.batch(ANEW[name], params=PARAMS)
    with pytest.warns(ManyTypesWarning) as found:
        batched.record_all([4, 3, 2, 7, 9, 20, 12])
    [message] = [str(each.message) for each in found]
    assert f"as {name.split()[0]!r} (" in message
    assert "make such objects once, outside the model" in message


@pytest.mark.parametrize("name", ONCE)
def test_other_static_arguments_are_not_warned_of(name):
    batched = eb.batch(ONCE[name], params=PARAMS)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ManyTypesWarning)
        batched.record_all([9, 9, 9, 50])


def test_what_is_warned_of_is_right():
    model = ANEW["f"]
    expected = [model(PARAMS, each) for each in (1, 31, 2)]
    with pytest.warns(ManyTypesWarning):
        found = eb.batch(model, params=PARAMS)(PARAMS, [1, 31, 2])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def with_number(values):
    def model(params, number):
        return grown(params["w"], np.ones(3, np.float32), values(number))

    return model


@pytest.mark.parametrize("kind", [int, float, np.int64, np.float32])
def test_numbers_of_many_values_are_warned_of_once(kind):
    batched = eb.batch(with_number(kind), params=PARAMS)
    with pytest.warns(ManyTypesWarning) as found:
        batched.record_all([*range(40)])
    [message] = [str(each.message) for each in found]
    assert (
        f"16 different numbers as 'times' ({kind(0)}, {kind(1)}, {kind(2)}" in message
    )
    assert "leave numbers that the cell computes with out of static=" in message


def test_few_numbers_and_flags_are_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error", ManyTypesWarning)
        for values in (lambda k: k % 15, lambda k: k % 2 == 0):
            batched = eb.batch(with_number(values), params=PARAMS)
            batched.record_all([*range(40)])


def test_numbers_that_all_come_with_one_instance_are_not_warned_of():
    """For example the numbers of layers, or the sizes of several cells of one name."""

    def deep(params, count):
        x = np.ones(3, np.float32)
        for layer in range(24):
            x = grown(params["w"], x, layer)
        return x

    def cell_of_size():
        @eb.cell(static=["size"])
        def step(w, x, size):
            return w @ x * size

        return step

    cells = [cell_of_size() for _ in range(4)]

    def sized(params, count):
        x = np.ones(3, np.float32)
        return cells[count % 4](params["w"], x, size=count)

    with warnings.catch_warnings():
        warnings.simplefilter("error", ManyTypesWarning)
        eb.batch(deep, params=PARAMS).record_all([*range(40)])
        eb.batch(sized, params=PARAMS).record_all([*range(40)])
