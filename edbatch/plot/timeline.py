"""Plots the batches of one minibatch over time, with their arithmetic throughput."""

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from edbatch.errors import PlotError, shown
from edbatch.explain import Explanation
from edbatch.plot.figure import (
    counted,
    legend_below,
    new_figure,
    plain_text,
    set_counts,
)
from edbatch.plot.type_style import TypeStyle, short_names, type_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZE_IN = (10.0, 5.4)
_PALE = 0.5
_HATCHED = 0.004  # smallest share of the time for which a bar is hatched


def plot_timeline(report: Explanation) -> "Figure":
    """Plots the batches of a minibatch over time.

    Each bar is a batch: its width is its time, its height the number of its nodes
    (logarithmic), its colour the type. The lower axes shows the rate of multiplications
    and additions of its matrix products, excluding padding. The legend gives each
    type's share of the time and of the arithmetic. A type with a large share of the
    time and a small one of the arithmetic runs in narrow batches, or is bound by
    memory.

    Args:
        report: The explanation of a minibatch, with times: from
            ``explain(..., measure=True)``, or from a function with costs.

    Returns:
        The figure, with one axes for nodes and one for arithmetic.

    Raises:
        PlotError: `report` is not an `Explanation`, or has no times.
        MissingMatplotlibError: Matplotlib is not installed.

    Example:
        >>> import edbatch as eb
        >>> import jax.numpy as jnp
        >>> params = jnp.eye(3)
        >>> batched = eb.batch(eb.cell(lambda params, x: params @ x), params=params)
        >>> report = batched.explain([jnp.ones(3)] * 5, params=params, measure=True)
        >>> nodes, arithmetic = plot_timeline(report).axes
        >>> arithmetic.get_ylabel()
        'GFLOP/s'
    """
    if not isinstance(report, Explanation):
        raise PlotError(
            "a timeline is drawn of what batched.explain returns for one device but"
            f" this is {shown(report)}, of type {type(report).__name__}"
        )
    times_us = report.batches.time_us
    if times_us is None:
        raise PlotError(
            "a timeline draws how long batches take but this report has no times; call"
            " explain with measure=True and params=, or give eb.batch the costs= of"
            " 'edbatch calibrate'"
        )
    figure = new_figure(*_SIZE_IN)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    fills = type_styles(report.model_types, others=[use.type for use in report.types])
    styles = [fills[use.type] for use in report.types]
    ends = np.cumsum(times_us) / 1e3
    total_ms = float(ends[-1]) if len(ends) else 0.0
    starts = ends - times_us / 1e3
    bars: dict[int, Any] = {}
    for use, style in enumerate(styles):
        own = report.batches.use == use
        nodes = report.batches.nodes[own]
        flops = nodes * (report.types[use].flops / max(1, report.types[use].nodes))
        took = times_us[own]
        rate = np.divide(flops, 1e3 * took, out=np.zeros(len(took)), where=took > 0)
        # Hoisted products of a type have the type's colour, but pale.
        alpha = _PALE if report.types[use].hoisted else None
        draw = partial(_draw, starts[own], took, style, total_ms, alpha)
        bars[use] = draw(nodes, top)
        draw(rate, bottom)
    _label(report, top, bottom, total_ms)
    legend_below(figure, _entries(report, bars))
    return figure


def _draw(
    starts: np.ndarray,
    times_us: np.ndarray,
    style: TypeStyle,
    total_ms: float,
    alpha: float | None,
    heights: np.ndarray,
    axes: "Axes",
) -> Any:
    wide = bool(len(times_us)) and times_us.max() / 1e3 >= _HATCHED * total_ms
    return axes.bar(
        starts,
        heights,
        width=times_us / 1e3,
        align="edge",
        color=style.color,
        hatch=style.hatch if wide else None,
        edgecolor=style.ink,  # colour of the hatch; the bar has no outline
        linewidth=0,
        hatch_linewidth=0.5,
        alpha=alpha,
    )


def _label(report: Explanation, top: "Axes", bottom: "Axes", total_ms: float) -> None:
    set_counts(top, "y", is_log=True)
    top.set_ylim(bottom=0.7)  # so that a batch of one node is visible
    top.set_ylabel("nodes in the batch")
    count = counted(report.plan.batches, "batch", "batches")
    hoisted = len(report.batches) - report.plan.batches
    if hoisted:
        count = f"{count} and {hoisted} hoisted"
    top.set_title(
        f"{plain_text(report.model)}: {counted(report.plan.nodes, 'node')} in {count},"
        f" {total_ms:,.2f} ms {report.time_source}",
        loc="left",
        fontsize="medium",
    )
    bottom.set_ylabel("GFLOP/s")
    bottom.set_xlabel("milliseconds, one batch after the other")
    bottom.set_xlim(0, total_ms or 1)
    for axes in (top, bottom):
        axes.grid(axis="y", color="#E6E6E6")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)


def _entries(report: Explanation, bars: dict[int, Any]) -> dict[str, Any]:
    """Returns the entries of the legend, one per type, by descending time."""
    uses, total = report.types, report.time_us or 1.0
    names = short_names([use.type for use in uses if not use.hoisted])
    named = dict(zip((use.type for use in uses if not use.hoisted), names, strict=True))
    order = sorted(bars, key=lambda k: -(uses[k].time_us or 0.0))
    flops = report.flops or 1
    return {
        f"{named.get(uses[k].type, str(uses[k].type))}"
        f"{', hoisted' if uses[k].hoisted else ''}:"
        f" {(uses[k].time_us or 0.0) / total:.0%} of the time,"
        f" {uses[k].flops / flops:.0%} of the arithmetic": bars[k]
        for k in order
    }
