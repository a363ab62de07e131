"""What commands print: results to stdout, progress and messages to stderr."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, JustifyMethod
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from edbatch.schedule.interrupt import deferred_interrupt

_LONGEST_NAME = 16


def stderr() -> Console:
    """Returns the console for everything that is not the result."""
    return Console(stderr=True, highlight=False)


def say(message: str) -> None:
    """Tells the user something beside the result."""
    stderr().print(Text(message), soft_wrap=True)


def print_out(message: str) -> None:
    """Prints a part of the result for people."""
    Console(highlight=False).print(Text(message))


@contextmanager
def stage(message: str) -> Iterator[None]:
    """Shows what is being done: a spinner on a terminal, else one line."""
    console = stderr()
    if console.is_terminal:
        with console.status(Text(f"{message} ...")):
            yield
    else:
        say(f"{message} ...")
        yield


def progress_bar(*columns: str) -> Progress:
    """Makes a progress bar on stderr.

    Args:
        *columns: More columns, as formats of the task: ``"{task.fields[loss]}"``.
    """
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *(TextColumn(each) for each in columns),
        TimeElapsedColumn(),
        console=stderr(),
    )


def tracked(items: Sequence[Any], description: str) -> Iterator[Any]:
    """Yields items under a progress bar."""
    with progress_bar() as bar:
        yield from bar.track(items, description=description)


def print_json(value: Any) -> None:
    """Prints a result for machines, the only thing on stdout: all of it, or nothing."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    with deferred_interrupt():
        sys.stdout.write(text)
        sys.stdout.flush()


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None
) -> None:
    """Prints a result for people.

    Args:
        columns: Heads.
        rows: Cells; floats are rounded, None is a dash.
        title: Stands above the table.
    """
    table = Table(title=Text(title) if title else None, title_justify="left")
    console = Console(highlight=False)
    rows = list(rows)
    narrowest = 1
    for k, column in enumerate(columns):
        is_text = all(isinstance(row[k], str) for row in rows)
        justify: JustifyMethod = "left" if is_text else "right"
        # Names stay whole; where the terminal is narrow, heads and long texts fold.
        longest = max((len(_shown(row[k])) for row in rows), default=0)
        is_name = is_text and longest <= _LONGEST_NAME
        # Heads fold between words, and numbers do not fold.
        word = max(map(len, column.split()), default=0)
        least = word if is_text and not is_name else max(word, longest)
        narrowest += least + 3  # a border, and a space on either side
        table.add_column(
            Text(column),
            justify=justify,
            overflow="fold",
            no_wrap=is_name,
            min_width=least,
        )
    if narrowest > console.width:  # where there is no room they fold all the same
        for each in table.columns:
            each.min_width = None
    for row in rows:
        table.add_row(*(Text(_shown(cell)) for cell in row))
    console.print(table)


def print_fields(fields: Iterable[tuple[str, Any]]) -> None:
    """Prints names and values, one pair per line."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields:
        table.add_row(Text(name), Text(_shown(value)))
    Console(highlight=False).print(table)


def _shown(cell: Any) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.2f}" if abs(cell) >= 1 else f"{cell:.4g}"
    if isinstance(cell, int) and not isinstance(cell, bool):
        return f"{cell:,}"
    return str(cell)
