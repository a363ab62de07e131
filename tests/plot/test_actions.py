import numpy as np
import pytest
from figures import legend_labels, rendered

from edbatch.envs import sample_tree_structure
from edbatch.plot import PlotError, plot_actions, plot_state_machine
from edbatch.plot.type_style import type_style
from edbatch.policies import MachineState, StateMachine, trace_machine, train_policy
from edbatch.schedule.examples import chain

TYPES = chain("abc").type_keys


def machine(encoding, *states):
    return StateMachine(TYPES, encoding, states)


def points(axes):
    """Positions (column, row) of each group of points, in drawing order."""
    return [
        sorted(map(tuple, group.get_offsets().tolist()))
        for group in axes.collections
        if len(group.get_offsets())
    ]


def test_most_visited_states_come_first():
    policy = machine(
        "base",
        MachineState((0, 1), 1, visits=2),
        MachineState((0,), 0, visits=9),
        MachineState((1, 2), 2, visits=5),
    )
    figure = rendered(plot_actions(policy))
    grid, bars = figure.axes
    ready, runs = points(grid)
    #   row 0: a;  row 1: b, c;  row 2: a, b
    assert ready == [(0, 0), (0, 2), (1, 1), (1, 2), (2, 1)]
    assert runs == [(0, 0), (1, 2), (2, 1)]
    assert [bar.get_width() for bar in bars.patches] == [9, 5, 2]
    assert [each.get_text() for each in grid.get_xticklabels()] == ["a", "b", "c"]
    assert grid.get_xlabel() == "type of operation"
    assert bars.get_xlabel() == "visits in training"
    assert legend_labels(figure) == ["ready", "ready, runs"]


@pytest.mark.parametrize(
    ("encoding", "frontier", "numbers"),
    [
        ("base", (0, 2), []),
        ("max", (2, 0, 2), ["1"]),
        ("sort", (2, 0), ["1", "2"]),
        ("fall", (2, 0), ["1", "2"]),
    ],
)
def test_numbers_tell_the_order(encoding, frontier, numbers):
    figure = plot_actions(machine(encoding, MachineState(frontier, 0)))
    grid = figure.axes[0]
    assert [text.get_text() for text in grid.texts] == numbers
    ready, runs = points(grid)
    assert (ready, runs) == ([(0, 0), (2, 0)], [(0, 0)])
    if numbers:
        assert grid.texts[0].xy == (2, 0)


def test_more_states_than_are_drawn():
    states = [MachineState((k,), k, visits=k + 1) for k in range(3)]
    figure = plot_actions(machine("base", *states), max_states=2)
    assert figure.get_suptitle() == "Policy with encoding 'base': 3 states"
    assert figure.axes[0].get_ylabel() == "state (2 most visited of 3)"
    assert [bar.get_width() for bar in figure.axes[1].patches] == [3, 2]


@pytest.mark.parametrize(("least", "scale"), [(0, "linear"), (2, "log")])
def test_visits_of_very_different_size(least, scale):
    states = (MachineState((0,), 0, 1000), MachineState((1,), 1, least))
    figure = rendered(plot_actions(machine("base", *states)))
    assert figure.axes[1].get_xscale() == scale


def test_one_state_without_visits():
    figure = rendered(plot_actions(machine("sort", MachineState((0,), 0))))
    assert figure.get_suptitle() == "Policy with encoding 'sort': 1 state"


def test_sixty_types():
    types = tuple(key for k in range(20) for key in chain("abc").type_keys)
    state = MachineState(tuple(range(60)), 59, 5)
    figure = rendered(plot_actions(StateMachine(types, "sort", (state,))))
    assert len(figure.axes[0].get_xticklabels()) == 60


@pytest.mark.parametrize(
    ("encoding", "follows"),
    [("sort", "the greedy heuristic"), ("fall", "its encoding's first type")],
)
def test_a_policy_without_states(encoding, follows):
    with pytest.raises(PlotError, match=f"has none: it follows {follows} everywhere"):
        plot_actions(machine(encoding))


def test_no_state_to_draw():
    with pytest.raises(PlotError, match="1 state or more but max_states is 0"):
        plot_actions(machine("sort", MachineState((0,), 0)), max_states=0)


@pytest.fixture(scope="module")
def trained():
    """A policy that is not greedy, and minibatches to run it on."""
    rng = np.random.default_rng(0)
    graphs = [sample_tree_structure(rng, instances=8, kinds=2) for _ in range(6)]
    policy = train_policy(graphs[:3], graphs[3:], trials=50)
    assert policy.states
    return policy, graphs[3:]


def test_on_minibatches_states_stand_by_disagreement_with_greedy(trained):
    policy, graphs = trained
    trace = trace_machine(policy, graphs)
    differs = trace.action != trace.greedy
    steps = np.bincount(trace.frontier[differs], minlength=len(trace.frontiers))
    assert len({*steps.tolist()}) > 1
    figure = rendered(plot_actions(policy, structures=graphs))
    grid, bars = figure.axes
    count = len(trace.frontiers)
    widths = [bar.get_width() for bar in bars.patches]
    assert widths[:count] == sorted(steps.tolist(), reverse=True)
    #   the rank by steps, as in the picture of the machine
    numbers = [int(each.get_text()) - 1 for each in grid.get_yticklabels()]
    assert widths[:count] == steps[numbers].tolist()
    assert np.add(widths[:count], widths[count:]).tolist() == [
        *trace.visits[numbers].tolist()
    ]
    share = f"greedy would differ at {differs.mean():.0%} of the steps"
    assert figure.get_suptitle().endswith(share)
    assert bars.get_xlabel() == "steps"


def test_triangles_say_what_greedy_would_run(trained):
    policy, graphs = trained
    trace = trace_machine(policy, graphs)
    figure = rendered(plot_actions(policy, structures=graphs))
    grid = figure.axes[0]
    numbers = [int(each.get_text()) - 1 for each in grid.get_yticklabels()]
    _, _, triangles = points(grid)
    assert triangles
    for column, row in triangles:
        here = trace.frontier == numbers[int(row)]
        instead = trace.greedy[here & (trace.action != trace.greedy)]
        assert np.bincount(instead).argmax() == column
    assert "greedy would run, most often" in legend_labels(figure)


def test_circles_have_the_colours_of_types(trained):
    from matplotlib.colors import to_rgba

    policy, graphs = trained
    machine = plot_state_machine(policy, graphs)
    legend = dict(
        zip(legend_labels(machine), machine.legends[0].legend_handles, strict=True)
    )
    circles = plot_actions(policy, structures=graphs).axes[0].collections[1]
    keys = trace_machine(policy, graphs).types
    columns = circles.get_offsets()[:, 0].astype(int)
    for column, color in zip(columns, circles.get_facecolor(), strict=True):
        there = legend[f"runs {keys[column].cell}"].get_facecolor()
        assert tuple(color) == tuple(np.ravel(there))
    alone = plot_actions(policy, types=policy.types[::-1]).axes[0].collections[1]
    last = len(policy.types) - 1
    expected = [
        to_rgba(type_style(last - int(column)).color)
        for column in alone.get_offsets()[:, 0]
    ]
    assert [tuple(each) for each in alone.get_facecolor()] == expected


def test_a_policy_without_states_may_be_run(trained):
    _, graphs = trained
    machine = StateMachine(graphs[0].type_keys, "sort")
    figure = rendered(plot_actions(machine, structures=graphs))
    assert "greedy would" not in figure.get_suptitle()
    assert "greedy would run, most often" not in legend_labels(figure)
