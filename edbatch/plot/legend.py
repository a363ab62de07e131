"""Legends below a figure, in as many columns as have room."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CHARACTER_IN = 0.08
_HANDLE_IN = 0.6  # with the gaps around it
_LINE_IN = 0.2


def legend_below(figure: "Figure", entries: Mapping[str, Any], title: str = "") -> None:
    """Adds a legend, and makes the figure higher by what it needs.

    Args:
        figure: The figure.
        entries: What matplotlib calls handles, by label; at least one.
        title: Stands above them.
    """
    width, height = figure.get_size_inches()
    columns = legend_columns([*entries], width)
    lines = -(-len(entries) // columns) + bool(title)
    figure.set_size_inches(width, height + _LINE_IN * lines)
    # Matplotlib leaves out labels that begin with an underscore, as cells may.
    labels = [f"\N{WORD JOINER}{each}" if each[0] == "_" else each for each in entries]
    figure.legend(
        [*entries.values()],
        labels,
        title=title or None,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize="small",
        title_fontsize="small",
    )


def legend_columns(labels: Sequence[str], width: float) -> int:
    """Finds the most columns, filled one after the other, that fit into a width.

    Args:
        labels: The labels, at least one.
        width: In inches.

    Returns:
        The number of columns, at least 1.

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
