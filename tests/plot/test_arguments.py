"""Errors of plots and comparisons for arguments that are nearly right."""

import pytest
from trees import encode, make_params, sample_trees

import edbatch as eb
from edbatch import plot
from edbatch.policies import Greedy, MachineState, StateMachine, compare, trace_machine
from edbatch.schedule.examples import tree

pytest.importorskip("matplotlib")

GRAPH = tree("((ab)cb)c")
MACHINE = StateMachine(GRAPH.type_keys, "base", (MachineState((0, 1), 1),))
ROWS = compare([Greedy()], [GRAPH])


def recorded():
    return eb.batch(encode, params=make_params()).graph(sample_trees(0, 2))


CALLS = {
    "names": (lambda: compare(["greedy"], [GRAPH]), r"'greedy'.*write .*Greedy\(\)"),
    "one policy": (lambda: compare(Greedy(), [GRAPH]), r"a policy, but .*write \[it\]"),
    "one graph": (lambda: compare([Greedy()], GRAPH), r"a list.*write \[it\]"),
    "recording": (
        lambda: compare([Greedy()], [recorded()]),
        r"number 0 of .* DataflowGraph; write batched\.graph\(instances\)\.structure",
    ),
    "trace of one graph": (lambda: trace_machine(MACHINE, GRAPH), r"write \[it\]"),
    "trace of a heuristic": (
        lambda: trace_machine(Greedy(), [GRAPH]),
        "is a StateMachine, .* of type Greedy",
    ),
    "schedules": (
        lambda: plot.plot_schedules([Greedy().schedule(GRAPH)], recorded()),
        r"\.structure",
    ),
    "actions": (lambda: plot.plot_actions(Greedy()), "is a StateMachine"),
    "actions on one": (lambda: plot.plot_actions(MACHINE, 3, GRAPH), r"write \[it\]"),
    "states": (
        lambda: plot.plot_state_machine(Greedy(), [GRAPH]),
        "is a StateMachine",
    ),
    "states on one": (
        lambda: plot.plot_state_machine(MACHINE, GRAPH),
        r"write \[it\]",
    ),
    "disagreements": (
        lambda: plot.plot_disagreements(Greedy(), [GRAPH]),
        "is a StateMachine",
    ),
    "training": (lambda: plot.plot_training(MACHINE), r"policy\.training"),
    "no training": (lambda: plot.plot_training([None]), r"policy\.training"),
    "comparison": (lambda: plot.plot_comparison(ROWS), "a dict {name of a workload"),
    "generalisation": (lambda: plot.plot_generalisation(ROWS), "a dict {batch size"),
}


@pytest.mark.parametrize("name", CALLS)
def test_arguments_that_are_nearly_right(name):
    call, message = CALLS[name]
    with pytest.raises(eb.EdbatchError, match=message):
        call()
