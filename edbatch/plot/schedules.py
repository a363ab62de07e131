"""Plots schedules of one minibatch as timelines, one below the other."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from edbatch.arguments import check_number, check_type, list_of
from edbatch.errors import PlotError
from edbatch.graph import GraphStructure, TypeKey
from edbatch.graph.structure_arguments import check_structure
from edbatch.plot.figure import (
    counted,
    legend_below,
    new_figure,
    plain_text,
    set_counts,
)
from edbatch.plot.type_style import PALETTE, TypeStyle, short_names, type_styles
from edbatch.schedule import Schedule, check_schedule, lower_bound

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH_IN = 10.0
_ROW_IN = 1.35
_SEPARATE_UP_TO = 100  # batches; with more of them, gaps and hatches hide the colours


def plot_schedules(
    schedules: Mapping[str, Schedule] | Sequence[Schedule],
    structure: GraphStructure,
    bound: int | None = None,
    types: Sequence[TypeKey] | None = None,
) -> "Figure":
    """Plots several schedules of one minibatch, batch by batch.

    Each row is a schedule, each bar a batch. Colour and hatch of a bar show the type,
    its height the number of nodes in the batch (logarithmic). A dashed line marks the
    end of a schedule that meets the lower bound.

    Args:
        schedules: Schedules by label, or a sequence of schedules, which are labelled
            with the names of their policies.
        structure: The minibatch's graph.
        bound: The lower bound on the number of batches; `lower_bound` if None.
        types: The types of the model, in the order that determines their colours, for
            example ``policy.types``; those of the graph if None.

    Returns:
        The figure, with one axes per schedule.

    Raises:
        PlotError: There is no schedule, a schedule belongs to another graph, the graph
            has no nodes, or an argument has a wrong type.
        MissingMatplotlibError: Matplotlib is not installed.

    Example:
        >>> from edbatch.policies import Agenda, Depth
        >>> from edbatch.schedule.examples import tree
        >>> graph = tree("((ab)cb)c")
        >>> schedules = [each.schedule(graph) for each in (Depth(), Agenda())]
        >>> figure = plot_schedules(schedules, graph)
        >>> [axes.get_title(loc="left") for axes in figure.axes][0]
        'depth: 4 batches, 1.00 × lower bound'
    """
    check_structure(PlotError, "the graph of a picture of schedules", structure)
    named = _named(schedules)
    _check(named, structure)
    if bound is None:
        bound = lower_bound(structure)
    check_number(PlotError, "the bound of a picture of schedules", bound, 0)
    if types is not None:
        what = "the types of a picture of schedules"
        types = list_of(PlotError, what, types, "a TypeKey, as of policy.types")
    figure = new_figure(_WIDTH_IN, 1.1 + _ROW_IN * len(named))
    grid = figure.subplots(len(named), 1, sharex=True, sharey=True, squeeze=False)
    rows = [*grid[:, 0]]
    styles = type_styles(types, [structure])
    by_type = [styles[key] for key in structure.type_keys]
    bars: dict[int, Any] = {}
    for axes, (label, schedule) in zip(rows, named, strict=True):
        bars |= _draw_batches(axes, schedule, by_type)
        line = axes.axvline(bound + 0.5, color="black", linestyle="--", linewidth=1.2)
        times = f", {schedule.num_batches / bound:.2f} × lower bound" if bound else ""
        count = counted(schedule.num_batches, "batch", "batches")
        title = plain_text(f"{label}: {count}{times}")
        axes.set_title(title, loc="left", fontsize="medium")
    _draw_axes(rows, max(each.num_batches for _, each in named), bound)
    figure.supylabel("nodes in the batch", fontsize="medium")
    names = short_names(structure.type_keys)
    entries = {names[t]: bars[t] for t in sorted(bars)}
    legend_below(figure, {**entries, f"lower bound ({bound})": line})
    return figure


def _named(
    schedules: Mapping[str, Schedule] | Sequence[Schedule],
) -> list[tuple[str, Schedule]]:
    if isinstance(schedules, Mapping):
        named = [*schedules.items()]
    else:
        what = "the schedules of a picture"
        found = list_of(PlotError, what, schedules, "a schedule of policy.schedule")
        named = [(getattr(each, "policy", None) or "schedule", each) for each in found]
    for _, each in named:
        check_type(
            PlotError,
            "each schedule of a picture",
            each,
            Schedule,
            "a schedule, as policy.schedule(structure) returns it",
        )
    return named


def _check(named: list[tuple[str, Schedule]], structure: GraphStructure) -> None:
    if not named or not structure.num_nodes:
        what = "the graph has no node" if named else "there is no schedule"
        raise PlotError(
            f"a timeline needs schedules of a graph with nodes but {what}; give"
            " policy.schedule(structure) of one policy or more"
        )
    for label, schedule in named:
        if len(schedule.order) != structure.num_nodes:
            raise PlotError(
                "the schedules of one picture are of one minibatch but"
                f" {label!r} has {len(schedule.order)} nodes and the graph"
                f" {structure.num_nodes}; schedule this graph with each policy"
            )
        try:
            check_schedule(schedule, structure)
        except AssertionError as error:
            raise PlotError(
                f"the schedules of one picture are of its graph but {label!r} is of"
                f" another one ({error}); schedule this graph with each policy"
            ) from None


def _draw_batches(
    axes: "Axes", schedule: Schedule, styles: Sequence[TypeStyle]
) -> dict[int, Any]:
    widths = np.diff(schedule.batch_start)
    number = np.arange(1, schedule.num_batches + 1)
    is_wide = schedule.num_batches <= _SEPARATE_UP_TO
    has_hatches = is_wide or len(styles) > len(PALETTE)
    bars = {}
    for t in np.unique(schedule.batch_type).tolist():
        style = styles[t]
        chosen = schedule.batch_type == t
        bars[t] = axes.bar(
            number[chosen],
            widths[chosen],
            width=0.86 if is_wide else 1.0,
            color=style.color,
            hatch=style.hatch if has_hatches else "",
            edgecolor=style.ink,  # colour of the hatch; the bar has no outline
            linewidth=0,
            hatch_linewidth=1.0 if is_wide else 0.4,
        )
    return bars


def _draw_axes(rows: Sequence["Axes"], longest: int, bound: int) -> None:
    from matplotlib.ticker import MaxNLocator

    for axes in rows:
        set_counts(axes, "y", is_log=True)
        axes.set_ylim(bottom=0.7)  # so that a batch of one node is visible
        axes.grid(axis="y", color="#E6E6E6")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    last = rows[-1]
    last.set_xlim(0.4, max(longest, bound) + 0.6)
    last.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    last.set_xlabel("batch number")
