"""Training of state machines: graphs and arguments, including unusual ones."""

import sys
from dataclasses import replace

import pytest
from random_graphs import build, long_chain

from edbatch.errors import PolicyError
from edbatch.policies import (
    ENCODINGS,
    train_policy,
)
from edbatch.policies.fsm.settings import common_types
from edbatch.schedule import check_schedule
from edbatch.schedule.examples import chain, tree

# ---- types ----


def test_graphs_recorded_at_different_times():
    early, late = chain("ab"), build([0, 2, 1], [[], [0], [1]], 3)
    late = replace(late, type_keys=(*early.type_keys, build([], [], 3).type_keys[2]))
    for train, held_out in (([early, late], [early]), ([early], [late])):
        policy = train_policy(train, held_out)
        assert policy.types == late.type_keys
        assert policy.training.stopped == "lower bound"
        # Nothing can be learned about a type that occurs only in the held-out graph.
        assert (policy.training.held_out_unseen > 0) == (held_out == [late])
        for structure in (early, late):
            check_schedule(policy.schedule(structure), structure)


def test_graphs_of_different_models():
    with pytest.raises(
        PolicyError, match="but graph 1 has a/0 where another has t0/0; record all"
    ):
        train_policy([build([0], [[]], 2), chain("a")], [chain("a")])
    assert common_types([build([], [], 0)]) == ()


# ---- arguments ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"graphs": []}, "'graphs' and 'held_out' but 'graphs' is empty; sample some"),
        ({"held_out": ()}, "but 'held_out' is empty"),
        ({"trials": 0}, "'trials' is between 1 and inf but is 0; leave it out"),
        ({"n_step": 0}, "'n_step' is between 1 and inf but is 0"),
        ({"alpha": -0.1}, "'alpha' is between 0 and inf but is -0.1"),
        ({"alpha": float("inf")}, "'alpha' is a finite number but is inf; leave it"),
        ({"alpha": 10**400}, "'alpha' is a finite number but is 1000000"),
        ({"learning_rate": 1.5}, "'learning_rate' is between 0 and 1 but is 1.5"),
        ({"epsilon": float("nan")}, "'epsilon' is between 0 and 1 but is nan"),
        ({"generations": -1}, "'generations' is between 0 and inf but is -1"),
        ({"patience": 0}, "'patience' is between 1 and inf but is 0"),
        ({"trials": 2.5}, "'trials' is a whole number but is 2.5; leave it out"),
        ({"n_step": float("inf")}, "'n_step' is a whole number but is inf"),
        ({"patience": 1.0}, "'patience' is a whole number but is 1.0"),
        ({"generations": 0.5}, "'generations' is a whole number but is 0.5"),
        ({"resume": True}, "but 'checkpoint' is None; name the file that the interr"),
        ({"encoding": "bse"}, "but this is 'bse'; did you mean 'base'"),
    ],
)
def test_arguments_out_of_range(arguments, message):
    with pytest.raises(PolicyError, match=message):
        train_policy(**{"graphs": [chain("ab")], "held_out": [chain("ab")]} | arguments)


def test_whole_numbers_serve_as_fractions():
    graph = chain("ab")
    policy = train_policy([graph], [graph], alpha=1, learning_rate=1, epsilon=1)
    assert policy.training.stopped == "lower bound"


@pytest.mark.parametrize("n_step", [2**63, sys.maxsize, sys.maxsize - 3])
def test_more_steps_than_there_are_may_be_any_number(n_step):
    graph = tree("(((a)b)c((a)c)b)d")  # none of its schedules reaches the bound
    ours, theirs = (
        train_policy([graph], [graph], encoding="sort", trials=20, n_step=each)
        for each in (n_step, 100)
    )
    assert ours.states == theirs.states
    assert ours.training.n_step == n_step


def test_no_node_and_one_node():
    for graph in (build([], [], 1), chain("a")):
        policy = train_policy([graph], [graph])
        assert policy.training.held_out_batches == graph.num_nodes
        assert policy.training.stopped == "lower bound"


def test_many_types():
    graph = build([k % 100 for k in range(300)], [[]] * 300, 100)
    for encoding in ENCODINGS:
        policy = train_policy([graph], [graph], encoding=encoding)
        assert policy.training.stopped == "lower bound"
        assert policy.schedule(graph).num_batches == 100


def test_a_deep_chain():
    graph = long_chain(100_000)
    assert train_policy([graph], [graph]).training.stopped == "lower bound"
