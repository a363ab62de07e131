"""Tests lists in outputs: the element types of empty lists, and padding."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb

PARAMS = {"w": jnp.float32(2)}


@eb.cell
def scale(params, number):
    return params["w"] * number


def model(params, numbers):
    return {
        "first": scale(params, 1.0),
        "all": [scale(params, each) for each in numbers],
    }


def nested(params, rows):
    return [[scale(params, each) for each in row] for row in rows]


def sharded(batched):
    return batched.sharded()


EITHER = pytest.mark.parametrize("make", [lambda batched: batched, sharded])


@EITHER
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
def test_empty_lists_hold_what_lists_recorded_with_them_held(make, order):
    data = [[], [1.0], [1.0, 2.0]]
    function = make(eb.batch(model, params=PARAMS))
    kept = function.record_all(data)
    for k in order:
        found = function(PARAMS, [kept[k]] * 2)["all"]
        assert isinstance(found, eb.Ragged)
        sums = jax.ops.segment_sum(found.values, found.segment_ids, 2)
        np.testing.assert_allclose(sums, [2 * sum(data[k])] * 2)
        eb.verify(function, PARAMS, [data[k]] * 2)


@EITHER
def test_nothing_is_known_of_lists_that_are_empty_everywhere(make):
    function = make(eb.batch(model, params=PARAMS))
    for k in range(2):  # whatever ran before
        found = function(PARAMS, [[], []])["all"]
        assert found.values == () and found.lengths.tolist() == [0, 0]
        assert found.to_list() == [(), ()]
        eb.verify(function, PARAMS, [[], []])
        if k == 0:
            function(PARAMS, [[1.0], [2.0, 3.0]])
            function.record_all([[1.0]])


@EITHER
def test_lists_of_one_length_are_ragged_and_tuples_are_tuples(make):
    def pairs(params, number):
        state = scale(params, number)
        return {"list": [state, state], "tuple": (state, state), "of": [(state, 1.0)]}

    function = make(eb.batch(pairs, params=PARAMS))
    found = function(PARAMS, [1.0, 2.0, 3.0])
    assert isinstance(found["list"], eb.Ragged) and isinstance(found["of"], eb.Ragged)
    assert found["list"].lengths.tolist() == [2, 2, 2]
    assert [each.tolist() for each in found["tuple"]] == [[2, 4, 6]] * 2
    assert isinstance(found["of"].values, tuple)
    eb.verify(function, PARAMS, [1.0, 2.0, 3.0])


def test_gradients_of_lists_of_one_length():
    batched = eb.batch(model, params=PARAMS)
    plan = batched.plan([[1.0, 2.0], [3.0, 4.0]])

    def loss(params):
        found = batched.apply(params, plan)["all"]
        return jax.ops.segment_sum(found.values, found.segment_ids, 2)[1]

    assert jax.grad(loss)(PARAMS)["w"] == 7


@pytest.mark.parametrize("size", [3, 1])
def test_tuples_of_differing_length(size):
    def states(params, numbers):
        return tuple(scale(params, each) for each in numbers)

    batched = eb.batch(states, params=PARAMS)
    with pytest.raises(
        eb.RecordingError, match="a tuple has the same length in each, so return a list"
    ):
        batched.plan([[1.0, 2.0], [1.0] * size])


def test_lists_of_elements_that_differ():
    def both(params, number):
        return [scale(params, number), np.ones(3, np.float32)]

    with pytest.raises(
        eb.RecordingError, match=r"a list in a model's output .*; return a tuple"
    ):
        eb.batch(both, params=PARAMS).plan([1.0])


def test_a_loader_gives_lists_of_one_kind():
    batched = eb.batch(model, params=PARAMS)
    data = [[], [1.0], [], [], [1.0, 2.0], []]
    for item in eb.Loader(batched, data, 2, shuffle=False):
        found = batched.apply(PARAMS, item.plan)["all"]
        assert isinstance(found, eb.Ragged) and isinstance(found.values, jax.Array)


def test_what_differs_in_structure_stays_apart():
    def either(params, number):
        state = scale(params, number)
        return [state] if number > 1 else (state, state)

    batched = eb.batch(either, params=PARAMS)
    for number in (2.0, 0.5, 3.0):
        eb.verify(batched, PARAMS, [number, number])


def test_lists_of_lists_are_padded_from_the_inside():
    batched = eb.batch(nested, params=PARAMS)
    rows = [[[1.0, 2.0], [3.0]], [[4.0]], [[7.0], [], [8.0, 9.0]]]
    found = batched(PARAMS, rows)
    with pytest.raises(eb.PlanError, match="pad these first"):
        found.to_padded(3)
    inner = found.values.to_padded(2)[0]
    padded, mask = replace(found, values=inner).to_padded(3)
    expected = np.zeros((3, 3, 2), np.float32)
    for i, own in enumerate(rows):
        for j, row in enumerate(own):
            expected[i, j, : len(row)] = 2 * np.array(row)
    np.testing.assert_allclose(padded, expected)
    assert mask.sum(1).tolist() == [2, 1, 3]


def test_what_tree_map_makes_of_a_list_is_shown():
    found = eb.Ragged(np.zeros((4, 2)), np.array([0, 0, 1, 2]), np.array([2, 1]))
    assert repr(found) == "<Ragged: 2 lists, 4 elements with padding>"
    shapes = jax.tree.map(np.shape, found)
    assert repr(shapes) == "Ragged(values=(4, 2), segment_ids=(4,), lengths=(2,))"
    nothing = jax.tree.map(lambda _: None, found)
    assert repr(nothing) == "Ragged(values=None, segment_ids=None, lengths=None)"
