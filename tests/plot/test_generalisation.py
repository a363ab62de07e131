import pytest
from comparison_rows import row
from figures import legend_labels, rendered

from edbatch.plot import PlotError, plot_generalisation

TABLE = {
    32: [row("learned", 22, 20, 1.2), row("agenda", 40, 20, 2.5)],
    8: [row("learned", 10, 10, 1.0), row("agenda", 15, 10, 1.5)],
    128: [row("learned", 60, 50, 1.3), row("agenda", 110, 50, 2.9)],
}


def test_lines_are_the_ratios_by_size():
    figure = rendered(plot_generalisation(TABLE, trained_at=32))
    (axes,) = figure.axes
    learned, agenda, bound, trained = axes.lines
    assert [*learned.get_xdata()] == [*agenda.get_xdata()] == [8, 32, 128]
    assert [*learned.get_ydata()] == [1.0, 1.1, 1.2]
    assert [*agenda.get_ydata()] == [1.5, 2.0, 2.2]
    assert [*bound.get_ydata()] == [1, 1]
    assert [*trained.get_xdata()] == [32, 32]
    assert [each.get_text() for each in axes.get_xticklabels()] == ["8", "32", "128"]
    assert axes.get_xlabel() == "instances per minibatch"
    assert axes.get_ylabel() == "batches / lower bound"
    assert legend_labels(figure) == [
        "learned",
        "agenda",
        "lower bound",
        "trained at 32",
    ]


def test_the_ratio_is_the_mean_of_the_minibatches_not_that_of_the_means():
    figure = plot_generalisation({8: [row("learned", 20, 10, 4.0, ratio=2.5)]})
    assert [*figure.axes[0].lines[0].get_ydata()] == [2.5]


def test_tables_by_workload_are_panels():
    one = {8: [row("depth", 9, 3, 3)]}
    figure = rendered(plot_generalisation({"trees": TABLE, "lattices": one}))
    assert [axes.get_title() for axes in figure.axes] == ["trees", "lattices"]
    assert [len(axes.lines) for axes in figure.axes] == [3, 2]
    assert legend_labels(figure) == ["learned", "agenda", "lower bound", "depth"]


def test_a_policy_may_be_missing_at_a_size():
    table = {**TABLE, 8: [row("agenda", 15, 10, 1.5)]}
    learned, agenda, *_ = plot_generalisation(table).axes[0].lines
    lengths = sorted(len(line.get_xdata()) for line in (learned, agenda))
    assert lengths == [2, 3]


@pytest.mark.parametrize("panels", [1, 2, 3, 4, 11])
def test_panels(panels):
    tables = {f"workload {k}": TABLE for k in range(panels)}
    assert len(rendered(plot_generalisation(tables)).axes) == panels


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "needs rows at batch sizes but there is no batch size"),
        ({"trees": {}}, "there is no batch size; give {8: compare"),
        ({8: []}, "every batch size has rows but 8 has none"),
        ({8: TABLE[8] + TABLE[8]}, "batch size 8 has several rows of '"),
        ({"trees": {8: []}}, "every batch size has rows but 8 has none"),
    ],
)
def test_what_cannot_be_drawn(table, message):
    with pytest.raises(PlotError, match=message):
        plot_generalisation(table)
