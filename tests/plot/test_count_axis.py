import pytest
from figures import overlapping, rendered

from edbatch.plot.figure import new_figure, set_counts


@pytest.mark.parametrize(
    ("low", "high"), [(1, 101), (2, 30), (17, 720), (1, 999), (1, 40_000), (3, 10**6)]
)
def test_ticks_of_a_narrow_logarithmic_axis(low, high):
    figure = new_figure(2.6, 2)
    axes = figure.subplots()
    axes.plot([low, high], [0, 1])
    set_counts(axes, "x", is_log=True)
    rendered(figure)
    first, last = axes.get_xlim()
    shown = [
        label
        for place, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
        if first <= place <= last
    ]
    assert len(shown) >= 3
    assert not overlapping(shown, figure)
