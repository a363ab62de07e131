"""Output of commands: results to stdout, progress and messages to stderr."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from typing import Any, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from edbatch.cli.table import new_console, print_table, printable, shown
from edbatch.schedule.interrupt import deferred_interrupt

__all__ = [
    "json_alone",
    "print_fields",
    "print_json",
    "print_out",
    "print_table",
    "progress_bar",
    "say",
    "stage",
    "stderr",
    "tracked",
]

# What was stdout before `json_alone`.
_STDOUT: ContextVar[TextIO | None] = ContextVar("stdout", default=None)


def stderr() -> Console:
    """Returns the console for everything that is not the result."""
    return new_console(stderr=True)


def say(message: str) -> None:
    """Tells the user something beside the result."""
    stderr().print(Text(printable(message)), soft_wrap=True)


def print_out(message: str) -> None:
    """Prints a part of the result for people."""
    new_console().print(Text(printable(message)))


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


@contextmanager
def json_alone() -> Iterator[None]:
    """Sends to stderr what anything but `print_json` prints, such as a user's model."""
    token = _STDOUT.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _STDOUT.reset(token)


def print_json(value: Any) -> None:
    """Prints a result for machines, the only thing on stdout: all of it, or nothing."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    out = _STDOUT.get() or sys.stdout
    with deferred_interrupt():
        out.write(text)
        out.flush()


def print_fields(fields: Iterable[tuple[str, Any]]) -> None:
    """Prints names and values, one pair per line."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields:
        table.add_row(Text(name), Text(shown(value)))
    new_console().print(table)
