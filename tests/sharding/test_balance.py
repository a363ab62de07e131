"""The split of instances among devices, and the prediction of their work."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import encode, make_params, sample_trees

import edbatch as eb
from edbatch.policies.cost.model import CostModel
from edbatch.sharding import balance, predict_work

works = st.lists(st.integers(1, 20), min_size=1, max_size=7)


def loads(work, device, devices):
    return np.bincount(device, work, devices)


def best_split(work, devices):
    """Work of the busiest device in the best split, by exhaustive search."""
    return min(
        max(loads(work, np.array(each), devices))
        for each in product(range(devices), repeat=len(work))
    )


@given(works, st.integers(1, 3))
def test_the_busiest_device_is_near_the_best_split(work, devices):
    work = np.array(work, float)
    busiest = max(loads(work, balance(work, devices), devices))
    # The tight bound of the longest-processing-time-first rule.
    bound = 4 / 3 - 1 / (3 * devices)
    assert busiest <= bound * best_split(work, devices) + 1e-9


def test_work_counts_and_not_the_number_of_instances():
    device = balance(np.array([9.0, 3.0, 3.0, 3.0]), 2)
    assert device.tolist() == [0, 1, 1, 1]


def test_equal_instances_go_round():
    assert balance(np.ones(5), 2).tolist() == [0, 1, 0, 1, 0]


def test_more_devices_than_instances():
    assert balance(np.array([1.0, 2.0]), 4).tolist() == [1, 0]


@pytest.fixture
def batched():
    return eb.batch(encode, params=make_params())


def costs_of(batched, leaf_us, join_us):
    """A cost model with costs per node: all chunks have one row."""
    per_type = {"leaf": leaf_us, "join": join_us}
    keys = tuple(each.key for each in batched.types.types)
    return CostModel(
        types=keys,
        widths=(1,),
        chunk_us=tuple((per_type[key.cell],) for key in keys),
        measured_widths=(1,) * len(keys),
        batches=(1.0,) * len(keys),
    )


def test_work_is_the_number_of_nodes(batched):
    recordings = batched.record_all([3, (1, 2), ((1, 2), 3)])
    assert predict_work(recordings, batched.types).tolist() == [1, 3, 5]


def test_costs_weigh_nodes_by_type(batched):
    recordings = batched.record_all([3, (1, 2), ((1, 2), 3)])
    costs = costs_of(batched, leaf_us=2.0, join_us=10.0)
    work = predict_work(recordings, batched.types, costs)
    np.testing.assert_allclose(work, [2, 14, 26])


def test_no_node_is_for_nothing(batched):
    recordings = batched.record_all([3, (1, 2)])
    work = predict_work(recordings, batched.types, costs_of(batched, 0.0, 1.0))
    np.testing.assert_allclose(work, [0.01, 1.02])
    work = predict_work(recordings, batched.types, costs_of(batched, 0.0, 0.0))
    assert (work > 0).all()


def test_costs_given_to_batch_decide_the_split(batched):
    # A tree of three nodes, one of them expensive, against three trees of one node.
    instances = [(1, 2), 1, 2, 3]
    batched.record_all(instances)
    costs = costs_of(batched, leaf_us=1.0, join_us=100.0)
    assert eb.batch(encode, costs=costs).costs is costs
    work = predict_work(batched.record_all(instances), batched.types, costs)
    assert balance(work, 2).tolist() == [0, 1, 1, 1]


def test_parse_trees_are_split_evenly(batched):
    recordings = batched.record_all(sample_trees(seed=0, count=64))
    work = predict_work(recordings, batched.types)
    for devices in (2, 3, 8):
        own = loads(work, balance(work, devices), devices)
        assert own.max() <= 1.01 * own.mean() + 1
