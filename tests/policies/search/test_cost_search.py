"""The search for the least cost, compared with all schedules of small graphs."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs
from schedule_oracles import Naive

from edbatch.envs.samplers import join_instances
from edbatch.errors import PolicyError
from edbatch.graph.node_type import TypeKey
from edbatch.policies import (
    ENCODINGS,
    BeamSearch,
    BestOfHeuristics,
    Depth,
    Greedy,
    train_policy,
)
from edbatch.policies.cost.model import CostModel
from edbatch.policies.search.beam_search import Search, schedule_of
from edbatch.schedule import check_schedule
from edbatch.schedule.examples import chain, tree


def least_cost(structure, cost):
    graph = Naive(structure)

    @functools.cache
    def best(done):
        return min(
            (
                cost[t] + best(done | batch)
                for t, batch in graph.frontier(set(done)).items()
            ),
            default=0.0,
        )

    return best(frozenset())


@settings(max_examples=60)
@given(graphs(max_nodes=9, max_types=3), st.integers(0, 10**6))
def test_a_wide_search_finds_the_least_cost(structure, seed):
    cost = np.random.default_rng(seed).uniform(0.1, 3, structure.num_types)
    search = Search(structure, None, 1e9, cost=cost)
    search.run(200)
    least = least_cost(structure, cost)
    assert search.is_proven
    assert search.limit == pytest.approx(least)
    schedule = schedule_of(structure, search.actions)
    check_schedule(schedule, structure)
    assert cost[schedule.batch_type].sum() == pytest.approx(least)
    # Searching again finds nothing cheaper.
    search.actions = None
    search.run(200)
    assert search.actions is None


def costs_of(structure, fixed):
    """A cost model with a fixed cost per batch, independent of its number of nodes."""
    return CostModel(
        types=structure.type_keys,
        widths=(64,),
        chunk_us=tuple((each,) for each in fixed),
        measured_widths=(1,) * len(fixed),
        batches=(1.0,) * len(fixed),
        switch_us=0.0,
    )


def either_way():
    """Chains a, b and b, a: only the nodes of one of the types can share a batch."""
    return join_instances(
        chain("ab").type_keys, [[(0, []), (1, [0])], [(1, []), (0, [0])]]
    )


@pytest.mark.parametrize(
    ("fixed", "expected"), [((1.0, 10.0), [0, 1, 0]), ((10.0, 1.0), [1, 0, 1])]
)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_policy_learns_to_run_cheap_batches_twice(encoding, fixed, expected):
    structure = either_way()
    costs = costs_of(structure, fixed)
    policy = train_policy(
        [structure], [structure], encoding=encoding, costs=costs, trials=200, epsilon=1
    )
    assert policy.schedule(structure).batch_type.tolist() == expected
    cost = costs.batch_weights(structure.type_keys)
    assert policy.training.held_out_batches == pytest.approx(cost[expected].sum())
    assert policy.training.held_out_lower_bound == pytest.approx(cost.sum())
    assert policy.training.by_cost


def test_a_training_resumes_with_the_costs_that_it_began_with(tmp_path):
    structure = either_way()
    path = tmp_path / "checkpoint"
    train_policy([structure], [structure], trials=3, checkpoint=path)
    costs = costs_of(structure, (1.0, 10.0))
    with pytest.raises(PolicyError, match="costs that it began with but others"):
        train_policy(
            [structure],
            [structure],
            trials=3,
            checkpoint=path,
            resume=True,
            costs=costs,
        )


@pytest.mark.parametrize(
    ("fixed", "expected"), [((1.0, 10.0), [0, 1, 0]), ((10.0, 1.0), [1, 0, 1])]
)
def test_costs_decide_which_batches_are_shared(fixed, expected):
    structure = either_way()
    search = BeamSearch(Depth(), width=64, costs=costs_of(structure, fixed))
    schedule = search.schedule(structure)
    check_schedule(schedule, structure)
    assert schedule.batch_type.tolist() == expected


@pytest.mark.parametrize("policy", [Depth(), Greedy()])
def test_never_more_predicted_time_than_the_policy(policy):
    structure = tree("(((aa)ba)b(aa)b)b")
    for fixed in ((1.0, 5.0), (5.0, 1.0)):
        costs = costs_of(structure, fixed)
        keys = structure.type_keys
        alone = costs.schedule_us(policy.schedule(structure), keys)
        for better in (
            BeamSearch(policy, width=8, costs=costs),
            BestOfHeuristics(policy, costs),
        ):
            found = better.schedule(structure)
            check_schedule(found, structure)
            assert costs.schedule_us(found, keys) <= alone


def test_a_cost_model_of_another_model():
    structure = chain("ab")
    costs = CostModel((TypeKey("z", "", 0),), (8,), ((1.0,),), (1,), (1.0,), 0.0)
    with pytest.raises(PolicyError, match="'a/0' was not"):
        BeamSearch(Depth(), costs=costs).schedule(structure)
