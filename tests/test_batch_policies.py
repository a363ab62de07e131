"""Tests policies, searches and guards passed to `eb.batch`."""

import numpy as np
import pytest
from trees import (
    encode,
    make_params,
)

import edbatch as eb
from edbatch.policies import BeamSearch, BestOfHeuristics, MachineState, StateMachine

SIZES = eb.Sizes(widths=(4, 16))

pytestmark = pytest.mark.default_flags


class Backwards(eb.FrontierPolicy):
    """Runs the last type that is ready: a poor policy."""

    name = "backwards"

    def choose(self, frontier):
        return int(np.flatnonzero(frontier.sizes)[-1])


@eb.cell
def start(x):
    return x * 1.0


@eb.cell
def half(x):
    return x / 2


@eb.cell
def more(x):
    return x + 1


def walk(params, letters):
    """Runs one cell per letter: m is `more`, h is `half`."""
    state = start(1.0)
    for letter in letters:
        state = more(state) if letter == "m" else half(state)
    return state


# Running `more` first takes the batches start, m, hh, mm.
LETTERS = ["mhm", "hm"]


def poor_machine():
    """A learned policy that runs `half` first, with batches start, h, mm, h, m."""
    keys = eb.batch(walk, params={}).graph(LETTERS).structure.type_keys
    at = {key.cell: t for t, key in enumerate(keys)}
    both = tuple(sorted((at["half"], at["more"])))
    states = [MachineState((t,), t) for t in at.values()]
    return StateMachine(keys, "base", (*states, MachineState(both, at["half"])))


def test_learned_and_searched_policies_are_guarded():
    machine = poor_machine()
    assert eb.batch(encode, machine).policy == BestOfHeuristics(machine)
    assert eb.batch(encode, machine, guard=False).policy is machine
    searched = BeamSearch(machine, 5)
    assert eb.batch(encode, machine, search=5).policy == BestOfHeuristics(searched)
    assert eb.batch(encode, searched).policy == BestOfHeuristics(searched)
    assert eb.batch(encode, machine, search=5, guard=False).policy == searched
    policy = eb.batch(encode, "greedy", search=5).policy
    assert isinstance(policy, BestOfHeuristics) and isinstance(
        policy.policy, BeamSearch
    )
    assert isinstance(eb.batch(encode, "zoo:tree-lstm").policy, BestOfHeuristics)


@pytest.mark.parametrize("policy", ["greedy", "agenda", "depth", Backwards()])
def test_heuristics_and_policies_of_ones_own_run_as_they_are(policy):
    found = eb.batch(encode, policy).policy
    assert not isinstance(found, BestOfHeuristics)
    assert found.name == (policy if isinstance(policy, str) else "backwards")


def test_a_plan_says_whose_schedule_won():
    machine = poor_machine()
    poor = eb.batch(walk, machine, sizes=SIZES, guard=False)
    guarded = eb.batch(walk, machine, sizes=SIZES)
    assert poor({}, LETTERS).tolist() == guarded({}, LETTERS).tolist() == [2, 1.5]
    for _ in range(2):
        reports = [each.plan(LETTERS).report for each in (poor, guarded)]
    assert [(each.policy, each.batches) for each in reports] == [
        ("fsm-base", 5),
        ("greedy", 4),
    ]
    assert reports[1].cached  # and reports the same policy
    searched = eb.batch(walk, BeamSearch(machine, width=8), params={})
    assert searched.plan(LETTERS).report.policy == "search"
    assert guarded.plan(["mh"]).report.policy == "fsm-base"


def test_only_new_structures_are_searched(monkeypatch):
    searched = []
    schedule = BeamSearch.schedule

    def count(self, structure):
        searched.append(structure.num_nodes)
        return schedule(self, structure)

    monkeypatch.setattr(BeamSearch, "schedule", count)
    batched = eb.batch(encode, params=make_params(), sizes=SIZES, search=1)
    batched.plan([(1, 2), 3])
    batched.plan([(4, 5), 6])  # other words, the same structure
    assert searched == [4]
    batched.plan([(1, 2), (3, 4)])
    assert searched == [4, 6]


@pytest.mark.parametrize("search", [-1, -0.5, float("nan"), "5", None])
def test_a_negative_time_to_search(search):
    with pytest.raises(
        eb.PolicyError, match=rf"or an eb\.Search\(...\), but this is {search!r}"
    ):
        eb.batch(encode, search=search)


def test_a_search_of_a_width():
    policy = eb.batch(encode, search=eb.Search(width=8), guard=False).policy
    assert isinstance(policy, BeamSearch) and policy.width == 8
    assert not isinstance(eb.batch(encode, search=0).policy, BestOfHeuristics)


@pytest.mark.parametrize("costs", [3, {"a": 1}])
def test_costs_that_are_none(costs):
    with pytest.raises(eb.PolicyError, match=r"costs are a file of .*; give the"):
        eb.batch(encode, costs=costs)
