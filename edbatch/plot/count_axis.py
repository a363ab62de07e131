"""Axes of counts: whole numbers, logarithmic where that is needed to see the small."""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHORT = 60.0  # from the least to the most: up to here 2 and 5 have ticks as well


def set_counts(axes: "Axes", which: Literal["x", "y"], is_log: bool) -> None:
    """Gives an axis ticks at whole numbers, written out.

    Args:
        axes: The axes, on which everything is drawn.
        which: Its axis.
        is_log: Whether it becomes logarithmic; otherwise it starts at 0.
    """
    from matplotlib.ticker import (
        LogLocator,
        MaxNLocator,
        NullLocator,
        StrMethodFormatter,
    )

    axis = axes.xaxis if which == "x" else axes.yaxis
    if is_log:
        axes.set(**{f"{which}scale": "log"})
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    if is_log:
        subs = (1,) if high > _SHORT * low else (1, 2, 5)
        axis.set_major_locator(LogLocator(subs=subs))
        axis.set_minor_locator(NullLocator())
    else:
        axes.set(**{f"{which}lim": (0, max(high, 1))})
        axis.set_major_locator(MaxNLocator(4, integer=True, min_n_ticks=1))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
