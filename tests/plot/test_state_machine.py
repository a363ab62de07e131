import itertools

import numpy as np
import pytest
from figures import legend_labels, overlapping, rendered
from random_graphs import build

from edbatch.envs import sample_tree_structure
from edbatch.errors import PolicyError
from edbatch.plot import PlotError, plot_state_machine
from edbatch.plot.state_layout import lay_out_states
from edbatch.policies import MachineState, StateMachine, trace_machine, train_policy
from edbatch.schedule.examples import chain, tree

TREE = tree("((ab)cb)c")  # 0 a, 1 b, 2 c(0 1), 3 b, 4 c(2 3)
MACHINE = StateMachine(
    TREE.type_keys, "base", (MachineState((0, 1), 1), MachineState((0,), 0))
)
# Its steps on the tree are: ab, a, c, c. By visits: 0 c, 1 ab, 2 a.


def texts(figure):
    return [each.get_text() for each in figure.axes[0].texts]


def circles(figure):
    """Position and area of what is drawn as circles, without the legend's."""
    return {
        tuple(place): area
        for group in figure.axes[0].collections
        for place, area in zip(
            group.get_offsets().tolist(),
            np.broadcast_to(group.get_sizes(), len(group.get_offsets())).tolist(),
            strict=True,
        )
    }


def arrows(figure):
    from matplotlib.patches import FancyArrowPatch

    patches = figure.axes[0].patches
    return [each for each in patches if isinstance(each, FancyArrowPatch)]


def test_moves_and_stays_are_those_of_the_steps():
    layout = lay_out_states(trace_machine(MACHINE, [TREE] * 3), 10)
    start, end = 3, 4
    assert sorted(map(tuple, layout.moves.tolist())) == [
        (0, end, 3, 0),
        (1, 2, 3, 0),
        (2, 0, 3, 0),
        (start, 1, 3, 0),
    ]
    assert layout.stays.tolist() == [3, 0, 0]
    #   from left to right: start, ab, a, c, end
    columns = layout.place[:, 0]
    assert columns[[start, 1, 2, 0, end]].tolist() == [-1, 0, 1, 2, 3]


def test_a_way_through_states_that_are_not_drawn_is_one_move():
    layout = lay_out_states(trace_machine(MACHINE, [TREE]), 1)
    start, end = 1, 2
    assert sorted(map(tuple, layout.moves.tolist())) == [
        (0, end, 1, 0),
        (start, 0, 1, 1),
    ]
    assert layout.stays.tolist() == [1]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 9, 16, 40])
def test_no_two_states_have_one_place(count):
    rng = np.random.default_rng(0)
    n = 400
    operands = [
        rng.integers(max(0, v - 9), v, 2).tolist() if v else [] for v in range(n)
    ]
    structure = build(rng.integers(0, 5, n).tolist(), operands, 5)
    machine = StateMachine(structure.type_keys, "sort")
    layout = lay_out_states(trace_machine(machine, [structure]), count)
    shown = len(layout.stays)
    places = {tuple(each) for each in layout.place.tolist()}
    assert shown == count
    assert len(places) == shown + 2
    for one, other in itertools.combinations(layout.place[:shown], 2):
        assert one[0] != other[0] or abs(one[1] - other[1]) >= 1


def test_states_are_numbered_sized_and_labelled():
    figure = rendered(plot_state_machine(MACHINE, [TREE]))
    layout = lay_out_states(trace_machine(MACHINE, [TREE]), 16)
    drawn = circles(figure)
    areas = [drawn[tuple(place)] for place in layout.place.tolist()[:3]]
    assert areas[0] > areas[1] == areas[2]
    assert {"1", "2", "3", "▸c", "a\n▸b", "▸a", "↻1", "start", "end"} == {
        *texts(figure)
    }
    assert len(arrows(figure)) == 4
    assert legend_labels(figure) == ["runs a", "runs b", "runs c", "not in the table"]


def test_rare_moves_are_counted_where_there_are_many():
    rng = np.random.default_rng(0)
    n = 400
    reads = [[*rng.integers(max(0, v - 9), v, 2)] if v else [] for v in range(n)]
    structure = build(rng.integers(0, 5, n).tolist(), reads, 5)
    machine = StateMachine(structure.type_keys, "base")
    layout = lay_out_states(trace_machine(machine, [structure]), 8)
    figure = rendered(plot_state_machine(machine, [structure], max_states=8))
    steps = sorted(layout.moves[:, 2].tolist(), reverse=True)
    assert len(steps) > 3 * 8
    drawn = len(arrows(figure))
    assert 3 * 8 <= drawn <= 3 * 8 + 2  # and those of start and end
    note = figure.legends[0].get_title().get_text()
    most = steps[3 * 8]
    assert f"not drawn: {len(steps) - drawn} moves taken at most {most} time" in note


def test_areas_grow_with_the_steps():
    figure = rendered(plot_state_machine(MACHINE, [TREE]))
    layout = lay_out_states(trace_machine(MACHINE, [TREE]), 16)
    drawn = circles(figure)
    one, two = (drawn[tuple(layout.place[k].tolist())] for k in (0, 1))
    assert one == pytest.approx(2 * two)  # 2 steps and 1


def test_what_is_left_out_is_said():
    figure = plot_state_machine(MACHINE, [TREE], max_states=1)
    assert figure.get_suptitle() == (
        "Policy with encoding 'base': 3 states, 4 steps (shown: 1 state, 50% of the"
        " steps)"
    )
    assert legend_labels(figure)[-1] == "through states not shown"


def test_all_but_a_few_steps_are_not_all_steps():
    graph = chain("a" * 999 + "b")
    figure = plot_state_machine(StateMachine(graph.type_keys, "base"), [graph], 1)
    assert figure.get_suptitle().endswith("(shown: 1 state, 99% of the steps)")


def test_many_types_are_counted_but_not_the_one_that_runs():
    n = 9
    structure = build(range(n), [[]] * n, n)
    machine = StateMachine(
        structure.type_keys, "base", (MachineState(tuple(range(n)), 8),)
    )
    found = texts(plot_state_machine(machine, [structure]))
    assert "t0\nt1\nt2\n▸t8\n+5 more" in found


@pytest.mark.parametrize(
    ("encoding", "label"),
    [("max", "a\n▸*b"), ("sort", "▸b\na"), ("base", "a\n▸b"), ("fall", "a\n▸b")],
)
def test_labels_by_encoding(encoding, label):
    frontier = {"max": (1, 0, 1), "sort": (1, 0)}.get(encoding, (0, 1))
    machine = StateMachine(TREE.type_keys, encoding, (MachineState(frontier, 1),))
    assert label in texts(plot_state_machine(machine, [TREE]))


def test_one_batch():
    graph = chain("a")
    machine = StateMachine(graph.type_keys, "sort", (MachineState((0,), 0),))
    figure = rendered(plot_state_machine(machine, [graph]))
    assert figure.get_suptitle() == "Policy with encoding 'sort': 1 state, 1 step"
    assert len(arrows(figure)) == 2


def test_labels_of_a_trained_policy_do_not_overlap():
    rng = np.random.default_rng(0)
    graphs = [sample_tree_structure(rng) for _ in range(4)]
    machine = train_policy(graphs, graphs, trials=50)
    figure = plot_state_machine(machine, graphs)
    labels = [each for each in figure.axes[0].texts if "▸" in each.get_text()]
    assert labels
    assert not overlapping(labels, figure)


def test_nothing_to_run_it_on():
    with pytest.raises(PolicyError, match="graphs with nodes but there are none"):
        plot_state_machine(MACHINE, [])


def test_no_state_to_draw():
    with pytest.raises(PlotError, match="1 state or more but max_states is -1"):
        plot_state_machine(MACHINE, [TREE], max_states=-1)
