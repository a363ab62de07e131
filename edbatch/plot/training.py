"""Training curves: batches on held-out minibatches, judgement by judgement."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edbatch.errors import PlotError
from edbatch.plot.figure import counted, legend_below, new_panels, set_panel_title
from edbatch.policies import TrainingRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# From Okabe and Ito's palette.
_CURVES = (("#D55E00", "o"), ("#009E73", "D"), ("#CC79A7", "P"), ("#56B4E9", "X"))
_LEGEND_LINE = 0.11  # of a panel's height
# Where the bound is met, it stands inside the wider line of the greedy heuristic.
_LEVELS = {
    "agenda": ("#0072B2", ":", 1.6),
    "agenda-remaining": ("#CC79A7", ":", 1.6),
    "greedy": ("#E69F00", "-", 3.6),
    "lower bound": ("#000000", "--", 1.2),
}


def plot_training(records: Sequence[TrainingRecord]) -> "Figure":
    """Draws the batches on held-out minibatches against the trials of training.

    Records of one workload share a panel, in which each has its curve, labelled by
    its encoding with the trials and seconds that it took, or one point where greedy met
    the bound and nothing was trained. The heuristics and the bound
    are lines; they are those of the panel's first record.

    Args:
        records: Training records, such as ``policy.training``.

    Returns:
        The figure, with one axes per workload.

    Raises:
        PlotError: There is no record, or one has no curve.
        MissingMatplotlibError: Matplotlib is not installed.

    Example:
        >>> from edbatch.policies import train_policy
        >>> from edbatch.schedule.examples import tree
        >>> graph = tree("((ab)cb)c")
        >>> policy = train_policy([graph], [graph], workload="one tree")
        >>> figure = plot_training([policy.training])
        >>> figure.axes[0].get_title()
        'one tree'
    """
    _check(records)
    panels: dict[str, list[TrainingRecord]] = {}
    for record in records:
        panels.setdefault(record.workload, []).append(record)
    figure, axes = new_panels(len(panels))
    handles: dict[str, Any] = {}
    for each, (workload, of_one) in zip(axes, panels.items(), strict=True):
        for k, record in enumerate(of_one):
            _draw_curve(each, record, k)
        handles |= _draw_levels(each, of_one[0])
        _draw_axes(each, workload, len(of_one))
    legend_below(figure, handles)
    return figure


def _check(records: Sequence[TrainingRecord]) -> None:
    if not records:
        raise PlotError(
            "a picture of training needs training records but there is none; give"
            " [policy.training] of a trained policy"
        )
    for record in records:
        if not record.curve:
            raise PlotError(
                "a training record has a curve once the policy was judged but that of"
                f" {record.workload!r} has none: training was interrupted before; train"
                " again"
            )


def _draw_curve(axes: "Axes", record: TrainingRecord, k: int) -> None:
    trials, batches = zip(*record.curve, strict=True)
    color, marker = _CURVES[k % len(_CURVES)]
    took = f"{record.encoding}: {counted(record.trials, 'trial')}"
    took += f", {record.elapsed_s:.2g} s"
    axes.plot(
        trials,
        batches,
        color=color,
        marker=marker,
        # Where curves agree, the earlier stands inside the later.
        markersize=6 + 1.5 * k,
        markeredgecolor="white",
        markeredgewidth=0.6,
        linewidth=1 + 0.8 * k,
        zorder=3 - 0.01 * k,
        label="greedy, not trained" if record.stopped == "greedy" else took,
    )


def _draw_levels(axes: "Axes", record: TrainingRecord) -> dict[str, Any]:
    levels: dict[str, float | None] = {
        "agenda": record.held_out_agenda,
        "agenda-remaining": record.held_out_agenda_remaining,
        "greedy": record.held_out_greedy,
        "lower bound": record.held_out_lower_bound,
    }
    handles = {}
    for name, level in levels.items():
        if level is None:  # not on record
            continue
        color, dashes, width = _LEVELS[name]
        handles[name] = axes.axhline(
            level, color=color, linestyle=dashes, linewidth=width
        )
    return handles


def _draw_axes(axes: "Axes", workload: str, curves: int) -> None:
    from matplotlib.ticker import NullLocator, StrMethodFormatter

    axes.set_xscale("symlog", linthresh=1)  # a judgement may come before all trials
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(-0.15, 1.3 * max(1, axes.dataLim.x1))
    axes.set_xlabel("trials")
    axes.set_ylabel("batches, held out")
    set_panel_title(axes, workload)
    axes.grid(color="#E6E6E6")
    axes.set_axisbelow(True)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + _LEGEND_LINE * (curves + 0.5) * (high - low))
    axes.legend(fontsize="small", frameon=False, loc="upper center")
