"""Plots a state machine as a graph of the states it visits and its moves."""

from collections.abc import Mapping, Sequence
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
)
from edbatch.plot.frontier_label import frontier_types
from edbatch.plot.state_groups import MANY_TYPES, StateGroups, group_states
from edbatch.plot.state_layout import StateLayout, lay_out_states
from edbatch.plot.type_style import TypeStyle, short_names, type_styles
from edbatch.policies import MachineTrace, StateMachine, trace_machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CELL_IN = (1.45, 1.45)
_DIAMETER_PT = (14.0, 36.0)  # of the smallest and the largest circle
_RING_PT = 3.0  # from a group's circle to the ring around it
_END_PT = 8.0
_LINES = 4  # maximum number of types in a label; further types are counted
_MAIN, _RARE = "#4A4A4A", "#C9C9C9"  # arrows
_DASHED = (0, (2, 1.5))
_MANY = TypeStyle("#FFFFFF", "")

# Explanation of the labels, by encoding.
_READING = {
    "base": "▸ the type that runs, of those that are ready",
    "max": "▸ the type that runs, of those that are ready; * most operations",
    "sort": "▸ the type that runs, of those that are ready, most operations first",
    "fall": "▸ the type that runs, of the two that lower the smoothed bound most",
}


def plot_state_machine(
    machine: StateMachine,
    structures: Sequence[GraphStructure],
    max_states: int = 8,
    types: Sequence[TypeKey] | None = None,
) -> "Figure":
    """Plots the states that a policy visits on graphs, and its moves between them.

    Each circle is a state. Its area grows with the number of steps in the state, its
    number is its rank by steps, its colour and hatch show the type that runs; the ready
    types are listed below it. A dashed circle is a state that is not in the policy's
    table. A circle in a ring is a group of rarer states in which one type runs, or
    several if it is white. States are placed from left to right by when they occur.
    Arrows are moves, wider if they are more frequent. The main moves are dark: the most
    frequent ones, which make up four fifths of all moves, but at most 1.5 per circle;
    and the most frequent one into and out of each circle. Others are pale, and the
    rarest are omitted. The number next to a circular arrow counts the steps that stay.

    Args:
        machine: The policy.
        structures: Minibatches to run the policy on, since its table has no
            transitions.
        max_states: Number of most visited states that have a circle of their own.
        types: The types of the model, in the order that determines their colours, for
            example ``policy.types``; those of the graphs if None.

    Returns:
        The figure, with one axes.

    Raises:
        PolicyError: No graph has a node, or a graph belongs to another model.
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
    structures = structures_of(PlotError, "minibatches of a picture", structures)
    trace = trace_machine(machine, structures)
    groups = group_states(trace, max_states)
    layout = lay_out_states(trace, groups)
    figure = new_figure(
        max(7.0, _CELL_IN[0] * (layout.columns + 1)),
        0.8 + _CELL_IN[1] * (layout.rows + 0.5 * (layout.rows > 1)),
    )
    axes = figure.subplots()
    largest = np.sqrt(groups.visits / groups.visits.max())
    diameters = np.maximum(largest * _DIAMETER_PT[1], _DIAMETER_PT[0])
    _draw_moves(axes, layout, np.append(diameters, [_END_PT, _END_PT]))
    styles = type_styles(types, structures, trace.types)
    handles = _draw_states(axes, trace, groups, layout, diameters, styles)
    names = short_names(trace.types, limit=20)
    for node in range(len(groups.state)):
        texts = _texts(machine.encoding, trace, groups, node, names)
        _label(axes, layout, node, float(diameters[node]), *texts)
    _draw_ends(axes, layout)
    states, steps = len(trace.frontiers), len(trace.frontier)
    figure.suptitle(
        f"Policy with encoding {machine.encoding!r}:"
        f" {counted(states, 'state')}, {counted(steps, 'step')}"
    )
    legend_below(figure, handles, title=_note(machine.encoding, layout))
    return figure


def _note(encoding: str, layout: StateLayout) -> str:
    reading = _READING.get(encoding, _READING["base"])
    rare = layout.moves[~layout.is_drawn]
    if not len(rare):
        return reading
    most = counted(int(rare[:, 2].max()), "time")
    return f"{reading}; not drawn: {counted(len(rare), 'move')} taken at most {most}"


def _draw_moves(axes: "Axes", layout: StateLayout, diameters: np.ndarray) -> None:
    from matplotlib.patches import FancyArrowPatch

    often = np.sqrt(layout.moves[:, 2] / layout.moves[:, 2].max())
    for k in np.flatnonzero(layout.is_drawn):
        source, target, _ = layout.moves[k]
        is_main, share = layout.is_main[k], often[k]
        arrow = FancyArrowPatch(
            tuple(layout.place[source]),
            tuple(layout.place[target]),
            connectionstyle="arc3,rad=0.16",
            arrowstyle="-|>",
            mutation_scale=7 + 4 * share,
            shrinkA=diameters[source] / 2 + 1,
            shrinkB=diameters[target] / 2 + 1,
            linewidth=0.8 + 2.3 * share if is_main else 0.6,
            color=_MAIN if is_main else _RARE,
            zorder=1.5 if is_main else 1,
        )
        axes.add_patch(arrow)


def _draw_states(
    axes: "Axes",
    trace: MachineTrace,
    groups: StateGroups,
    layout: StateLayout,
    diameters: np.ndarray,
    styles: Mapping[TypeKey, TypeStyle],
) -> dict[str, Any]:
    names = short_names(trace.types, limit=20)
    handles: dict[str, Any] = {}
    x, y = layout.place[: len(diameters)].T
    is_group = groups.members > 1
    ring = (diameters[is_group] + 2 * _RING_PT) ** 2
    look: dict[str, Any] = {"color": "white", "edgecolor": "black"}
    axes.scatter(x[is_group], y[is_group], s=ring, linewidth=0.8, zorder=2, **look)
    for t in np.unique(groups.runs).tolist():
        style = _MANY if t == MANY_TYPES else styles[trace.types[t]]
        look |= {"color": style.color, "hatch": style.hatch}
        for known in (True, False):
            these = (groups.runs == t) & (groups.is_known == known)
            circles = axes.scatter(
                x[these],
                y[these],
                s=diameters[these] ** 2,
                linestyle="-" if known else _DASHED,
                linewidth=0.8 if known else 1.4,
                zorder=2.5,
                **look,
            )
            circles.set_hatchcolor(style.ink)
        label = "several types run" if t == MANY_TYPES else f"runs {names[t]}"
        handles[label] = axes.scatter([], [], s=110, **look)
        handles[label].set_hatchcolor(style.ink)
    if not groups.is_known.all():
        handles["not in the table"] = axes.scatter(
            [], [], s=110, color="white", edgecolor="black", linestyle=_DASHED
        )
    return handles


def _texts(
    encoding: str,
    trace: MachineTrace,
    groups: StateGroups,
    node: int,
    names: Sequence[str],
) -> tuple[str, str]:
    """Returns the labels inside a circle and below it."""
    runs, members = int(groups.runs[node]), int(groups.members[node])
    if members > 1:
        what = [] if runs == MANY_TYPES else [f"▸{names[runs]}"]
        return "", "\n".join([*what, f"{members:,} rarer states"])
    state = int(groups.state[node])
    frontier = trace.frontiers[state]
    most = frontier[0] if encoding == "max" else None
    ready = frontier_types(encoding, frontier)
    lines = [f"{'▸' * (t == runs)}{'*' * (t == most)}{names[t]}" for t in ready]
    if len(lines) > _LINES:
        # The type that runs is always named.
        kept = sorted({*range(_LINES - 1), ready.index(runs)})[:_LINES]
        lines = [*(lines[k] for k in kept), f"+{len(lines) - len(kept)} more"]
    return f"{state + 1}", "\n".join(lines)


def _label(
    axes: "Axes",
    layout: StateLayout,
    state: int,
    diameter: float,
    inside: str,
    text: str,
) -> None:
    from matplotlib.patheffects import withStroke

    place = tuple(layout.place[state])
    look: dict[str, Any] = {"textcoords": "offset points", "zorder": 3}
    number = axes.annotate(
        inside,
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
    text = plain_text(text)
    axes.annotate(text, place, below, ha="center", va="top", fontsize=7, **look)
    if layout.stays[state]:
        offset = (0.36 * diameter + 2, 0.36 * diameter + 1)
        stays = f"↻{layout.stays[state]:,}"
        axes.annotate(stays, place, offset, va="center", fontsize=7, **look)


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
