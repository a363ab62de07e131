import pytest
from hypothesis import given
from random_graphs import all_graphs, build, graphs, long_chain
from schedule_oracles import (
    Naive,
    agenda_batches,
    agenda_remaining_batches,
    batches_of,
    depth_batches,
    greedy_batches,
)

from edbatch.errors import PolicyError
from edbatch.policies import (
    Agenda,
    AgendaRemaining,
    BeamSearch,
    BestOfHeuristics,
    Depth,
    Greedy,
    get_policy,
)
from edbatch.schedule import check_schedule, lower_bound
from edbatch.schedule.examples import tree

ORACLES = [
    (Depth(), depth_batches),
    (Agenda(), agenda_batches),
    (AgendaRemaining(), agenda_remaining_batches),
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


def test_on_trees_greedy_and_agenda_keep_the_classifiers_together():
    # Leaves a, inner nodes b, a classifier c at each root; one deep tree, five small
    # ones. The mean depth of the classifiers exceeds that of all inner nodes, but not
    # that of the inner nodes that remain after the first level.
    small, deep = "((aa)b)c", "((((((aa)ba)ba)ba)ba)b)c"
    structure = tree(deep + 5 * small)
    assert lower_bound(structure) == 1 + 5 + 1
    counts = {p.name: p.schedule(structure).num_batches for p, _ in ORACLES}
    assert counts == {"depth": 8, "agenda": 7, "agenda-remaining": 8, "greedy": 7}


def test_agenda_looks_at_all_nodes_of_a_type_and_not_at_those_that_remain():
    # Depths of a: 0 and 2; of b: 0, 1 and 1. So b runs before a as long as b is ready.
    # After the first b, however, the remaining b nodes have the same mean depth as a.
    a, b = 0, 1
    structure = tree("((a)b(b)b)a")
    kinds = {p.name: p.schedule(structure).batch_type.tolist() for p, _ in ORACLES}
    assert kinds["agenda"] == [b, b, a, b, a]
    assert kinds["agenda-remaining"] == [b, a, b, a]


@pytest.mark.parametrize(
    "policy",
    [
        *(policy for policy, _ in ORACLES),
        BeamSearch(Greedy()),
        BestOfHeuristics(Greedy()),
        get_policy("zoo:lattice-lstm"),
    ],
)
@pytest.mark.parametrize("given", [3, None, [tree("(ab)c")]])
def test_what_is_no_graph_is_refused(policy, given):
    message = r"what a policy schedules is the structure of a minibatch, but this is .*"
    with pytest.raises(PolicyError, match=message + r"batched.graph\(instances\)"):
        policy.schedule(given)
