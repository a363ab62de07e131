"""Figures of several equal panels, one per workload."""

from typing import TYPE_CHECKING

from edbatch.plot.figure import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 3
_PANEL_IN = (3.9, 2.9)
_ALONE_IN = (6.0, 3.6)


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
