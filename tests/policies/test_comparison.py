from dataclasses import replace

import numpy as np
import pytest
from random_graphs import build

from edbatch.envs import sample_tree_structure
from edbatch.errors import PolicyError
from edbatch.policies import (
    Agenda,
    BestOfHeuristics,
    Depth,
    Greedy,
    MachineState,
    StateMachine,
    compare,
    meets_bounds,
)
from edbatch.schedule import lower_bound
from edbatch.schedule.examples import tree


def test_rows_say_what_the_schedules_are():
    rng = np.random.default_rng(0)
    structures = [sample_tree_structure(rng) for _ in range(5)]
    states = (MachineState((0,), 0),)
    machine = StateMachine(structures[0].type_keys, "sort", states)
    policies = [Depth(), Agenda(), Greedy(), machine]
    rows = compare(policies, structures)
    bounds = [lower_bound(each) for each in structures]
    assert [row.policy for row in rows] == ["depth", "agenda", "greedy", "fsm-sort"]
    for policy, row in zip(policies, rows, strict=True):
        schedules = [policy.schedule(each) for each in structures]
        batches = [each.num_batches for each in schedules]
        assert row.batches == tuple(batches)
        assert row.mean_batches == pytest.approx(np.mean(batches))
        assert row.mean_lower_bound == pytest.approx(np.mean(bounds))
        assert row.mean_ratio == pytest.approx(np.mean(np.array(batches) / bounds))
        assert row.worst_ratio == max(np.array(batches) / bounds)
        assert row.unseen_states == sum(each.unseen_states for each in schedules)
        assert 0 < row.schedule_us_per_node < 1000
    assert rows[3].unseen_states > 0 == rows[2].unseen_states


def test_a_search_is_not_charged_for_compiles():
    class SlowAtFirst:
        name = "slow at first"

        def __init__(self):
            self.met = set()

        def schedule(self, structure):
            policy = Greedy() if structure.num_nodes in self.met else Depth()
            self.met.add(structure.num_nodes)
            return policy.schedule(structure)

    rng = np.random.default_rng(0)
    structures = [sample_tree_structure(rng) for _ in range(3)]
    slow, greedy, depth = compare([SlowAtFirst(), Greedy(), Depth()], structures)
    assert slow.batches == greedy.batches != depth.batches


@pytest.mark.parametrize("structures", [[], [build([], [], 1)]])
def test_nothing_to_compare_on(structures):
    with pytest.raises(PolicyError, match="needs minibatches with nodes but there are"):
        compare([Greedy()], structures)


@pytest.mark.parametrize("repeats", [0, -1, 1.5])
def test_schedules_are_timed_once_at_least(repeats):
    message = r"repeats of a comparison is a whole number, 1 or more, but this is"
    with pytest.raises(PolicyError, match=message):
        compare([Greedy()], [build([0], [[]], 1)], repeats=repeats)


class Cheating:
    """Leaves the last batch out."""

    name = "cheating"

    def schedule(self, structure):
        found = Depth().schedule(structure)
        last = found.batch_start[-2]
        return replace(
            found,
            order=found.order[:last],
            batch_start=found.batch_start[:-1],
            batch_type=found.batch_type[:-1],
        )


@pytest.mark.parametrize("policy", [Cheating(), BestOfHeuristics(Cheating())])
def test_a_schedule_that_leaves_nodes_out_is_not_compared(policy):
    structures = [tree("((ab)cb)c"), tree("(((a)b)c((a)c)b)d")]
    message = r"policy 'cheating' returned a schedule that breaks a rule"
    with pytest.raises(PolicyError, match=message):
        compare([Depth(), policy], structures)
    with pytest.raises(PolicyError, match=message):
        meets_bounds(policy, structures)


@pytest.mark.parametrize("structures", [3, [3], None])
def test_bounds_of_what_is_no_graph(structures):
    with pytest.raises(PolicyError, match=r"the minibatches|number 0 of the min"):
        meets_bounds(Depth(), structures)
