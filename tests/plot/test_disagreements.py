import pytest
from figures import legend_labels, rendered

from edbatch.errors import PolicyError
from edbatch.plot import PlotError, plot_disagreements
from edbatch.plot.frontier_label import READING, frontier_label
from edbatch.policies import ENCODINGS, MachineState, StateMachine, trace_machine
from edbatch.schedule.examples import from_operands, tree

TREE = tree("((ab)cb)c")
MACHINE = StateMachine(
    TREE.type_keys, "base", (MachineState((0, 1), 1), MachineState((0,), 0))
)


def widths(axes):
    return [[bar.get_width() for bar in group] for group in axes.containers]


def test_shares_by_state():
    figure = rendered(plot_disagreements(MACHINE, [TREE]))
    shares, steps = figure.axes
    #   c: 2 steps;  ab: b runs, both heuristics would run a;  a
    assert widths(shares) == [[0, 100, 0], [0, 100, 0]]
    assert widths(steps) == [[2, 1, 1]]
    assert [each.get_text() for each in shares.get_yticklabels()] == [
        "c  1",
        "a, b  2",
        "a  3",
    ]
    assert shares.get_xlabel() == "steps in the state that differ (%)"
    assert steps.get_xlabel() == "steps"
    assert legend_labels(figure) == ["from agenda", "from greedy"]
    title = "Steps that differ: from agenda 25.0%, from greedy 25.0%"
    assert figure.get_suptitle() == title


def test_shares_are_those_of_the_trace():
    #   a state in which the greedy heuristic does not always choose the same type
    graphs = [from_operands("ab", [[], []]), from_operands("aab", [[], [0], []])]
    machine = StateMachine(graphs[0].type_keys, "base", (MachineState((0, 1), 0),))
    trace = trace_machine(machine, graphs)
    (agenda, greedy) = widths(plot_disagreements(machine, graphs).axes[0])
    for k in range(len(trace.frontiers)):
        here = trace.frontier == k
        for found, choice in ((agenda, trace.agenda), (greedy, trace.greedy)):
            differs = (choice != trace.action)[here].mean()
            assert found[k] == pytest.approx(100 * differs)
    assert 0 < max(agenda) < 100


def test_more_states_than_are_drawn():
    figure = plot_disagreements(MACHINE, [TREE], max_states=2)
    assert figure.axes[0].get_ylabel() == "state (2 most visited of 3)"
    assert widths(figure.axes[1]) == [[2, 1]]
    assert "25.0%" in figure.get_suptitle()  # of all steps


@pytest.mark.parametrize(
    ("encoding", "frontier", "label"),
    [
        ("base", (0, 1, 2), "aa, bb, cc"),
        ("max", (1, 0, 1, 2), "aa, *bb, cc"),
        ("sort", (2, 0, 1), "cc > aa > bb"),
    ],
)
def test_labels(encoding, frontier, label):
    names = ["aa", "bb", "cc"]
    assert frontier_label(encoding, frontier, names) == label
    assert frontier_label(encoding, frontier, names, limit=1).endswith("+2")
    assert frontier_label(encoding, frontier, names, limit=1).count("a") <= 2


def test_every_encoding_says_how_to_read_its_labels():
    assert {*ENCODINGS} <= {*READING}


def test_nothing_to_run_it_on():
    with pytest.raises(PolicyError, match="graphs with nodes but there are none"):
        plot_disagreements(MACHINE, [])


def test_no_state_to_draw():
    with pytest.raises(PlotError, match="1 state or more but max_states is 0"):
        plot_disagreements(MACHINE, [TREE], max_states=0)
