"""Axes of counts: whole numbers, logarithmic where that is needed to see the small."""

import math
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_TICKS = 4  # of powers of ten: more do not fit beside each other


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
        powers = math.floor(math.log10(high)) - math.ceil(math.log10(low)) + 1
        subs = (1, 2, 5) if powers < 2 else (1, 3) if powers == 2 else (1,)
        axis.set_major_locator(LogLocator(subs=subs, numticks=_MOST_TICKS))
        axis.set_minor_locator(NullLocator())
    else:
        axes.set(**{f"{which}lim": (0, max(high, 1))})
        axis.set_major_locator(MaxNLocator(4, integer=True, min_n_ticks=1))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
