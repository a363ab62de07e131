"""Compares the compiled sorts with NumPy's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edbatch.sorting import distinct, order_by_weight, sort_in_place, stable_order

KEYS = st.one_of(
    st.lists(st.integers(-3, 3), max_size=120),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=120),
)


@given(KEYS)
def test_orders_are_stable(keys):
    key = np.array(keys, np.int64)
    np.testing.assert_array_equal(stable_order(key), np.argsort(key, kind="stable"))


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 32, 33, 1000, 4097])
def test_orders_of_many_equal_keys_are_stable(size):
    key = np.random.default_rng(size).integers(0, 40, size)
    np.testing.assert_array_equal(stable_order(key), np.argsort(key, kind="stable"))


@given(
    st.lists(
        st.one_of(
            st.sampled_from([0.0, 1.0, 5e-324, np.inf]), st.floats(0, allow_nan=False)
        ),
        max_size=60,
    )
)
def test_weights_descend_and_equal_ones_stay(weights):
    weight = np.abs(np.array(weights, np.float64))  # weights are never -0.0
    found = order_by_weight(weight)
    np.testing.assert_array_equal(found, np.argsort(-weight, kind="stable"))


@given(KEYS)
def test_distinct_keys_are_those_of_numpy(keys):
    key = np.array(keys, np.int64)
    found, place = distinct(key)
    expected, inverse = np.unique(key, return_inverse=True)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(place, inverse)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=120))
def test_numbers_are_sorted_in_place(numbers):
    values = np.array(numbers, np.int32)
    expected = np.sort(values)
    sort_in_place(values)
    np.testing.assert_array_equal(values, expected)
