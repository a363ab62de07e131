"""Figures of several equal panels, one per workload."""

import textwrap
from typing import TYPE_CHECKING

from edbatch.plot.figure import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 3
_PANEL_IN = (3.9, 2.9)
_ALONE_IN = (6.0, 3.6)
_CHARACTER_IN = 0.09


def new_panels(count: int) -> "tuple[Figure, list[Axes]]":
    """Makes a figure of panels in rows of up to three.

    Args:
        count: How many.

    Returns:
        The figure and its panels.

    Raises:
        MissingMatplotlibError: Matplotlib is not installed.

    Example:
        >>> figure, panels = new_panels(4)
        >>> len(panels), len(figure.axes)
        (4, 4)
    """
    columns = min(count, _COLUMNS)
    rows = -(-count // columns)
    width, height = _ALONE_IN if count == 1 else _PANEL_IN
    figure = new_figure(width * columns, height * rows)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for empty in axes[count:]:
        empty.remove()
    return figure, [*axes[:count]]


def set_panel_title(axes: "Axes", title: str) -> None:
    """Writes what a panel shows above it, in lines no longer than it is wide.

    Args:
        axes: A panel of `new_panels`.
        title: The text.

    Example:
        >>> _, [panel] = new_panels(1)
        >>> set_panel_title(panel, "tree-lstm")
        >>> panel.get_title()
        'tree-lstm'
    """
    grid = axes.get_subplotspec()
    columns = grid.get_gridspec().ncols if grid else 1
    figure = axes.get_figure(root=True)
    assert figure is not None, "new_panels puts its panels into a figure"
    width = int(figure.get_size_inches()[0] / columns / _CHARACTER_IN)
    axes.set_title(textwrap.fill(title, width), fontsize="medium")
