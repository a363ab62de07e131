from dataclasses import replace

import pytest
from figures import legend_labels, rendered

from edbatch.plot import PlotError, plot_training
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


def test_curve_and_levels():
    figure = rendered(plot_training([record()]))
    (axes,) = figure.axes
    curve, agenda, remaining, greedy, bound = axes.lines
    assert [*curve.get_xdata()] == [1, 2, 10]
    assert [*curve.get_ydata()] == [9.0, 8.0, 7.5]
    levels = [line.get_ydata()[0] for line in (agenda, remaining, greedy, bound)]
    assert levels == [9.5, 9.0, 8.5, 7.0]
    assert curve.get_label() == "sort: 10 trials, 1.5 s"
    assert axes.get_title() == "trees"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("trials", "batches, held out")
    names = ["agenda", "agenda-remaining", "greedy", "lower bound"]
    assert legend_labels(figure) == names


def test_where_greedy_met_the_bound_nothing_was_trained():
    policy = train_policy([TREE], [TREE], if_needed=True)
    (axes,) = plot_training([policy.training]).axes
    assert axes.lines[0].get_label() == "greedy, not trained"
    assert [*axes.lines[0].get_xdata()] == [0]


def test_a_record_that_does_not_know_agenda():
    figure = rendered(plot_training([replace(record(), held_out_agenda=None)]))
    assert legend_labels(figure) == ["agenda-remaining", "greedy", "lower bound"]


def test_a_lone_point_on_the_bound_shows():
    lone = record(curve=((0, 7.0),))
    (axes,) = plot_training([replace(lone, held_out_greedy=7.0)]).axes
    curve, _, _, greedy, bound = axes.lines
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
