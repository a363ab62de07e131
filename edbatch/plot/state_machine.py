"""A state machine as a graph: the states that it passes through, and its moves."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from edbatch.graph import GraphStructure
from edbatch.plot.figure import check_max_states, counted, legend_below, new_figure
from edbatch.plot.frontier_label import frontier_types
from edbatch.plot.state_layout import StateLayout, lay_out_states
from edbatch.plot.type_style import short_names, type_style
from edbatch.policies import MachineTrace, StateMachine, trace_machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CELL_IN = (1.45, 1.45)
_DIAMETER_PT = (14.0, 36.0)  # of the states' circles, the smallest and the largest
_END_PT = 8.0
_LINES = 4  # of types in a label; those beyond are counted
_ARROW = "#6E6E6E"
_DASHED, _DOTTED = (0, (2, 1.5)), (0, (1, 2))

_MOVES_PER_STATE = 3  # arrows; rarer moves are only counted

# How to read the labels, by encoding.
_READING = {
    "base": "▸ the type that runs, of those that are ready",
    "max": "▸ the type that runs, of those that are ready; * most operations",
    "sort": "▸ the type that runs, of those that are ready, most operations first",
    "fall": "▸ the type that runs, of the two that lower the smoothed bound most",
}


def plot_state_machine(
    machine: StateMachine, structures: Sequence[GraphStructure], max_states: int = 16
) -> "Figure":
    """Draws the states that a policy passes through on graphs, and its moves.

    A circle is a state: its area grows with the steps there, its number is its rank by
    them, its colour and hatch say which type runs; below it stand the types that are
    ready. A dashed circle is a state that is not in the policy's table. States stand
    from left to right by when they occur. Arrows are the wider the more often they were
    taken, the rarest are left out where there are many; a number beside a round arrow
    counts the steps that stay in the state.

    Args:
        machine: The policy.
        structures: Minibatches to run it on, as its table has no transitions.
        max_states: How many states to draw at most, the most visited first.

    Returns:
        The figure, with one axes.

    Raises:
        PolicyError: There is no graph with nodes, or one of another model.
        PlotError: `max_states` is not positive.
        MissingMatplotlibError: Matplotlib is not installed.

    Example:
        >>> from edbatch.policies import MachineState
        >>> from edbatch.schedule.examples import tree
        >>> graph = tree("((ab)cb)c")
        >>> machine = StateMachine(graph.type_keys, "base", (MachineState((0, 1), 1),))
        >>> plot_state_machine(machine, [graph]).get_suptitle()
        "Policy with encoding 'base': 3 states, 4 steps"
    """
    check_max_states(max_states)
    trace = trace_machine(machine, structures)
    layout = lay_out_states(trace, max_states)
    count = len(layout.stays)
    figure = new_figure(
        max(7.0, _CELL_IN[0] * (layout.columns + 1)),
        0.8 + _CELL_IN[1] * (layout.rows + 0.5 * (layout.rows > 1)),
    )
    axes = figure.subplots()
    largest = np.sqrt(trace.visits[:count] / trace.visits.max())
    diameters = np.maximum(largest * _DIAMETER_PT[1], _DIAMETER_PT[0])
    _draw_moves(axes, layout, np.append(diameters, [_END_PT, _END_PT]))
    names = short_names(trace.types, limit=20)
    runs = _most_frequent_action(trace)
    handles = _draw_states(axes, trace, layout, diameters, runs, names)
    for state in range(count):
        ready = frontier_types(machine.encoding, trace.frontiers[state])
        most = trace.frontiers[state][0] if machine.encoding == "max" else None
        text = _text(ready, most, int(runs[state]), names)
        _label(axes, layout, state, float(diameters[state]), text)
    _draw_ends(axes, layout)
    figure.suptitle(_title(machine, trace, count))
    legend_below(figure, handles, title=_note(machine.encoding, layout))
    return figure


def _title(machine: StateMachine, trace: MachineTrace, count: int) -> str:
    states, steps = len(trace.frontiers), len(trace.frontier)
    shown = ""
    if count < states:
        share = trace.visits[:count].sum() / steps
        percent = math.floor(100 * share)  # 100 only where all are shown
        shown = f" (shown: {counted(count, 'state')}, {percent}% of the steps)"
    return (
        f"Policy with encoding {machine.encoding!r}:"
        f" {counted(states, 'state')}, {counted(steps, 'step')}{shown}"
    )


def _arrows(layout: StateLayout) -> np.ndarray:
    """The most frequent moves, and all of the start and the end; [A] int64."""
    count = len(layout.stays)
    order = np.argsort(-layout.moves[:, 2], kind="stable")
    is_end = (layout.moves[:, :2] >= count).any(axis=1)
    often = np.isin(np.arange(len(order)), order[: _MOVES_PER_STATE * count])
    return np.flatnonzero(is_end | often)


def _note(encoding: str, layout: StateLayout) -> str:
    reading = _READING.get(encoding, _READING["base"])
    rare = np.delete(layout.moves, _arrows(layout), axis=0)
    if not len(rare):
        return reading
    most = counted(int(rare[:, 2].max()), "time")
    return f"{reading}; not drawn: {counted(len(rare), 'move')} taken at most {most}"


def _most_frequent_action(trace: MachineTrace) -> np.ndarray:
    """The type that ran most often in each state; [F] int64.

    In a state of the table it is always the same; elsewhere the greedy heuristic
    chooses, which sees more than the state.
    """
    ran = np.zeros((len(trace.frontiers), len(trace.types)), np.int64)
    np.add.at(ran, (trace.frontier, trace.action), 1)
    return ran.argmax(axis=1)


def _draw_moves(axes: "Axes", layout: StateLayout, diameters: np.ndarray) -> None:
    from matplotlib.patches import FancyArrowPatch

    moves = layout.moves[_arrows(layout)]
    often = np.sqrt(moves[:, 2] / moves[:, 2].max())
    for (source, target, _, skips), share in zip(moves, often, strict=True):
        arrow = FancyArrowPatch(
            tuple(layout.place[source]),
            tuple(layout.place[target]),
            connectionstyle="arc3,rad=0.16",
            arrowstyle="-|>",
            mutation_scale=7 + 4 * share,
            shrinkA=diameters[source] / 2 + 1,
            shrinkB=diameters[target] / 2 + 1,
            linewidth=0.5 + 2.3 * share,
            linestyle=_DOTTED if skips else "-",
            color=_ARROW,
            alpha=0.35 + 0.5 * share,
            zorder=1,
        )
        axes.add_patch(arrow)


def _draw_states(
    axes: "Axes",
    trace: MachineTrace,
    layout: StateLayout,
    diameters: np.ndarray,
    runs: np.ndarray,
    names: list[str],
) -> dict[str, Any]:
    count = len(diameters)
    handles: dict[str, Any] = {}
    x, y = layout.place[:count].T
    for t in np.unique(runs[:count]).tolist():
        style = type_style(t)
        look: dict[str, Any] = {"color": style.color, "edgecolor": "black"}
        look["hatch"] = style.hatch
        for known in (True, False):
            these = (runs[:count] == t) & (trace.is_known[:count] == known)
            axes.scatter(
                x[these],
                y[these],
                s=diameters[these] ** 2,
                linestyle="-" if known else _DASHED,
                linewidth=0.8 if known else 1.4,
                zorder=2,
                **look,
            )
        handles[f"runs {names[t]}"] = axes.scatter([], [], s=110, **look)
    if not trace.is_known[:count].all():
        handles["not in the table"] = axes.scatter(
            [], [], s=110, color="white", edgecolor="black", linestyle=_DASHED
        )
    if layout.moves[:, 3].any():
        line = axes.plot([], [], color=_ARROW, linestyle=_DOTTED)
        handles["through states not shown"] = line[0]
    return handles


def _text(ready: list[int], most: int | None, runs: int, names: list[str]) -> str:
    lines = [f"{'▸' * (t == runs)}{'*' * (t == most)}{names[t]}" for t in ready]
    if len(lines) > _LINES:
        # What runs is always named.
        kept = sorted({*range(_LINES - 1), ready.index(runs)})[:_LINES]
        lines = [*(lines[k] for k in kept), f"+{len(lines) - len(kept)} more"]
    return "\n".join(lines)


def _label(
    axes: "Axes", layout: StateLayout, state: int, diameter: float, text: str
) -> None:
    from matplotlib.patheffects import withStroke

    place = tuple(layout.place[state])
    look: dict[str, Any] = {"textcoords": "offset points", "zorder": 3}
    number = axes.annotate(
        str(state + 1),
        place,
        (0, 0),
        ha="center",
        va="center_baseline",
        fontsize=8,
        **look,
    )
    number.set_path_effects([withStroke(linewidth=2, foreground="white")])
    look["bbox"] = {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.6}
    below = (0, -diameter / 2 - 3)
    axes.annotate(text, place, below, ha="center", va="top", fontsize=7, **look)
    if layout.stays[state]:
        beside = (0.36 * diameter + 2, 0.36 * diameter + 1)
        stays = f"↻{layout.stays[state]:,}"
        axes.annotate(stays, place, beside, va="center", fontsize=7, **look)


def _draw_ends(axes: "Axes", layout: StateLayout) -> None:
    for place, text, fill in (
        (layout.place[-2], "start", "black"),
        (layout.place[-1], "end", "white"),
    ):
        area = _END_PT**2
        axes.scatter(place[:1], place[1:], s=area, color=fill, edgecolor="black")
        axes.annotate(
            text,
            tuple(place),
            (0, _END_PT),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=8,
        )
    rows = layout.place[:, 1]
    axes.set_xlim(-1.3, layout.columns + 0.3)
    axes.set_ylim(rows.max() + 0.65, rows.min() - 0.3)
    axes.set_axis_off()
