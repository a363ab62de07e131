import itertools

import numpy as np
import pytest
from figures import legend_labels, overlapping, rendered
from random_graphs import build

from edbatch.envs import sample_tree_structure
from edbatch.errors import PolicyError
from edbatch.plot import PlotError, plot_schedules, plot_state_machine
from edbatch.plot.state_groups import MANY_TYPES, group_states, most_frequent_action
from edbatch.plot.state_layout import lay_out_states
from edbatch.plot.type_style import type_styles
from edbatch.policies import MachineState, StateMachine, trace_machine, train_policy
from edbatch.schedule.examples import chain, tree

TREE = tree("((ab)cb)c")  # 0 a, 1 b, 2 c(0 1), 3 b, 4 c(2 3)
MACHINE = StateMachine(
    TREE.type_keys, "base", (MachineState((0, 1), 1), MachineState((0,), 0))
)
# Its steps on the tree are: ab, a, c, c. States by visits: 0 c, 1 ab, 2 a.


def texts(figure):
    return [each.get_text() for each in figure.axes[0].texts]


def circles(figure):
    """Areas of the circles by position, without those of the legend."""
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


def laid_out(trace, max_states):
    return lay_out_states(trace, group_states(trace, max_states))


def many_states():
    """A machine with dozens of states, and the graph that it is run on."""
    rng = np.random.default_rng(0)
    n = 400
    reads = [[*rng.integers(max(0, v - 9), v, 2)] if v else [] for v in range(n)]
    structure = build(rng.integers(0, 5, n).tolist(), reads, 5)
    return StateMachine(structure.type_keys, "base"), structure


def test_moves_and_stays_are_those_of_the_steps():
    layout = laid_out(trace_machine(MACHINE, [TREE] * 3), 10)
    start, end = 3, 4
    assert sorted(map(tuple, layout.moves.tolist())) == [
        (0, end, 3),
        (1, 2, 3),
        (2, 0, 3),
        (start, 1, 3),
    ]
    assert layout.is_main.all()
    assert layout.stays.tolist() == [3, 0, 0]
    #   from left to right: start, ab, a, c, end
    columns = layout.place[:, 0]
    assert columns[[start, 1, 2, 0, end]].tolist() == [-1, 0, 1, 2, 3]


def test_one_state_beyond_the_limit_stands_by_itself():
    trace = trace_machine(MACHINE, [TREE])
    assert group_states(trace, 2).members.tolist() == [1, 1, 1]


def test_states_beyond_the_limit_are_groups():
    trace = trace_machine(MACHINE, [TREE])
    groups = group_states(trace, 1)
    #   c has a circle; b runs in ab, a in a: each alone in its group
    assert groups.members.tolist() == [1, 1, 1]
    graph = chain("aabacad")
    trace = trace_machine(StateMachine(graph.type_keys, "base"), [graph])
    assert group_states(trace, 1).members.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("limit", [1, 3, 8])
def test_groups_hold_the_states_in_which_one_type_runs(limit):
    machine, structure = many_states()
    trace = trace_machine(machine, [structure])
    groups = group_states(trace, limit)
    runs = most_frequent_action(trace)
    assert len(trace.frontiers) == groups.members.sum() > 20
    assert groups.node[:limit].tolist() == [*range(limit)]
    assert groups.visits.tolist() == [
        trace.visits[groups.node == k].sum() for k in range(len(groups.members))
    ]
    for k, members in enumerate(groups.members):
        assert {*runs[groups.node == k].tolist()} == {groups.runs[k]}
        if members == 1:
            assert groups.node[groups.state[k]] == k
    #   rarer states that run the same type are in one group
    rare = groups.runs[limit:]
    assert len({*rare.tolist()}) == len(rare) <= 5


def test_more_types_than_groups():
    n = 12
    structure = build([*range(n)] * 2, [[]] * n + [[k] for k in range(n)], n)
    states = [MachineState((k,), k) for k in range(n)]
    trace = trace_machine(
        StateMachine(structure.type_keys, "base", tuple(states)), [structure]
    )
    groups = group_states(trace, 2)
    assert len(groups.members) == 2 + 6
    assert groups.runs[-1] == MANY_TYPES
    assert groups.members.tolist()[-1] > 1
    figure = rendered(
        plot_state_machine(StateMachine(structure.type_keys, "base"), [structure], 2)
    )
    assert "several types run" in legend_labels(figure)


def test_main_moves_are_few_and_leave_no_state_alone():
    machine, structure = many_states()
    layout = laid_out(trace_machine(machine, [structure]), 8)
    count = len(layout.stays)
    assert 1.5 * count - 1 <= layout.is_main.sum() < 0.8 * len(layout.moves)
    assert {*layout.moves[layout.is_main, 0]} >= {*range(count)}
    assert {*layout.moves[layout.is_main, 1]} >= {*range(count)}
    steps = layout.moves[:, 2]
    assert [*steps] == sorted(steps, reverse=True)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 9, 16, 40])
def test_no_two_states_have_one_place(count):
    machine, structure = many_states()
    layout = laid_out(trace_machine(machine, [structure]), count)
    shown = len(layout.stays)
    places = {tuple(each) for each in layout.place.tolist()}
    assert len(places) == shown + 2
    for one, other in itertools.combinations(layout.place[:shown], 2):
        assert one[0] != other[0] or abs(one[1] - other[1]) >= 1


def test_states_are_numbered_sized_and_labelled():
    figure = rendered(plot_state_machine(MACHINE, [TREE]))
    layout = laid_out(trace_machine(MACHINE, [TREE]), 16)
    drawn = circles(figure)
    areas = [drawn[tuple(place)] for place in layout.place.tolist()[:3]]
    assert areas[0] > areas[1] == areas[2]
    assert {"1", "2", "3", "▸c", "a\n▸b", "▸a", "↻1", "start", "end"} == {
        *texts(figure)
    }
    assert len(arrows(figure)) == 4
    assert legend_labels(figure) == ["runs a", "runs b", "runs c", "not in the table"]


def test_rare_moves_are_pale_or_counted():
    machine, structure = many_states()
    layout = laid_out(trace_machine(machine, [structure]), 8)
    figure = rendered(plot_state_machine(machine, [structure], max_states=8))
    drawn = arrows(figure)
    assert len(drawn) == layout.is_drawn.sum() < len(layout.moves)
    dark = min(each.get_edgecolor() for each in drawn)
    main = [each for each in drawn if each.get_edgecolor() == dark]
    assert len(main) == layout.is_main.sum() < len(drawn)
    left_out = layout.moves[~layout.is_drawn, 2]
    note = figure.legends[0].get_title().get_text()
    assert f"not drawn: {len(left_out)} moves taken at most {left_out.max()}" in note


def test_groups_have_a_ring_and_say_how_many_states_they_hold():
    machine, structure = many_states()
    groups = group_states(trace_machine(machine, [structure]), 3)
    figure = rendered(plot_state_machine(machine, [structure], max_states=3))
    ring, *_ = figure.axes[0].collections
    assert len(ring.get_offsets()) == (groups.members > 1).sum() > 1
    found = [each for each in texts(figure) if "rarer states" in each]
    names = [str(key.cell) for key in structure.type_keys]
    assert found == [
        f"▸{names[t]}\n{members} rarer states"
        for t, members in zip(groups.runs, groups.members, strict=True)
        if members > 1
    ]


def test_a_type_has_one_colour_in_all_pictures_of_a_model():
    from matplotlib.colors import to_rgba

    machine, structure = many_states()
    # The policy lists the types in another order, and one absent from the minibatch.
    elsewhere = StateMachine((*chain("x").type_keys, *machine.types[::-1]), "base")
    styles = type_styles(None, [structure])
    schedules = plot_schedules([elsewhere.schedule(structure)], structure)
    machines = plot_state_machine(elsewhere, [structure])
    for prefix, figure in (("", schedules), ("runs ", machines)):
        legend = figure.legends[0]
        found = dict(zip(legend_labels(figure), legend.legend_handles, strict=True))
        for key, style in styles.items():
            color = np.ravel(found[f"{prefix}{key.cell}"].get_facecolor())
            assert tuple(color) == to_rgba(style.color)


def test_areas_grow_with_the_steps():
    figure = rendered(plot_state_machine(MACHINE, [TREE]))
    layout = laid_out(trace_machine(MACHINE, [TREE]), 16)
    drawn = circles(figure)
    one, two = (drawn[tuple(layout.place[k].tolist())] for k in (0, 1))
    assert one == pytest.approx(2 * two)  # 2 steps and 1


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
