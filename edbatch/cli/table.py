"""Prints tables that fit the terminal, breaking numbers and words only if necessary.

A table that is too wide is printed without its frame. If it is still too wide, it is
split into several tables, each with the first column.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

_LONGEST_NAME = 16
_LONGEST_WORD = 32  # longer words, such as paths, are broken
_LEAST_WIDTH = 20  # of a terminal; narrower output is unreadable
_USUAL_WIDTH = 80
_FRAME, _LINES = 3, 2  # characters per column; the frame takes one more in total


@dataclass(frozen=True)
class _Column:
    head: str
    cells: list[str]
    is_text: bool

    @property
    def is_name(self) -> bool:
        """Whether its cells are short names, which are not wrapped."""
        return self.is_text and max(map(len, self.cells), default=0) <= _LONGEST_NAME

    @property
    def least(self) -> int:
        """The smallest width at which no word and no number is broken."""
        whole = self.cells if self.is_name or not self.is_text else []
        words = [] if whole else [word for cell in self.cells for word in cell.split()]
        short = [each for each in words if len(each) <= _LONGEST_WORD]
        return max(map(len, (*self.head.split(), *whole, *short)), default=0)

    @property
    def widest(self) -> int:
        """The smallest width at which no cell is wrapped."""
        return max(map(len, (self.head, *self.cells)))


def new_console(*, stderr: bool = False) -> Console:
    """Returns a console for the output of a command.

    Args:
        stderr: Whether to write to stderr, for output other than the result.

    Returns:
        The console, with at least a readable width, whatever the environment variable
        COLUMNS says.
    """
    found = Console(stderr=stderr, highlight=False)
    if found.width < _LEAST_WIDTH:
        found.width = _LEAST_WIDTH if found.width else _USUAL_WIDTH
    return found


def printable(text: str) -> str:
    r"""Escapes control characters, and characters that a terminal cannot show.

    Args:
        text: Any text, such as a name from a file.

    Returns:
        The text; line breaks are kept.

    Example:
        >>> printable("a\x1b[2Jb\ud800\nc")
        'a\\x1b[2Jb\\ud800\nc'
    """
    if text.isprintable():
        return text
    as_is = [each.isprintable() or each == "\n" for each in text]
    pairs = zip(text, as_is, strict=True)
    return "".join(each if kept else repr(each)[1:-1] for each, kept in pairs)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None
) -> None:
    """Prints a result as a human-readable table.

    Args:
        columns: Heads of the columns.
        rows: Cells of each row; floats are rounded, None is shown as a dash.
        title: Printed above the table.
    """
    console = new_console()
    rows = list(rows)
    all_columns = [
        _Column(
            head,
            [shown(row[k]) for row in rows],
            all(isinstance(row[k], str) for row in rows),
        )
        for k, head in enumerate(columns)
    ]
    if title:
        console.print(Text(printable(title)))
    if _width(all_columns, _FRAME) + 1 <= console.width:
        _print(console, all_columns)
    elif _width(all_columns, _LINES) <= console.width:
        _print(console, all_columns, framed=False)
    else:
        for part in _parts(all_columns, console.width):
            _print(console, part)


def _width(columns: Sequence[_Column], around: int) -> int:
    return sum(each.least + around for each in columns)


def _parts(columns: Sequence[_Column], width: int) -> list[list[_Column]]:
    """Splits columns into parts that fit the width; each repeats the first column.

    If some column does not fit next to the first one, all are in one part, and wrap.
    """
    first, *others = columns
    if any(_width([first, each], _FRAME) + 1 > width for each in others):
        return [[*columns]]
    parts = [[first]]
    for each in others:
        if _width([*parts[-1], each], _FRAME) + 1 > width:
            parts.append([first])
        parts[-1].append(each)
    return parts


def _print(console: Console, columns: Sequence[_Column], framed: bool = True) -> None:
    room = console.width - framed - (_FRAME if framed else _LINES) * len(columns)
    table = Table(
        box=box.HEAVY_HEAD if framed else box.SIMPLE_HEAD,
        padding=(0, 1) if framed else (0, 1, 0, 0),
        pad_edge=framed,
    )
    for each, width in zip(columns, _widths(columns, room), strict=True):
        justify: JustifyMethod = "left" if each.is_text else "right"
        table.add_column(Text(each.head), justify=justify, overflow="fold", width=width)
    for cells in zip(*(each.cells for each in columns), strict=True):
        table.add_row(*map(Text, cells))
    console.print(table)


def _widths(columns: Sequence[_Column], room: int) -> list[int | None]:
    """Distributes the width: each column gets `least`, then a share of the rest.

    Without this, Rich would shrink the widest column below its `least`, and then cut
    off the table.
    """
    spare = room - sum(each.least for each in columns)
    if spare < 0:
        return [None] * len(columns)  # the cells wrap
    widths: list[int | None] = [None] * len(columns)
    wants = sorted((each.widest - each.least, k) for k, each in enumerate(columns))
    for done, (want, k) in enumerate(wants):
        given = min(want, spare // (len(wants) - done))
        widths[k] = columns[k].least + given
        spare -= given
    return widths


def shown(cell: Any) -> str:
    """Formats a cell: floats rounded, thousands separated, None as a dash; printable.

    Example:
        >>> shown(None), shown(1234.567), shown(0.000123456), shown(12345)
        ('-', '1,234.57', '0.0001235', '12,345')
    """
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.2f}" if abs(cell) >= 1 else f"{cell:.4g}"
    if isinstance(cell, int) and not isinstance(cell, bool):
        return f"{cell:,}"
    return printable(str(cell))
