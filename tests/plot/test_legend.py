import pytest
from figures import legend_labels, rendered

from edbatch.plot.figure import legend_below, legend_columns, new_figure


@pytest.mark.parametrize("count", [1, 3, 60])
@pytest.mark.parametrize("length", [1, 12, 40])
def test_a_legend_fits_into_its_figure(count, length):
    figure = new_figure(9, 2)
    axes = figure.subplots()
    entries = {f"{k:02}".ljust(length, "n"): axes.scatter([], []) for k in range(count)}
    legend_below(figure, entries)
    renderer = rendered(figure).canvas.get_renderer()
    (legend,) = figure.legends
    box = legend.get_window_extent(renderer)
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1
    assert box.y0 >= 0 and box.y1 < axes.get_tightbbox(renderer).y0
    assert axes.get_window_extent(renderer).height > 72  # one inch of two is left


def test_one_long_label_does_not_narrow_all_columns():
    assert legend_columns(["t"] * 29 + ["a longer label"], 10.0) > 5


def test_a_name_with_an_underscore_is_not_left_out():
    figure = new_figure(4, 2)
    legend_below(figure, {"_hidden": figure.subplots().scatter([], [])})
    (label,) = legend_labels(rendered(figure))
    assert label.endswith("_hidden")


def test_a_title():
    figure = new_figure(4, 2)
    legend_below(figure, {"a": figure.subplots().scatter([], [])}, title="what it is")
    assert figure.legends[0].get_title().get_text() == "what it is"
