import pytest
from figures import legend_labels, rendered

from edbatch.plot import PlotError, plot_actions
from edbatch.policies import MachineState, StateMachine
from edbatch.schedule.examples import chain

TYPES = chain("abc").type_keys


def machine(encoding, *states):
    return StateMachine(TYPES, encoding, states)


def points(axes):
    """Positions (column, row) by the drawing order of the groups of points."""
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
