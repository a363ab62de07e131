"""Plots the actions of a policy: the ready types in each state, and the chosen one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from edbatch.errors import PlotError
from edbatch.graph import GraphStructure, TypeKey
from edbatch.graph.structure_arguments import structures_of
from edbatch.plot.figure import (
    check_max_states,
    counted,
    legend_below,
    new_figure,
    plain_text,
    set_counts,
)
from edbatch.plot.policy_style import policy_styles
from edbatch.plot.type_style import TypeStyle, short_names, type_styles
from edbatch.policies import StateMachine, trace_machine
from edbatch.policies.fsm.machine_trace import check_machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_READY = "#DCDCDC"
_SAME, _DIFFERS = "#CFCFCF", "#4A4A4A"

_NUMBERS = {
    "max": "1: the type with most operations ready",
    "sort": "numbers: rank by how many operations are ready",
    "fall": "shown, by rank: the two ready types that lower the smoothed bound most",
}


@dataclass(frozen=True)
class _Row:
    """One state: its rank, ready types, action, and disagreements with greedy."""

    number: int
    frontier: tuple[int, ...]
    action: int
    visits: int
    differs: int = 0  # number of visits in which greedy would run another type
    greedy: int | None = None  # the type greedy would most often run instead


def plot_actions(
    machine: StateMachine,
    max_states: int = 30,
    structures: Sequence[GraphStructure] = (),
    types: Sequence[TypeKey] | None = None,
) -> "Figure":
    """Plots the ready types of each state, the type that runs, and the visit counts.

    Without `structures` the states are those of the policy's table, the most visited in
    training first. With `structures` they are the states that the policy visits on
    these minibatches, and each action is compared with greedy's choice on the same
    frontier. States with the most steps at which greedy would run another type come
    first; a triangle marks that type. A state's number is its rank by steps, as in
    `plot_state_machine` on the same minibatches.

    Args:
        machine: The policy.
        max_states: Maximum number of states to draw; the first ones are drawn.
        structures: Minibatches to run the policy on.
        types: The types of the model, in the order that determines their colours, for
            example ``policy.types``; if None, those of the graphs, then the policy's.

    Returns:
        The figure, with one axes of states by types and one of visits.

    Raises:
        PlotError: The policy has no state, or `max_states` is not positive.
        PolicyError: A graph belongs to another model, no graph has a node, or `machine`
            is not a state machine.
        MissingMatplotlibError: Matplotlib is not installed.

    Example:
        >>> from edbatch.policies import MachineState
        >>> from edbatch.schedule.examples import chain
        >>> states = (MachineState((0, 1), 1, visits=7), MachineState((0,), 0))
        >>> figure = plot_actions(StateMachine(chain("ab").type_keys, "base", states))
        >>> figure.get_suptitle()
        "Policy with encoding 'base': 2 states"
    """
    check_max_states(max_states)
    check_machine(machine)
    structures = structures_of(PlotError, "minibatches of a picture", structures)
    if structures:
        keys, rows = _rows_on(machine, structures)
    else:
        keys, rows = machine.types, _rows_of_table(machine)
    shown = rows[:max_states]
    names = short_names(keys)
    styles = type_styles(types, structures, keys)
    columns = len(names) * (0.45 if len(names) <= 20 else 0.28)  # inches
    figure = new_figure(4.5 + columns, 2 + 0.24 * len(shown))
    grid, bars = figure.subplots(1, 2, sharey=True, width_ratios=[1 + columns, 2])
    by_type = [styles[key] for key in keys]
    handles = _draw_grid(grid, shown, names, by_type, machine.encoding)
    handles |= _draw_visits(bars, shown, on_minibatches=bool(structures))
    states = counted(len(rows), "state")
    figure.suptitle(f"Policy with encoding {machine.encoding!r}: {states}{_part(rows)}")
    first = "that differ most" if structures else "most visited"
    more = f" ({len(shown)} {first} of {len(rows)})" if rows[max_states:] else ""
    grid.set_ylabel(f"state{more}")
    legend_below(figure, handles, title=_NUMBERS.get(machine.encoding, ""))
    return figure


def _rows_of_table(machine: StateMachine) -> list[_Row]:
    """Returns the states of the table, the most visited first."""
    if not machine.states:
        raise PlotError(
            "a picture of actions shows the states of a policy but this one has none:"
            f" it follows {machine.otherwise} everywhere; draw one that has, or give"
            " structures to run it on"
        )
    ranked = sorted(machine.states, key=lambda state: -state.visits)
    return [
        _Row(number, state.frontier, state.action, state.visits)
        for number, state in enumerate(ranked, start=1)
    ]


def _rows_on(
    machine: StateMachine, structures: Sequence[GraphStructure]
) -> tuple[tuple[TypeKey, ...], list[_Row]]:
    """Returns states visited on minibatches, most disagreements with greedy first.

    In a state that is not in the table the action varies by step: the row has the most
    frequent one.
    """
    trace = trace_machine(machine, structures)
    differs = trace.action != trace.greedy
    ran = np.zeros((len(trace.frontiers), len(trace.types)), np.int64)
    instead = np.zeros_like(ran)
    np.add.at(ran, (trace.frontier, trace.action), 1)
    np.add.at(instead, (trace.frontier[differs], trace.greedy[differs]), 1)
    rows = [
        _Row(
            number=state + 1,
            frontier=frontier,
            action=int(ran[state].argmax()),
            visits=int(ran[state].sum()),
            differs=int(instead[state].sum()),
            greedy=int(instead[state].argmax()) if instead[state].any() else None,
        )
        for state, frontier in enumerate(trace.frontiers)
    ]
    return trace.types, sorted(rows, key=lambda row: (-row.differs, -row.visits))


def _part(rows: Sequence[_Row]) -> str:
    differs = sum(row.differs for row in rows)
    if not differs:
        return ""
    share = differs / sum(row.visits for row in rows)
    return f", greedy would differ at {share:.0%} of the steps"


def _draw_grid(
    axes: "Axes",
    rows: Sequence[_Row],
    names: list[str],
    styles: Sequence[TypeStyle],
    encoding: str,
) -> dict[str, Any]:
    ready = [(t, k) for k, row in enumerate(rows) for t in {*row.frontier}]
    columns, places = np.transpose(ready)
    squares = axes.scatter(columns, places, s=110, marker="s", color=_READY)
    handles = {"ready": squares}
    actions = [row.action for row in rows]
    look: dict[str, Any] = {"s": 70, "edgecolor": "black", "linewidth": 0.6}
    colors = [styles[t].color for t in actions]
    axes.scatter(actions, range(len(rows)), color=colors, **look)
    handles["ready, runs"] = axes.scatter([], [], c="white", **look)
    other = [(row.greedy, k) for k, row in enumerate(rows) if row.greedy is not None]
    if other:
        style = policy_styles(["greedy"])["greedy"]
        columns, places = np.transpose(other)
        handles["greedy would run, most often"] = axes.scatter(
            columns,
            places,
            s=120,
            marker=style.marker,
            facecolor="none",
            edgecolor="black",
            linewidth=1.1,
        )
    for k, row in enumerate(rows):
        _number(axes, k, row, styles, encoding)
    shown = [*map(plain_text, names)]
    axes.set_xticks(range(len(names)), shown, rotation=60, ha="right")
    axes.tick_params(axis="x", labelsize="small")
    numbers = [str(row.number) for row in rows]
    axes.set_yticks(range(len(rows)), numbers, fontsize="small")
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("type of operation")
    axes.set_title("What is ready, what runs", fontsize="medium")
    axes.grid(axis="x", color="#E6E6E6")
    axes.set_axisbelow(True)
    return handles


def _number(
    axes: "Axes", place: int, row: _Row, styles: Sequence[TypeStyle], encoding: str
) -> None:
    """Writes the ranks of types that are part of the encoding."""
    if encoding == "base":
        return
    ranked = [row.frontier[0]] if encoding == "max" else row.frontier
    for rank, column in enumerate(ranked, start=1):
        axes.annotate(
            str(rank),
            (column, place),
            ha="center",
            va="center_baseline",
            fontsize=6,
            color=styles[column].ink if column == row.action else "black",
        )


def _draw_visits(
    axes: "Axes", rows: Sequence[_Row], on_minibatches: bool
) -> dict[str, Any]:
    visits = [row.visits for row in rows]
    places = range(len(rows))
    axes.set_title("How often", fontsize="medium")
    axes.grid(axis="x", color="#E6E6E6")
    axes.set_axisbelow(True)
    if not on_minibatches:
        axes.barh(places, visits, color=_DIFFERS)
        is_log = min(visits) > 0 and max(visits) > 100 * min(visits)
        set_counts(axes, "x", is_log=is_log)
        axes.set_xlabel("visits in training")
        return {}
    differs = [row.differs for row in rows]
    same = np.subtract(visits, differs)
    handles = {
        "steps at which greedy differs": axes.barh(places, differs, color=_DIFFERS),
        "the same": axes.barh(places, same, left=differs, color=_SAME),
    }
    set_counts(axes, "x", is_log=False)
    axes.set_xlabel("steps")
    return handles
