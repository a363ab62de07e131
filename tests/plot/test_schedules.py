from dataclasses import replace

import numpy as np
import pytest
from figures import legend_labels, overlapping, rendered
from random_graphs import build, long_chain

from edbatch.envs import sample_tree_structure
from edbatch.graph import TypeKey
from edbatch.plot import PlotError, plot_schedules
from edbatch.plot.type_style import type_style
from edbatch.policies import Agenda, Depth, Greedy
from edbatch.schedule import lower_bound
from edbatch.schedule.examples import chain, from_operands, tree

TREES = [sample_tree_structure(np.random.default_rng(k)) for k in range(3)]


def bars_of(axes):
    """Number, height, colour and hatch of each bar, sorted by number."""
    found = [
        (
            round(bar.get_x() + bar.get_width() / 2),
            bar.get_height(),
            bar.get_facecolor(),
            bar.get_hatch(),
        )
        for container in axes.containers
        for bar in container
    ]
    return sorted(found)


@pytest.mark.parametrize("structure", TREES)
def test_bars_are_the_batches(structure):
    from matplotlib.colors import to_rgba

    schedules = [each.schedule(structure) for each in (Depth(), Agenda(), Greedy())]
    figure = rendered(plot_schedules(schedules, structure))
    assert len(figure.axes) == 3
    for axes, schedule in zip(figure.axes, schedules, strict=True):
        number, width, color, _ = zip(*bars_of(axes), strict=True)
        assert [*number] == [*range(1, schedule.num_batches + 1)]
        assert [*width] == np.diff(schedule.batch_start).tolist()
        styles = [type_style(t) for t in schedule.batch_type.tolist()]
        assert [*color] == [to_rgba(each.color) for each in styles]


def test_titles_axes_and_legend():
    graph = from_operands("abb", [[], [0], [1]])
    figure = plot_schedules({"by depth": Depth().schedule(graph)}, graph)
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "by depth: 3 batches, 1.00 × lower bound"
    assert axes.get_xlabel() == "batch number"
    assert axes.get_yscale() == "log"
    assert figure.get_supylabel() == "nodes in the batch"
    assert legend_labels(figure) == ["a", "b", "lower bound (3)"]


@pytest.mark.parametrize("bound", [None, 2])
def test_the_bound_is_a_line_where_a_schedule_that_meets_it_ends(bound):
    graph = TREES[0]
    figure = plot_schedules([Depth().schedule(graph)] * 2, graph, bound)
    expected = lower_bound(graph) if bound is None else bound
    for axes in figure.axes:
        (line,) = axes.lines
        assert [*line.get_xdata()] == [expected + 0.5] * 2
    assert legend_labels(figure)[-1] == f"lower bound ({expected})"


def test_all_rows_have_the_same_axes():
    graph = TREES[0]
    short, long = Greedy().schedule(graph), Depth().schedule(graph)
    assert short.num_batches < long.num_batches
    figure = plot_schedules([short, long], graph)
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    assert figure.axes[0].get_xlim()[1] > long.num_batches


def test_schedules_without_a_policy_have_a_title_too():
    graph = chain("a")
    schedule = replace(Depth().schedule(graph), policy="")
    figure = plot_schedules([schedule], graph)
    title = figure.axes[0].get_title(loc="left")
    assert title == "schedule: 1 batch, 1.00 × lower bound"


def test_names_of_schedules_are_not_formulas():
    graph = tree("((ab)cb)c")
    figure = rendered(plot_schedules({r"$\x$": Depth().schedule(graph)}, graph))
    assert figure.axes[0].get_title(loc="left").startswith(r"\$\x\$: ")


def test_five_hundred_batches_touch():
    graph = long_chain(500)
    figure = rendered(plot_schedules([Depth().schedule(graph)], graph))
    bars = [bar for each in figure.axes[0].containers for bar in each]
    assert len(bars) == 500
    assert {bar.get_width() for bar in bars} == {1.0}
    ticks = [each for each in figure.axes[0].get_xticklabels() if each.get_text()]
    assert not overlapping(ticks, figure)


def test_sixty_types_have_each_an_entry_and_a_look():
    structure = build(range(60), [[]] * 60, 60)
    figure = rendered(plot_schedules([Depth().schedule(structure)], structure))
    looks = {(color, hatch) for *_, color, hatch in bars_of(figure.axes[0])}
    assert len(looks) == 60
    assert legend_labels(figure)[:60] == [f"t{k}" for k in range(60)]
    texts = figure.legends[0].get_texts()
    assert not overlapping(texts, figure)


def test_types_may_decide_the_colours():
    from matplotlib.colors import to_rgba

    graph = from_operands("abb", [[], [0], [1]])
    schedule = Depth().schedule(graph)
    figure = plot_schedules([schedule], graph, types=graph.type_keys[::-1])
    colors = [color for *_, color, _ in bars_of(figure.axes[0])]
    b, a = (to_rgba(type_style(k).color) for k in (0, 1))
    assert colors == [a, b, b]


@pytest.mark.parametrize(("length", "has_hatches"), [(20, True), (500, False)])
def test_narrow_bars_have_no_hatches(length, has_hatches):
    structure = build([k % 4 for k in range(length)], [[]] * length, 4)
    start = np.arange(length + 1, dtype=np.int32)
    one_by_one = replace(
        Depth().schedule(structure),
        order=start[:-1],
        batch_start=start,
        batch_type=structure.node_type,
    )
    figure = plot_schedules([one_by_one], structure)
    hatches = {hatch for *_, hatch in bars_of(figure.axes[0])}
    assert (hatches != {""}) == has_hatches


def test_types_without_a_node_are_not_in_the_legend():
    structure = build([1], [[]], 3)
    figure = plot_schedules([Depth().schedule(structure)], structure)
    assert legend_labels(figure) == ["t1", "lower bound (1)"]


def test_long_names_do_not_overlap():
    keys = tuple(TypeKey("a_cell_with_a_long_name", f"layers.{k}.p", k) for k in "12")
    structure = replace(build([0, 1], [[], [0]], 2), type_keys=keys)
    figure = plot_schedules([Depth().schedule(structure)], structure)
    assert not overlapping(figure.legends[0].get_texts(), figure)


@pytest.mark.parametrize(
    ("schedules", "structure", "message"),
    [
        ([], chain("a"), "but there is no schedule; give policy.schedule"),
        ({}, chain("a"), "but there is no schedule"),
        ([Depth().schedule(build([], [], 1))], build([], [], 1), "graph has no node"),
        (
            {"one": Depth().schedule(chain("ab"))},
            chain("abc"),
            "of one minibatch but 'one' has 2 nodes and the graph 3; schedule this",
        ),
        (
            [Depth().schedule(chain("ab"))],
            build([0, 0], [[], []], 1),
            "of its graph but 'depth' is of another one .* schedule this graph",
        ),
        (Depth().schedule(chain("a")), chain("a"), "must be a list.*usually a sched"),
        (None, chain("a"), "must be a list.* usually a schedule"),
        ([Depth()], chain("a"), "each schedule of a picture is a schedule, as policy"),
        ({"a": "greedy"}, chain("a"), "each schedule of a picture is a schedule"),
    ],
)
def test_what_cannot_be_drawn(schedules, structure, message):
    with pytest.raises(PlotError, match=message):
        plot_schedules(schedules, structure)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bound": "x"}, "the bound of a picture of schedules"),
        ({"types": 3}, "the types of a picture of schedules"),
    ],
)
def test_other_arguments_that_cannot_be(options, message):
    graph = chain("ab")
    with pytest.raises(PlotError, match=message):
        plot_schedules([Depth().schedule(graph)], graph, **options)
