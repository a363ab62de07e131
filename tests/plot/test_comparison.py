import pytest
from comparison_rows import row
from figures import legend_labels, overlapping, rendered

from edbatch.plot import PlotError, plot_comparison
from edbatch.plot.figure import plain_text

ROWS = {
    "trees": [row("learned", 20, 20, 1.0), row("agenda", 30, 20, 2.0)],
    "lattices": [row("learned", 110, 100, 1.25), row("depth", 300, 100, 4.0)],
}


def markers(axes):
    """Position of each marker, in drawing order."""
    return [tuple(each.get_offsets()[0].tolist()) for each in axes.collections]


def test_markers_are_the_means_and_lines_lead_to_the_worst():
    figure = rendered(plot_comparison(ROWS, "A title"))
    ratios, batches = figure.axes
    assert [x for x, _ in markers(ratios)] == [1.0, 1.5, 1.1, 3.0]
    assert [x for x, _ in markers(batches)] == [20, 30, 110, 300]
    *lines, bound = ratios.lines[:5]
    assert [[*line.get_xdata()] for line in lines] == [
        [1.0, 1.0],
        [1.5, 2.0],
        [1.1, 1.25],
        [3.0, 4.0],
    ]
    assert [*bound.get_xdata()] == [1, 1]
    assert [line.get_xdata()[0] for line in batches.lines[:2]] == [20, 100]
    assert figure.get_suptitle() == "A title"


def test_the_ratio_is_the_mean_of_the_minibatches_not_that_of_the_means():
    figure = plot_comparison({"trees": [row("learned", 20, 10, 4.0, ratio=2.5)]})
    assert [x for x, _ in markers(figure.axes[0])] == [2.5]


def test_axes_strips_and_legend():
    figure = rendered(plot_comparison(ROWS))
    ratios, batches = figure.axes
    assert ratios.get_xlabel() == "batches / lower bound"
    assert batches.get_xlabel() == "batches per minibatch"
    assert [each.get_text() for each in ratios.get_yticklabels()] == [*ROWS]
    assert legend_labels(figure) == ["learned", "agenda", "depth", "lower bound"]
    #   every marker is in the strip of its workload
    assert [round(y) for _, y in markers(ratios)] == [0, 0, 1, 1]
    assert len({y for _, y in markers(ratios)}) == 4


def test_a_policy_looks_alike_on_every_workload():
    figure = plot_comparison(ROWS)
    colors = [each.get_facecolor().tolist() for each in figure.axes[0].collections]
    assert colors[0] == colors[2]
    assert colors[0] != colors[1] != colors[3]


@pytest.mark.parametrize(("most", "scale"), [(30, "linear"), (500, "log")])
def test_workloads_of_very_different_size(most, scale):
    rows = {"one": [row("learned", 20, 20, 1)], "two": [row("learned", most, 20, 30)]}
    figure = rendered(plot_comparison(rows))
    batches = figure.axes[1]
    assert batches.get_xscale() == scale
    ticks = [each for each in batches.get_xticklabels() if each.get_text()]
    assert not overlapping(ticks, figure)


@pytest.mark.parametrize("name", ["data/$HOME_$", "$^$", r"$\x$", "from $5 to $6", ""])
def test_names_are_not_formulas(name):
    rows = {name: [row(name, 4, 4, 1)]}
    figure = rendered(plot_comparison(rows, title=name))
    assert figure.get_suptitle() == plain_text(name)
    (label, _) = legend_labels(figure)
    assert label == plain_text(name)


def test_eleven_workloads():
    rows = {
        f"a-workload-of-a-long-name-{k}": [
            row(policy, 40 * k + 50 + j, 40 * k + 50, 2)
            for j, policy in enumerate(["learned", "searched", "agenda", "depth"])
        ]
        for k in range(11)
    }
    figure = plot_comparison(rows)
    ratios = figure.axes[0]
    assert not overlapping(ratios.get_yticklabels(), figure)
    for label in ratios.get_yticklabels():
        assert label.get_window_extent().x0 >= 0


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({}, "needs workloads but there is none; give {name: edbatch.policies.compare"),
        ({"trees": []}, "every workload of a comparison has rows but 'trees' has none"),
        (
            {"trees": [row("fsm-sort", 4, 4, 1), row("fsm-sort", 5, 4, 1)]},
            r"workload 'trees' has several rows of 'fsm-sort'; .* dataclasses.replace",
        ),
    ],
)
def test_what_cannot_be_drawn(rows, message):
    with pytest.raises(PlotError, match=message):
        plot_comparison(rows)
