"""Lists in outputs: what empty ones would hold, and padding."""

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


@pytest.mark.parametrize("minibatches", [[[1.0], []], [[], [1.0, 2.0]]])
def test_empty_lists_hold_what_others_held(minibatches):
    batched = eb.batch(model, params=PARAMS)
    batched.record_all([[3.0], [4.0, 5.0]])
    for numbers in minibatches:
        found = batched(PARAMS, [numbers, numbers])["all"]
        assert isinstance(found, eb.Ragged)
        sums = jax.ops.segment_sum(found.values, found.segment_ids, 2)
        np.testing.assert_allclose(sums, [2 * sum(numbers)] * 2)
        eb.verify(batched, PARAMS, [numbers, numbers])


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
