"""Plots training curves: batches on held-out minibatches at each evaluation."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from edbatch.arguments import check_type, list_of
from edbatch.errors import PlotError
from edbatch.plot.figure import counted, legend_below, new_panels, set_panel_title
from edbatch.plot.policy_style import policy_styles
from edbatch.policies import TrainingRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CURVES = (("#BC450F", "o"), ("#2A9D6E", "D"), ("#8F3F71", "P"), ("#56B4E9", "X"))
_UNTRAINED = (0, (7, 2, 1, 2, 1, 2))
_LEGEND_LINE = 0.11  # share of a panel's height
# A heuristic more than this many times as far above the bound as `_highest` is given as
# text, because its line would flatten the curves.
_FAR = 3.0


def plot_training(records: Sequence[TrainingRecord]) -> "Figure":
    """Plots the batches on held-out minibatches against the trials of training.

    Records of one workload share a panel. Each record has a line for the best value so
    far, labelled with its encoding and the trials and seconds of its training, and a
    pale curve through all evaluations, which may extend beyond the panel. A record
    where greedy met the bound and nothing was trained has a single point. For the
    encoding ``"fall"`` a dashed line shows the value before training; the other
    encodings start as greedy. Horizontal lines show the heuristics and the bound of the
    panel's first record; heuristics far above the curves are named at the top instead.

    Args:
        records: Training records, such as ``policy.training``.

    Returns:
        The figure, with one axes per workload. Policies trained with measured costs
        have a separate axes per workload, which shows costs.

    Raises:
        PlotError: There is no record, or a record has no curve.
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
    records = list_of(
        PlotError, "records of a picture", records, "a record, such as policy.training"
    )
    _check(records)
    panels: dict[tuple[str, bool], list[TrainingRecord]] = {}
    for record in records:
        panels.setdefault((record.workload, bool(record.by_cost)), []).append(record)
    figure, axes = new_panels(len(panels))
    handles: dict[str, Any] = {}
    for each, ((workload, by_cost), of_one) in zip(axes, panels.items(), strict=True):
        for k, record in enumerate(of_one):
            _draw_curve(each, record, k)
            handles |= _draw_evaluations(each, record, k)
        levels, above = _draw_levels(each, of_one[0], _highest(of_one))
        handles |= levels
        _draw_axes(each, workload, len(of_one), above)
        if by_cost:
            each.set_ylabel("cost in average batches, held out")
    legend_below(figure, handles)
    return figure


def _check(records: Sequence[TrainingRecord]) -> None:
    if not records:
        raise PlotError(
            "a picture of training needs training records but there is none; give"
            " [policy.training] of a trained policy"
        )
    for record in records:
        check_type(
            PlotError,
            "a record of a picture of training",
            record,
            TrainingRecord,
            "a TrainingRecord, such as policy.training",
        )
        if not record.curve:
            raise PlotError(
                "a training record has a curve once the policy was judged but that of"
                f" {record.workload!r} has none: training was interrupted before; train"
                " again"
            )


def _draw_curve(axes: "Axes", record: TrainingRecord, k: int) -> None:
    """Draws the best value so far, as a step curve over the trials."""
    trials, batches = zip(*record.curve, strict=True)
    color, marker = _CURVES[k % len(_CURVES)]
    best = np.minimum.accumulate(batches)
    is_better = np.diff(best, prepend=np.inf) < 0
    took = f"{record.encoding}: {counted(record.trials, 'trial')}"
    took += f", {_seconds(record.elapsed_s)} s"
    axes.plot(
        trials,
        best,
        color=color,
        marker=marker,
        markevery=np.flatnonzero(is_better).tolist(),
        drawstyle="steps-post",
        # Where curves agree, the earlier marker is inside the later one.
        markersize=6 + k,
        markeredgecolor="white",
        markeredgewidth=0.6,
        linewidth=1.6 + 0.4 * k,
        zorder=3 - 0.01 * k,
        label="greedy, not trained" if record.stopped == "greedy" else took,
    )


def _seconds(elapsed_s: float) -> str:
    """Formats seconds with two significant digits, or as an integer from 99.5 on."""
    return f"{elapsed_s:.2g}" if elapsed_s < 99.5 else f"{elapsed_s:,.0f}"


def _draw_evaluations(axes: "Axes", record: TrainingRecord, k: int) -> dict[str, Any]:
    """Draws all evaluations, and the level of an encoding before training."""
    trials, batches = zip(*record.curve, strict=True)
    color, marker = _CURVES[k % len(_CURVES)]
    handles = {}
    if len(trials) > 1:
        [handles["an evaluation"]] = axes.plot(
            trials,
            batches,
            color=color,
            marker=marker,
            markersize=2.5,
            lw=0.7,
            alpha=0.5,
        )
    untrained = untrained_batches(record)
    if untrained is not None:
        line = axes.axhline(untrained, color=color, linestyle=_UNTRAINED, linewidth=1.2)
        handles["encoding, untrained"] = line
    return handles


def untrained_batches(record: TrainingRecord) -> float | None:
    """Returns the number of batches that a policy's encoding reached before training.

    Args:
        record: The training record of the policy.

    Returns:
        Batches on the held-out minibatches if the first type of ``"fall"``, with equal
        weights, always runs. None for other encodings, which follow greedy before
        training, and if nothing was trained.

    Example:
        >>> from edbatch.policies import get_policy
        >>> untrained_batches(get_policy("zoo:lattice-lstm").training)
        239.71875
    """
    trial, batches = record.curve[0]
    is_first = trial == 0 and record.encoding == "fall" and record.stopped != "greedy"
    return batches if is_first else None


def _highest(records: Sequence[TrainingRecord]) -> float:
    """Returns the maximum of greedy's batches and the curves' first values."""
    return max(
        records[0].held_out_greedy,
        *(record.curve[0][1] for record in records),
    )


def _draw_levels(
    axes: "Axes", record: TrainingRecord, highest: float
) -> tuple[dict[str, Any], str]:
    """Draws heuristics and bound; also returns a text about levels above the panel."""
    levels: dict[str, float | None] = {
        "agenda": record.held_out_agenda,
        "agenda-remaining": record.held_out_agenda_remaining,
        "greedy": record.held_out_greedy,
    }
    handles: dict[str, Any] = {}
    above = []
    bound = record.held_out_lower_bound
    top = bound + _FAR * (highest - bound) if highest > bound else math.inf
    for name, level in levels.items():
        if level is None:  # not recorded
            continue
        if level > top:
            above.append(f"{name} {level:,.0f}")
            continue
        style = policy_styles([name])[name]
        handles[name] = axes.axhline(
            level,
            color=style.color,
            linestyle="-" if name == "greedy" else style.dashes,
            # Greedy's line is wider, so the bound's line shows inside it if they agree.
            linewidth=3.6 if name == "greedy" else 1.6,
        )
    handles["lower bound"] = axes.axhline(bound, color="black", ls="--", lw=1.2)
    shown = [each for each in levels.values() if each is not None and each <= top]
    span = max(highest, *shown) - bound
    if span > 0:  # evaluations of discarded tables may be outside the panel
        axes.set_ylim(bound - 0.1 * span, bound + 1.2 * span)
    return handles, f"↑ above: {', '.join(above)}" if above else ""


def _draw_axes(axes: "Axes", workload: str, curves: int, above: str) -> None:
    from matplotlib.ticker import NullLocator, StrMethodFormatter

    axes.set_xscale("symlog", linthresh=1)  # the first evaluation may be at trial 0
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(-0.15, 1.3 * max(1, axes.dataLim.x1))
    axes.set_xlabel("trials")
    axes.set_ylabel("batches, held out")
    set_panel_title(axes, workload)
    axes.grid(color="#E6E6E6")
    axes.set_axisbelow(True)
    low, high = axes.get_ylim()
    lines = curves + 0.5 + bool(above)
    axes.set_ylim(low, high + _LEGEND_LINE * lines * (high - low))
    axes.legend(
        title=above or None,
        title_fontsize="small",
        fontsize="small",
        framealpha=0.85,
        edgecolor="none",
        loc="upper center",
    )
