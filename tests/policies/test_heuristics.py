import pytest
from hypothesis import given
from random_graphs import all_graphs, build, graphs, long_chain
from schedule_oracles import (
    Naive,
    agenda_batches,
    batches_of,
    depth_batches,
    greedy_batches,
)

from edbatch.policies import Agenda, Depth, Greedy
from edbatch.schedule import check_schedule, lower_bound
from edbatch.schedule.examples import tree

ORACLES = [
    (Depth(), depth_batches),
    (Agenda(), agenda_batches),
    (Greedy(), greedy_batches),
]


@pytest.mark.parametrize(("policy", "oracle"), ORACLES)
def test_all_small_graphs(policy, oracle):
    for structure in all_graphs(4):
        schedule = policy.schedule(structure)
        check_schedule(schedule, structure)
        assert batches_of(schedule) == oracle(Naive(structure))


@pytest.mark.parametrize(("policy", "oracle"), ORACLES)
@given(structure=graphs())
def test_random_graphs(policy, oracle, structure):
    schedule = policy.schedule(structure)
    check_schedule(schedule, structure)
    assert batches_of(schedule) == oracle(Naive(structure))
    assert schedule.num_batches >= lower_bound(structure)
    assert (schedule.policy, schedule.unseen_states) == (policy.name, 0)


@pytest.mark.parametrize("policy", [policy for policy, _ in ORACLES])
@pytest.mark.parametrize(
    "structure", [build([], [], 2), build([], [], 0), build([1], [[]], 2)]
)
def test_no_node_and_one_node(policy, structure):
    schedule = policy.schedule(structure)
    check_schedule(schedule, structure)
    assert schedule.num_batches == structure.num_nodes


@pytest.mark.parametrize("policy", [policy for policy, _ in ORACLES])
def test_a_deep_chain(policy):
    structure = long_chain(100_000)
    schedule = policy.schedule(structure)
    check_schedule(schedule, structure)
    assert schedule.num_batches == 100_000


def test_on_trees_only_greedy_keeps_the_classifiers_together():
    # Leaves a, inner nodes b, a classifier c at each root: one deep tree, small ones.
    small, deep = "((aa)b)c", "((((((aa)ba)ba)ba)ba)b)c"
    structure = tree(deep + 5 * small)
    assert lower_bound(structure) == 1 + 5 + 1
    counts = [policy.schedule(structure).num_batches for policy, _ in ORACLES]
    assert counts == [8, 8, 7]
