"""Tests the warning for lists of many lengths passed to a plain cell."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.errors import ManyTypesWarning

PARAMS = {"w": jnp.eye(3), "v": jnp.eye(3)}


@eb.cell
def gather(weights, own, neighbours):
    return jnp.tanh(own @ weights + sum(neighbours))


@eb.cell(padded=("neighbours",))
def gather_padded(weights, own, neighbours, mask):
    return jnp.tanh(own @ weights + jnp.sum(neighbours * mask[:, None], axis=0))


@eb.cell
def pair(weights, both):
    return both[0] @ weights + both[1]


@eb.cell
def gather_dict(weights, own, more):
    return jnp.tanh(own @ weights + sum(more["neighbours"]))


@eb.cell
def gather_tuple(weights, both):
    return jnp.tanh(both[0] @ weights + sum(both[1]))


@eb.cell
def gather_variadic(weights, own, *neighbours):
    return jnp.tanh(own @ weights + sum(neighbours))


def star(cell, name="w"):
    return lambda params, x: cell(params[name], x[0], [each for each in x[1:]])


def instances(lengths):
    return [np.ones((n + 1, 3), np.float32) for n in lengths]


def test_lists_of_many_lengths_are_warned_of_once():
    batched = eb.batch(star(gather), params=PARAMS)
    with pytest.warns(ManyTypesWarning) as found:
        batched.record_all(instances(range(1, 15)))
    [message] = [str(each.message) for each in found]
    assert "cell 'gather' was called with 'neighbours' of 1, 2, 3, 4, 5, 6, 7, 8" in (
        message
    )
    assert "@eb.cell(padded=('neighbours',)), and give the function an" in message
    assert message.endswith("argument 'mask'")
    assert "test_list_lengths.py:" in message


@pytest.mark.parametrize(
    ("model", "place"),
    [
        (
            lambda w, x: gather_dict(w, x[0], {"neighbours": [*x[1:]]}),
            "\"more['neighbours']\"",
        ),
        (lambda w, x: gather_tuple(w, (x[0], [*x[1:]])), "'both[1]'"),
        (lambda w, x: gather_variadic(w, *x), "'*neighbours'"),
    ],
    ids=["dict", "tuple", "variadic"],
)
def test_lists_within_arguments_are_warned_of(model, place):
    batched = eb.batch(lambda params, x: model(params["w"], x), params=PARAMS)
    with pytest.warns(ManyTypesWarning) as found:
        batched.record_all(instances(range(1, 15)))
    [message] = [str(each.message) for each in found]
    assert f"was called with {place} of 1, 2, 3, 4, 5, 6, 7, 8 elements" in message
    assert "give the list an argument of its own, which can be declared as" in message


@pytest.mark.parametrize(
    ("model", "lengths"),
    [
        (star(gather), range(1, 8)),
        (star(gather), [3] * 20),
        (star(gather_padded), range(1, 30)),
        (lambda params, x: pair(params["w"], (x[0], x[-1])), range(1, 30)),
        (lambda params, x: gather_tuple(params["w"], (x[0], [x[1]])), range(1, 30)),
    ],
)
def test_others_are_not(model, lengths):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        eb.batch(model, params=PARAMS).record_all(instances(lengths))


def test_the_results_are_the_same():
    batched = eb.batch(star(gather), params=PARAMS, sizes=eb.Sizes(widths=(8,)))
    data = instances(range(1, 10))
    with pytest.warns(ManyTypesWarning):
        found = batched(PARAMS, data)
    for row, each in zip(found, data, strict=True):
        expected = star(gather)(PARAMS, each)
        np.testing.assert_allclose(row, expected, rtol=1e-6)
