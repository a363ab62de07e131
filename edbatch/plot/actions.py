"""Actions of a policy: the types ready in each state, and the one that runs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from edbatch.errors import PlotError
from edbatch.plot.figure import (
    check_max_states,
    counted,
    legend_below,
    new_figure,
    set_counts,
)
from edbatch.plot.type_style import short_names
from edbatch.policies import MachineState, StateMachine

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# From Okabe and Ito's palette; the two also differ in lightness.
_READY, _RUNS = "#B9DCF2", "#D55E00"
_BARS = "#5F5F5F"

_NUMBERS = {
    "max": "1: the type with most operations ready",
    "sort": "numbers: rank by how many operations are ready",
    "fall": "shown, by rank: the two ready types that lower the smoothed bound most",
}


def plot_actions(machine: StateMachine, max_states: int = 30) -> "Figure":
    """Draws which types are ready in each state, which one runs, and how often.

    Args:
        machine: The policy.
        max_states: How many states to draw at most, the most visited first.

    Returns:
        The figure: an axes of states by types, and one of visits in training.

    Raises:
        PlotError: The policy has no state, or `max_states` is not positive.
        MissingMatplotlibError: Matplotlib is not installed.

    Example:
        >>> from edbatch.schedule.examples import chain
        >>> states = (MachineState((0, 1), 1, visits=7), MachineState((0,), 0))
        >>> figure = plot_actions(StateMachine(chain("ab").type_keys, "base", states))
        >>> figure.get_suptitle()
        "Policy with encoding 'base': 2 states"
    """
    check_max_states(max_states)
    if not machine.states:
        follows = (
            "its encoding's first type"
            if machine.encoding == "fall"
            else "the greedy heuristic"
        )
        raise PlotError(
            "a picture of actions shows the states of a policy but this one has none:"
            f" it follows {follows} everywhere; draw one that has, or use"
            " plot_state_machine, which runs it"
        )
    ranked = sorted(machine.states, key=lambda state: -state.visits)
    shown = ranked[:max_states]
    names = short_names(machine.types)
    columns = len(names) * (0.45 if len(names) <= 20 else 0.28)  # inches
    figure = new_figure(4.5 + columns, 2 + 0.24 * len(shown))
    grid, bars = figure.subplots(1, 2, sharey=True, width_ratios=[1 + columns, 2])
    _draw_grid(grid, shown, names, machine.encoding)
    _draw_visits(bars, [state.visits for state in shown])
    more = (
        f" ({len(shown)} most visited of {len(ranked)})" if ranked[max_states:] else ""
    )
    states = counted(len(ranked), "state")
    figure.suptitle(f"Policy with encoding {machine.encoding!r}: {states}")
    grid.set_ylabel(f"state{more}")
    handles = {
        "ready": grid.scatter([], [], s=110, marker="s", color=_READY),
        "ready, runs": grid.scatter([], [], s=70, marker="o", color=_RUNS),
    }
    legend_below(figure, handles, title=_NUMBERS.get(machine.encoding, ""))
    return figure


def _draw_grid(
    axes: "Axes", states: Sequence[MachineState], names: list[str], encoding: str
) -> None:
    ready = [(k, t) for k, state in enumerate(states) for t in set(state.frontier)]
    rows, columns = np.array(ready).T
    axes.scatter(columns, rows, s=110, marker="s", color=_READY)
    actions = [state.action for state in states]
    axes.scatter(actions, range(len(states)), s=70, marker="o", color=_RUNS)
    for row, state in enumerate(states):
        numbered = {"base": 0, "max": 1}.get(encoding, len(state.frontier))
        for rank, column in enumerate(state.frontier[:numbered], start=1):
            axes.annotate(
                str(rank),
                (column, row),
                ha="center",
                va="center_baseline",
                fontsize=6,
                color="white" if column == state.action else "black",
            )
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right")
    axes.tick_params(axis="x", labelsize="small")
    ranks = [str(rank + 1) for rank in range(len(states))]
    axes.set_yticks(range(len(states)), ranks, fontsize="small")
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set_ylim(len(states) - 0.4, -0.6)
    axes.set_xlabel("type of operation")
    axes.set_title("What is ready, what runs", fontsize="medium")
    axes.grid(axis="x", color="#E6E6E6")
    axes.set_axisbelow(True)


def _draw_visits(axes: "Axes", visits: list[int]) -> None:
    axes.barh(range(len(visits)), visits, color=_BARS)
    is_log = min(visits) > 0 and max(visits) > 100 * min(visits)
    set_counts(axes, "x", is_log=is_log)
    axes.set_xlabel("visits in training")
    axes.set_title("How often", fontsize="medium")
    axes.grid(axis="x", color="#E6E6E6")
    axes.set_axisbelow(True)
