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

# The stream that was stdout before `json_alone`.
_STDOUT: ContextVar[TextIO | None] = ContextVar("stdout", default=None)


def stderr() -> Console:
    """Returns the console for everything except the result."""
    return new_console(stderr=True)


def say(message: str) -> None:
    """Prints a message, which is not part of the result, to stderr."""
    stderr().print(Text(printable(message)), soft_wrap=True)


def print_out(message: str) -> None:
    """Prints human-readable text of the result to stdout."""
    new_console().print(Text(printable(message)))


@contextmanager
def stage(message: str) -> Iterator[None]:
    """Shows the current step: a spinner on a terminal, otherwise one line."""
    console = stderr()
    if console.is_terminal:
        with console.status(Text(f"{message} ...")):
            yield
    else:
        say(f"{message} ...")
        yield


class _Bar(Progress):
    """A progress bar whose last line is written whole, even if Ctrl-C is pressed."""

    def stop(self) -> None:
        with deferred_interrupt(short=True):
            super().stop()


def progress_bar(*columns: str) -> Progress:
    """Makes a progress bar on stderr.

    Args:
        *columns: Additional columns, as format strings: ``"{task.fields[loss]}"``.

    Returns:
        The progress bar.
    """
    return _Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *(TextColumn(each) for each in columns),
        TimeElapsedColumn(),
        console=stderr(),
    )


def tracked(items: Sequence[Any], description: str) -> Iterator[Any]:
    """Yields items while showing a progress bar."""
    with progress_bar() as bar:
        yield from bar.track(items, description=description)


@contextmanager
def json_alone() -> Iterator[None]:
    """Redirects prints to stderr, such as those of a user's model; not `print_json`."""
    token = _STDOUT.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _STDOUT.reset(token)


def print_json(value: Any) -> None:
    """Prints the result as JSON, the only output on stdout: all of it or nothing."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    out = _STDOUT.get() or sys.stdout
    with deferred_interrupt():
        out.write(text)
        out.flush()


def print_fields(fields: Iterable[tuple[str, Any]]) -> None:
    """Prints pairs of name and value, one per line."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields:
        table.add_row(Text(name), Text(shown(value)))
    new_console().print(table)
