"""Writes the pictures of commands."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edbatch.cli.one_sentence import CommandError
from edbatch.errors import nearest
from edbatch.explain import Explanation
from edbatch.plot import (
    plot_actions,
    plot_comparison,
    plot_generalisation,
    plot_timeline,
)
from edbatch.policies import Comparison, StateMachine
from edbatch.policies.files.whole_file import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".pdf", ".svg")


def draw_policy(policy: StateMachine, path: Path, limit: int) -> None:
    """Draws which types are ready in each state, and which one runs.

    Args:
        policy: The policy.
        path: The file, `.png`, `.pdf` or `.svg`.
        limit: Maximum number of states to draw, the most visited first.

    Raises:
        EdbatchError: Matplotlib is not installed, the suffix is not supported, or the
            policy has no state.
    """
    _write(path, lambda: plot_actions(policy, limit))


def draw_comparison(
    table: Mapping[int, Sequence[Comparison]], path: Path, title: str
) -> None:
    """Draws the batches of policies on one workload, and their ratio to the bound.

    Args:
        table: The policies' rows by minibatch size. For one size, batches and ratios
            are drawn; for several, the ratio as a function of the size.
        path: The file, `.png`, `.pdf` or `.svg`.
        title: The title of the picture.

    Raises:
        EdbatchError: Matplotlib is not installed, the suffix is not supported, or there
            is no row.
    """
    if len(table) > 1:
        _write(path, lambda: plot_generalisation({title: table}))
    else:
        _write(path, lambda: plot_comparison({"": next(iter(table.values()))}, title))


def draw_timeline(report: Explanation, path: Path) -> None:
    """Draws the batches of a minibatch over time.

    Args:
        report: The explanation of the minibatch, with times.
        path: The file, `.png`, `.pdf` or `.svg`.

    Raises:
        EdbatchError: Matplotlib is not installed, or the suffix is not supported.
    """
    _write(path, lambda: plot_timeline(report))


def check_suffix(path: Path | None) -> None:
    """Checks before long work that the suffix names a supported picture format.

    Args:
        path: The file; None if there is none.

    Raises:
        CommandError: The suffix is not in `SUFFIXES`.
    """
    if path is not None and path.suffix.lower() not in SUFFIXES:
        raise CommandError(
            f"--plot writes {', '.join(SUFFIXES)} files but this is {path.name!r};"
            f" {nearest(path.suffix, SUFFIXES)}"
        )


def _write(path: Path, draw: "Callable[[], Figure]") -> None:
    check_suffix(path)
    figure = draw()
    write_whole(path, lambda temporary: figure.savefig(temporary, dpi=150))
