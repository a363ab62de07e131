"""A picture of a policy: its states as rows, types as columns."""

from pathlib import Path
from typing import Any

import numpy as np

from edbatch.cli.one_sentence import CommandError
from edbatch.cli.output_file import write_whole
from edbatch.errors import nearest
from edbatch.policies import StateMachine
from edbatch.policies.policy_file import type_labels

SUFFIXES = (".png", ".pdf", ".svg")

# Okabe and Ito's palette, which people with any colour vision can tell apart; the
# two also differ in lightness.
_READY, _RUNS = "#B9DCF2", "#D55E00"
_BARS = "#5F5F5F"

_NUMBERS = {
    "base": "",
    "max": "1: the type with most operations ready",
    "sort": "numbers: rank by how many operations are ready",
}


def draw_policy(policy: StateMachine, path: Path, limit: int) -> None:
    """Draws which types are ready in each state, and which one runs.

    Args:
        policy: The policy.
        path: The file, `.png`, `.pdf` or `.svg`.
        limit: How many states to draw at most, the most visited first.

    Raises:
        CommandError: Matplotlib is not installed, the suffix is another, or there is
            no state.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise CommandError(
            f"--plot writes {', '.join(SUFFIXES)} files but this is {path.name!r};"
            f" {nearest(path.suffix, SUFFIXES)}"
        )
    if not policy.states:
        raise CommandError(
            "--plot draws the states of a policy but this one has none: it follows the"
            " greedy heuristic everywhere"
        )
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CommandError(
            "--plot needs matplotlib, which is not installed; install it with: pip"
            " install 'edbatch[plot]'"
        ) from error
    ranked = sorted(policy.states, key=lambda state: -state.visits)
    shown = ranked[:limit]
    labels = type_labels(policy.types)
    figure = Figure(
        figsize=(4.5 + 0.45 * len(labels), 2.2 + 0.24 * len(shown)),
        layout="constrained",
    )
    FigureCanvasAgg(figure)
    grid, bars = figure.subplots(
        1, 2, sharey=True, width_ratios=[1 + 0.45 * len(labels), 2]
    )
    _draw_grid(grid, shown, labels, policy.encoding)
    _draw_visits(bars, [state.visits for state in shown])
    more = f" ({len(shown)} most visited of {len(ranked)})" if ranked[limit:] else ""
    figure.suptitle(f"Policy with encoding {policy.encoding!r}: {len(ranked)} states")
    grid.set_ylabel(f"state{more}")
    figure.legend(
        handles=[
            grid.scatter([], [], s=110, marker="s", color=_READY, label="ready"),
            grid.scatter([], [], s=70, marker="o", color=_RUNS, label="ready, runs"),
        ],
        title=_NUMBERS[policy.encoding] or None,
        loc="outside lower center",
        ncols=2,
        frameon=False,
    )
    write_whole(path, lambda beside: figure.savefig(beside, dpi=150))


def _draw_grid(axes: Any, states: Any, labels: list[str], encoding: str) -> None:
    ready = [(k, t) for k, state in enumerate(states) for t in set(state.frontier)]
    rows, columns = np.array(ready).T
    axes.scatter(columns, rows, s=110, marker="s", color=_READY)
    actions = [state.action for state in states]
    axes.scatter(actions, range(len(states)), s=70, marker="o", color=_RUNS)
    for row, state in enumerate(states):
        numbered = {"base": 0, "max": 1, "sort": len(state.frontier)}[encoding]
        for rank, column in enumerate(state.frontier[:numbered], start=1):
            color = "white" if column == state.action else "black"
            axes.annotate(
                rank,
                (column, row),
                ha="center",
                va="center_baseline",
                fontsize=6,
                color=color,
            )
    axes.set_xticks(range(len(labels)), labels, rotation=60, ha="right")
    axes.set_yticks(range(len(states)), range(1, len(states) + 1), fontsize="small")
    axes.set_xlim(-0.6, len(labels) - 0.4)
    axes.set_ylim(len(states) - 0.4, -0.6)
    axes.set_xlabel("type of operation")
    axes.set_title("What is ready, what runs", fontsize="medium")
    axes.grid(axis="x", color="#E6E6E6")
    axes.set_axisbelow(True)


def _draw_visits(axes: Any, visits: list[int]) -> None:
    axes.barh(range(len(visits)), visits, color=_BARS)
    if min(visits) and max(visits) > 100 * min(visits):
        axes.set_xscale("log")
    axes.set_xlabel("visits in training")
    axes.set_title("How often", fontsize="medium")
    axes.grid(axis="x", color="#E6E6E6")
    axes.set_axisbelow(True)
