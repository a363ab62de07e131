from dataclasses import replace

import pytest
from figures import legend_labels, rendered

from edbatch.plot import PlotError, plot_training
from edbatch.plot.training import untrained_batches
from edbatch.policies import train_policy
from edbatch.schedule.examples import tree

TREE = tree("((ab)cb)c")


def record(workload="trees", encoding="sort", curve=((1, 9.0), (2, 8.0), (10, 7.5))):
    """A training record with a curve."""
    trained = train_policy([TREE], [TREE], workload=workload, encoding=encoding)
    return replace(
        trained.training,
        trials=10,
        elapsed_s=1.5,
        held_out_agenda=9.5,
        held_out_agenda_remaining=9.0,
        held_out_greedy=8.5,
        held_out_lower_bound=7.0,
        curve=curve,
    )


def test_best_so_far_and_levels():
    found = record(curve=((1, 9.0), (2, 8.0), (5, 8.5), (10, 7.5)))
    figure = rendered(plot_training([found]))
    (axes,) = figure.axes
    best, each, agenda, remaining, greedy, bound = axes.lines
    assert [*best.get_xdata()] == [*each.get_xdata()] == [1, 2, 5, 10]
    assert [*best.get_ydata()] == [9.0, 8.0, 8.0, 7.5]
    assert best.get_drawstyle() == "steps-post"
    assert best.get_markevery() == [0, 1, 3]  # where it improved
    assert [*each.get_ydata()] == [9.0, 8.0, 8.5, 7.5]
    assert each.get_alpha() < 1
    levels = [line.get_ydata()[0] for line in (agenda, remaining, greedy, bound)]
    assert levels == [9.5, 9.0, 8.5, 7.0]
    assert best.get_label() == "sort: 10 trials, 1.5 s"
    assert axes.get_title() == "trees"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("trials", "batches, held out")
    names = ["an evaluation", "agenda", "agenda-remaining", "greedy", "lower bound"]
    assert legend_labels(figure) == names


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.123, "0.12"), (99.4, "99"), (99.6, "100"), (123.4, "123"), (4321.0, "4,321")],
)
def test_what_a_training_took(seconds, text):
    (axes,) = plot_training([replace(record(), elapsed_s=seconds)]).axes
    assert axes.lines[0].get_label() == f"sort: 10 trials, {text} s"


def test_costs_are_not_called_batches():
    costs = replace(record(), by_cost=True)
    figure = rendered(plot_training([record(), costs, costs]))
    batches, by_cost = figure.axes
    assert batches.get_ylabel() == "batches, held out"
    assert by_cost.get_ylabel() == "cost in average batches, held out"
    assert batches.get_title() == by_cost.get_title() == "trees"


def test_levels_look_different_without_colour():
    (axes,) = plot_training([record()]).axes
    levels = axes.lines[2:]
    assert (
        len({(str(each._dash_pattern), each.get_linewidth()) for each in levels}) == 4
    )


def test_an_untrained_encoding_has_a_line():
    found = record(encoding="fall", curve=((0, 9.25), (0, 9.0), (1, 9.5), (2, 8.0)))
    figure = rendered(plot_training([found]))
    best, _, untrained, *_ = figure.axes[0].lines
    assert [*untrained.get_ydata()] == [9.25, 9.25]
    assert [*best.get_ydata()] == [9.25, 9.0, 9.0, 8.0]
    assert "encoding, untrained" in legend_labels(figure)
    assert untrained_batches(found) == 9.25
    assert untrained_batches(record()) is None  # follows greedy untrained


def test_heuristics_far_away_are_in_words():
    far = replace(record(), held_out_agenda=700.0)
    figure = rendered(plot_training([far]))
    (axes,) = figure.axes
    assert axes.get_ylim()[1] < 20
    assert axes.get_legend().get_title().get_text() == "↑ above: agenda 700"
    assert "agenda" not in legend_labels(figure)
    assert "agenda-remaining" in legend_labels(figure)


def test_where_greedy_met_the_bound_nothing_was_trained():
    policy = train_policy([TREE], [TREE], if_needed=True)
    (axes,) = plot_training([policy.training]).axes
    assert axes.lines[0].get_label() == "greedy, not trained"
    assert [*axes.lines[0].get_xdata()] == [0]


def test_a_record_that_does_not_know_agenda():
    figure = rendered(plot_training([replace(record(), held_out_agenda=None)]))
    names = ["an evaluation", "agenda-remaining", "greedy", "lower bound"]
    assert legend_labels(figure) == names


def test_a_lone_point_on_the_bound_shows():
    lone = record(curve=((0, 7.0),))
    (axes,) = plot_training([replace(lone, held_out_greedy=7.0)]).axes
    curve, *_, greedy, bound = axes.lines
    assert curve.get_markersize() > greedy.get_linewidth()
    assert curve.get_zorder() > max(greedy.get_zorder(), bound.get_zorder())


def test_records_of_one_workload_share_a_panel():
    records = [record(), record("lattices"), record(encoding="max")]
    figure = rendered(plot_training(records))
    assert [axes.get_title() for axes in figure.axes] == ["trees", "lattices"]
    labels = [
        [text.get_text() for text in axes.get_legend().get_texts()]
        for axes in figure.axes
    ]
    assert [[each.split(":")[0] for each in panel] for panel in labels] == [
        ["sort", "max"],
        ["sort"],
    ]


def test_the_legend_stands_above_the_curves():
    figure = rendered(plot_training([record(encoding=e) for e in ("base", "max")]))
    (axes,) = figure.axes
    box = axes.get_legend().get_window_extent().transformed(axes.transData.inverted())
    assert box.y0 > 9.5  # the highest line


@pytest.mark.parametrize("trial", [0, 1, 1000])
def test_one_judgement(trial):
    figure = rendered(plot_training([record(curve=((trial, 7.0),))]))
    axes = figure.axes[0]
    assert [*axes.lines[0].get_xdata()] == [trial]
    low, high = axes.get_xlim()
    assert low < trial < high


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "needs training records but there is none; give"),
        ([record(curve=())], "that of 'trees' has none: training was interrupted"),
    ],
)
def test_what_cannot_be_drawn(records, message):
    with pytest.raises(PlotError, match=message):
        plot_training(records)
