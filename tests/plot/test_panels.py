import pytest
from figures import overlapping, rendered

from edbatch.plot.figure import new_panels, set_panel_title


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_long_titles_are_neither_cut_nor_overlap(count):
    figure, panels = new_panels(count)
    title = "my_models:encode on my_models:instances: means of 8 minibatches of 8, 32"
    for axes in panels:
        axes.set_ylabel("batches")
        set_panel_title(axes, title)
    rendered(figure)
    assert not overlapping([axes.title for axes in panels], figure)
    for axes in panels:
        assert axes.get_title().replace("\n", " ") == title
        box = axes.title.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1


def test_short_titles_stay_as_they_are():
    _, [axes] = new_panels(1)
    set_panel_title(axes, "neural-module-network")
    assert axes.get_title() == "neural-module-network"
