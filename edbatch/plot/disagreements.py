"""Plots the disagreements of a policy with the heuristics, by state."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from edbatch.graph import GraphStructure
from edbatch.plot.figure import (
    check_max_states,
    legend_below,
    new_figure,
    plain_text,
    set_counts,
)
from edbatch.plot.frontier_label import READING, frontier_label
from edbatch.plot.policy_style import policy_styles
from edbatch.plot.type_style import short_names
from edbatch.policies import MachineTrace, StateMachine, trace_machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BARS = "#5F5F5F"


def plot_disagreements(
    machine: StateMachine, structures: Sequence[GraphStructure], max_states: int = 25
) -> "Figure":
    """Plots how often a policy runs a different type than agenda and greedy would.

    At every step the heuristics choose a type for the policy's own frontier, so that an
    early disagreement does not make all later steps differ.

    Args:
        machine: The policy.
        structures: Minibatches to run the policy on.
        max_states: Maximum number of states to draw, the most visited first.

    Returns:
        The figure, with one axes of shares of steps per state and one of steps.

    Raises:
        PolicyError: No graph has a node, or a graph belongs to another model.
        PlotError: `max_states` is not positive.
        MissingMatplotlibError: Matplotlib is not installed.

    Example:
        >>> from edbatch.policies import MachineState
        >>> from edbatch.schedule.examples import tree
        >>> graph = tree("((ab)cb)c")
        >>> machine = StateMachine(graph.type_keys, "base", (MachineState((0, 1), 1),))
        >>> plot_disagreements(machine, [graph]).get_suptitle()
        'Steps that differ: from agenda 25.0%, from greedy 25.0%'
    """
    check_max_states(max_states)
    trace = trace_machine(machine, structures)
    differs = {"agenda": trace.action != trace.agenda}
    differs["greedy"] = trace.action != trace.greedy
    count = min(max_states, len(trace.frontiers))
    figure = new_figure(9, 2 + 0.3 * count)
    shares, bars = figure.subplots(1, 2, sharey=True, width_ratios=[2, 1])
    styles = policy_styles(differs)
    handles = {}
    for place, (name, where) in zip((-0.2, 0.2), differs.items(), strict=True):
        share = 100 * _share(trace, where)[:count]
        handles[f"from {name}"] = shares.barh(
            np.arange(count) + place,
            share,
            height=0.36,
            color=styles[name].color,
            hatch="///" if name == "greedy" else "",
            edgecolor="white",
            linewidth=0,
        )
    bars.barh(range(count), trace.visits[:count], color=_BARS)
    _draw_axes(shares, bars, trace, machine.encoding, count)
    totals = [f"from {name} {where.mean():.1%}" for name, where in differs.items()]
    figure.suptitle(f"Steps that differ: {', '.join(totals)}")
    legend_below(figure, handles, title=READING.get(machine.encoding, ""))
    return figure


def _share(trace: MachineTrace, where: np.ndarray) -> np.ndarray:
    """Returns the share of each frontier's steps for which `where` is true; [F]."""
    hits = np.bincount(trace.frontier, weights=where, minlength=len(trace.frontiers))
    return hits / trace.visits


def _draw_axes(
    shares: "Axes", bars: "Axes", trace: MachineTrace, encoding: str, count: int
) -> None:
    names = short_names(trace.types)
    labels = [
        f"{frontier_label(encoding, trace.frontiers[k], names)}  {k + 1}"
        for k in range(count)
    ]
    shares.set_yticks(range(count), [*map(plain_text, labels)], fontsize="small")
    shares.set_ylim(count - 0.4, -0.6)
    shares.set_xlim(0, 100)
    shares.set_xlabel("steps in the state that differ (%)")
    more = len(trace.frontiers) - count
    of = f" ({count} most visited of {count + more})" if more else ""
    shares.set_ylabel(f"state{of}")
    shares.set_title("Runs another type", fontsize="medium")
    visits = trace.visits[:count]
    set_counts(bars, "x", is_log=visits.max() > 100 * visits.min())
    bars.set_xlabel("steps")
    bars.set_title("How often", fontsize="medium")
    for axes in (shares, bars):
        axes.grid(axis="x", color="#E6E6E6")
        axes.set_axisbelow(True)
