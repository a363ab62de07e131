"""Parts shared by all plots: figures, panels, legends, count axes, number formats.

Matplotlib is imported when the first figure is made.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

from edbatch.errors import MissingMatplotlibError, PlotError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 3
_PANEL_IN = (3.9, 2.9)
_ALONE_IN = (6.0, 3.6)
_TITLE_CHARACTER_IN = 0.09
_CHARACTER_IN = 0.08
_HANDLE_IN = 0.6  # including the gaps around it
_LINE_IN = 0.2
_MOST_TICKS = 4  # of a logarithmic axis; more labels do not fit


def new_figure(width: float, height: float) -> "Figure":
    """Makes an empty figure that pyplot does not manage.

    Args:
        width: Width in inches.
        height: Height in inches.

    Returns:
        The figure, to draw on and to save with ``savefig``.

    Raises:
        MissingMatplotlibError: Matplotlib is not installed.

    Example:
        >>> new_figure(4, 3).get_size_inches().tolist()
        [4.0, 3.0]
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingMatplotlibError(
            "a picture needs matplotlib, which is not installed; install it with: pip"
            " install 'edbatch[plot]'"
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def new_panels(count: int) -> "tuple[Figure, list[Axes]]":
    """Makes a figure of panels in rows of up to three.

    Args:
        count: Number of panels, at least one.

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


def plain_text(text: str) -> str:
    r"""Escapes a text so that matplotlib prints it literally, not as a formula.

    Example:
        >>> print(plain_text("from $5 to $10"))
        from \$5 to \$10
    """
    return text.replace("$", r"\$")


def check_names(policies: Sequence[str], where: str) -> None:
    """Checks that names of policies are distinct, since plots identify them by name.

    Args:
        policies: The names.
        where: The workload or batch size of the comparison, for the message.

    Raises:
        PlotError: Two policies have the same name.
    """
    for each in policies:
        if policies.count(each) > 1:
            raise PlotError(
                f"a picture tells policies apart by their names but {where} has several"
                f" rows of {each!r}; give one another name, with"
                " dataclasses.replace(row, policy=...)"
            )


def set_panel_title(axes: "Axes", title: str) -> None:
    """Sets the title of a panel, wrapped to the width of the panel.

    Args:
        axes: The panel.
        title: The title.

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
    width = int(figure.get_size_inches()[0] / columns / _TITLE_CHARACTER_IN)
    lines = textwrap.fill(title, width)
    axes.set_title(plain_text(lines), fontsize="medium")


def legend_below(figure: "Figure", entries: Mapping[str, Any], title: str = "") -> None:
    """Adds a legend below a figure, and increases the figure's height to fit it.

    Args:
        figure: The figure.
        entries: Matplotlib handles by label; at least one.
        title: The title of the legend.
    """
    width, height = figure.get_size_inches()
    columns = legend_columns([*entries], width)
    lines = -(-len(entries) // columns) + bool(title)
    figure.set_size_inches(width, height + _LINE_IN * lines)
    # Matplotlib omits labels that begin with an underscore, as names of cells may.
    labels = [
        f"\N{WORD JOINER}{each}" if each.startswith("_") else each
        for each in map(plain_text, entries)
    ]
    figure.legend(
        [*entries.values()],
        labels,
        title=plain_text(title) or None,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize="small",
        title_fontsize="small",
    )


def legend_columns(labels: Sequence[str], width: float) -> int:
    """Returns the largest number of legend columns that fit a width.

    Args:
        labels: The labels, at least one; they fill one column after the other.
        width: Width in inches.

    Returns:
        The number of columns, at least one.

    Example:
        >>> legend_columns(["a", "b", "c"], 5.0), legend_columns(["a" * 50, "b"], 5.0)
        (3, 1)
    """
    for columns in range(len(labels), 1, -1):
        lines = -(-len(labels) // columns)
        longest = [
            max(map(len, labels[first : first + lines]))
            for first in range(0, len(labels), lines)
        ]
        if sum(_HANDLE_IN + _CHARACTER_IN * each for each in longest) <= width:
            return len(longest)
    return 1


def set_counts(axes: "Axes", which: Literal["x", "y"], is_log: bool) -> None:
    """Formats an axis of counts: ticks at integers, without scientific notation.

    Args:
        axes: The axes, after everything is drawn.
        which: The axis to format.
        is_log: Whether the axis becomes logarithmic; otherwise it starts at 0.
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


def counted(count: int, one: str, many: str = "") -> str:
    """Formats a count with its noun.

    Args:
        count: The number.
        one: The singular of the noun.
        many: The plural of the noun; the singular with an s by default.

    Returns:
        The text.

    Example:
        >>> counted(1, "state"), counted(2000, "step"), counted(2, "batch", "batches")
        ('1 state', '2,000 steps', '2 batches')
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def check_max_states(max_states: int) -> None:
    """Checks the maximum number of states of a plot.

    Raises:
        PlotError: `max_states` is not a positive integer.
    """
    if not isinstance(max_states, Integral) or max_states < 1:
        raise PlotError(
            f"a picture shows 1 state or more but max_states is {max_states!r}; leave"
            " it out for the default"
        )
