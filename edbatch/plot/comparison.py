"""Plots policies on workloads: batches, and their ratio to the lower bound."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edbatch.arguments import check_type
from edbatch.errors import PlotError
from edbatch.plot.figure import (
    check_names,
    legend_below,
    new_figure,
    plain_text,
    set_counts,
)
from edbatch.plot.policy_style import policy_styles
from edbatch.policies import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINEAR_TO = 5  # largest ratio of batch counts for which the axis is linear
_SPREAD = 0.7  # share of a workload's strip that its policies take up


def plot_comparison(
    rows: Mapping[str, Sequence[Comparison]], title: str = ""
) -> "Figure":
    """Plots the number of batches of policies on workloads.

    Each workload is a strip, each policy a marker. A line connects a policy's mean
    ratio with its worst one.

    Args:
        rows: The rows of each workload's policies, by workload, as returned by
            `edbatch.policies.compare`; `dataclasses.replace` can rename a row.
        title: The title of the figure.

    Returns:
        The figure, with one axes of ratios to the lower bound and one of batches.

    Raises:
        PlotError: There is no workload, a workload has no rows, or two of its rows have
            the same name.
        MissingMatplotlibError: Matplotlib is not installed.

    Example:
        >>> from edbatch.policies import Agenda, Depth, compare
        >>> from edbatch.schedule.examples import tree
        >>> rows = compare([Depth(), Agenda()], [tree("((ab)cb)c")])
        >>> figure = plot_comparison({"one tree": rows})
        >>> [axes.get_xlabel() for axes in figure.axes]
        ['batches / lower bound', 'batches per minibatch']
    """
    _check(rows)
    styles = policy_styles(row.policy for each in rows.values() for row in each)
    most = max(map(len, rows.values()))
    figure = new_figure(9, 1.1 + len(rows) * max(0.35, 0.13 * most))
    ratios, batches = figure.subplots(1, 2, sharey=True, width_ratios=[3, 2])
    handles: dict[str, Any] = {}
    for strip, each in enumerate(rows.values()):
        for k, row in enumerate(each):
            y = strip + _SPREAD * ((k + 0.5) / len(each) - 0.5)
            style = styles[row.policy]
            marker = {
                "color": style.color,
                "marker": style.marker,
                "s": 32,
                "zorder": 3,
            }
            handles[row.policy] = ratios.scatter([row.mean_ratio], [y], **marker)
            batches.scatter([row.mean_batches], [y], **marker)
            ratios.plot(
                [row.mean_ratio, row.worst_ratio], [y, y], color=style.color, lw=1.2
            )
        ends = [strip - _SPREAD / 2, strip + _SPREAD / 2]
        bound = [each[0].mean_lower_bound] * 2
        [line] = batches.plot(bound, ends, color="black", ls="--", lw=1.2)
    ratios.axvline(1, color="black", ls="--", lw=1.2)
    counts = [row.mean_batches for each in rows.values() for row in each]
    is_wide = max(counts) > _LINEAR_TO * min(counts)
    _draw_axes(ratios, batches, [*rows], is_wide)
    if title:
        figure.suptitle(plain_text(title))
    legend_below(figure, {**handles, "lower bound": line})
    return figure


def _check(rows: Mapping[str, Sequence[Comparison]]) -> None:
    check_type(
        PlotError,
        "what a picture of a comparison shows",
        rows,
        Mapping,
        "a dict {name of a workload: edbatch.policies.compare(policies, structures)}",
    )
    if not rows:
        raise PlotError(
            "a picture of a comparison needs workloads but there is none; give"
            " {name: edbatch.policies.compare(policies, structures)}"
        )
    for workload, each in rows.items():
        if not each:
            raise PlotError(
                f"every workload of a comparison has rows but {workload!r} has none;"
                " leave it out, or compare at least one policy on it"
            )
        check_names([row.policy for row in each], f"workload {workload!r}")


def _draw_axes(
    ratios: "Axes", batches: "Axes", workloads: list[str], is_wide: bool
) -> None:
    ratios.set_yticks(range(len(workloads)), [*map(plain_text, workloads)])
    ratios.set_ylim(len(workloads) - 0.5, -0.5)
    ratios.set_xlim(left=min(0.95, ratios.get_xlim()[0]))
    ratios.set_xlabel("batches / lower bound")
    ratios.set_title("Ratio: mean, line to the worst", fontsize="medium")
    batches.margins(x=0.08)
    set_counts(batches, "x", is_log=is_wide)
    batches.set_xlabel("batches per minibatch")
    batches.set_title("Batches: mean", fontsize="medium")
    for axes in (ratios, batches):
        axes.grid(axis="x", color="#E6E6E6")
        axes.set_axisbelow(True)
        axes.tick_params(axis="y", length=0)
        for strip in range(1, len(workloads)):
            axes.axhline(strip - 0.5, color="#BFBFBF", lw=0.8)
