import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import all_graphs, build, graphs

from edbatch.envs import sample_dag_structure, sample_tree_structure
from edbatch.errors import PolicyError
from edbatch.policies import (
    Agenda,
    AgendaRemaining,
    BeamSearch,
    BestOfHeuristics,
    Depth,
    Greedy,
    MachineState,
    StateMachine,
)
from edbatch.schedule import FrontierPolicy, check_schedule
from edbatch.schedule.examples import chain, tree

HEURISTICS = (Greedy(), Agenda(), AgendaRemaining(), Depth())


def poor_machine(structure):
    """A machine that always runs the last type of the frontier."""
    states = [MachineState((t,), t) for t in range(structure.num_types)]
    states += [
        MachineState((low, high), high)
        for high in range(structure.num_types)
        for low in range(high)
    ]
    return StateMachine(structure.type_keys, "base", tuple(states))


@given(st.integers(0, 10**6))
def test_as_few_batches_as_the_best_of_all(seed):
    rng = np.random.default_rng(seed)
    structure = sample_dag_structure(rng, instances=3, nodes=10, types=3)
    policy = poor_machine(structure)
    alone = policy.schedule(structure)
    others = {each.name: each.schedule(structure).num_batches for each in HEURISTICS}
    schedule = BestOfHeuristics(policy).schedule(structure)
    check_schedule(schedule, structure)
    assert schedule.num_batches == min(alone.num_batches, *others.values())
    if alone.num_batches <= min(others.values()):
        assert schedule.policy == policy.name
        np.testing.assert_array_equal(schedule.order, alone.order)
    else:
        assert others[schedule.policy] == schedule.num_batches


class Backwards(FrontierPolicy):
    name = "backwards"

    def choose(self, frontier):
        return int(np.flatnonzero(frontier.sizes)[-1])


def check_never_worse(policy, structure):
    schedule = BestOfHeuristics(policy).schedule(structure)
    check_schedule(schedule, structure)
    others = [each.schedule(structure).num_batches for each in (policy, *HEURISTICS)]
    assert schedule.num_batches == min(others)


def test_all_small_graphs():
    for structure in all_graphs(4):
        check_never_worse(Backwards(), structure)


@given(graphs(max_nodes=40), st.sampled_from([Backwards(), *HEURISTICS]))
def test_any_graph(structure, policy):
    check_never_worse(policy, structure)


def test_a_policy_with_the_name_of_a_heuristic_is_guarded_all_the_same():
    class Impostor(Depth):
        name = "greedy"

    structure = tree("(((a)b)c((a)c)b)d")
    assert Impostor().schedule(structure).num_batches == 6
    assert BestOfHeuristics(Impostor()).schedule(structure).num_batches == 5


def test_heuristics_are_not_asked_where_the_bound_is_met(monkeypatch):
    monkeypatch.setattr("edbatch.policies.guard._HEURISTICS", None)
    structure = sample_tree_structure(np.random.default_rng(0))
    machine = StateMachine(structure.type_keys, "fall")
    assert BestOfHeuristics(machine).schedule(structure).policy == "fsm-fall"
    assert BestOfHeuristics(Depth()).schedule(build([], [], 1)).num_batches == 0


@pytest.mark.parametrize("policy", HEURISTICS)
def test_its_name_is_the_policys(policy):
    assert BestOfHeuristics(policy).name == policy.name


def test_a_schedule_that_was_found_by_search_says_so():
    policy = BestOfHeuristics(BeamSearch(Depth(), width=8))
    assert policy.name == "depth+search"
    assert policy.schedule(tree("(((a)b)c((a)c)b)d")).policy == "search"


def test_errors_of_the_policy_are_its_own():
    machine = StateMachine(chain("ab").type_keys, "fall")
    with pytest.raises(PolicyError, match="was not trained on 'c'"):
        BestOfHeuristics(machine).schedule(chain("abc"))
