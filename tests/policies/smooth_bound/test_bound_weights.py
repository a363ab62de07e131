import numpy as np
import pytest

from edbatch.errors import PolicyError
from edbatch.policies.smooth_bound.weights import EQUAL_WEIGHTS, POWERS, BoundWeights


@pytest.mark.parametrize("power", POWERS)
def test_the_power_is_two_to_the_squarings(power):
    _, log2_p = BoundWeights(power=power).arrays(np.arange(1), 1)
    assert 2**log2_p == power


def test_weights_go_where_the_types_are():
    weights = BoundWeights((2.0, 3.0, 4.0), path=5.0)
    # The graph has the second type, the first, and an unknown one, but not the third.
    weight, _ = weights.arrays(np.array([1, 0, -1, 2], np.int32), 3)
    assert weight.tolist() == [3.0, 2.0, 1.0, 5.0]
    assert weight.dtype == np.float64


def test_without_weights_all_are_one():
    weight, log2_p = EQUAL_WEIGHTS.arrays(np.array([0, 1], np.int32), 2)
    assert (weight.tolist(), log2_p) == ([1.0, 1.0, 1.0], 3)
    weight, _ = EQUAL_WEIGHTS.arrays(np.empty(0, np.int32), 0)
    assert weight.tolist() == [1.0]


def test_lists_and_whole_numbers_serve_too():
    weights = BoundWeights([1, 2], path=3)
    assert weights == BoundWeights((1.0, 2.0), 3.0)
    assert hash(weights) == hash(BoundWeights((1.0, 2.0), 3.0))
    assert all(type(each) is float for each in (*weights.types, weights.path))


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_weights_out_of_range(weight):
    message = f"a finite number, 0 or more, but one is {weight!r}; train the policy"
    with pytest.raises(PolicyError, match=message):
        BoundWeights((1.0, weight))
    with pytest.raises(PolicyError, match=message):
        BoundWeights(path=weight)


@pytest.mark.parametrize("power", [0, 1, 3, 32, None])
def test_other_powers(power):
    with pytest.raises(
        PolicyError, match=rf"one of \(2, .* but this is {power}; leave"
    ):
        BoundWeights(power=power)
