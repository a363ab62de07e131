"""Plots the generalisation of policies to batch sizes they were not trained at."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from edbatch.arguments import check_type
from edbatch.errors import PlotError
from edbatch.plot.figure import (
    check_names,
    legend_below,
    new_panels,
    set_panel_title,
)
from edbatch.plot.policy_style import policy_styles
from edbatch.policies import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Table = Mapping[int, Sequence[Comparison]]


def plot_generalisation(
    table: Table | Mapping[str, Table], trained_at: int | None = None
) -> "Figure":
    """Plots the ratio to the lower bound against the batch size.

    Args:
        table: Rows of `edbatch.policies.compare` by number of instances per minibatch,
            all with the same policies; or such tables by workload.
        trained_at: The batch size of the training, to be marked.

    Returns:
        The figure, with one axes per workload.

    Raises:
        PlotError: There is no batch size, a batch size has no rows, or two of its rows
            have the same name.
        MissingMatplotlibError: Matplotlib is not installed.

    Example:
        >>> from edbatch.policies import Depth, Greedy, compare
        >>> from edbatch.schedule.examples import tree
        >>> rows = compare([Depth(), Greedy()], [tree("((ab)cb)c")])
        >>> figure = plot_generalisation({1: rows, 8: rows}, trained_at=8)
        >>> figure.axes[0].get_xlabel()
        'instances per minibatch'
    """
    check_type(
        PlotError,
        "what a picture of generalisation shows",
        table,
        Mapping,
        "a dict {batch size: edbatch.policies.compare(policies, structures)}",
    )
    tables = _by_workload(table)
    _check(tables)
    figure, panels = new_panels(len(tables))
    policies = {
        row.policy: None
        for each in tables.values()
        for rows in each.values()
        for row in rows
    }
    styles = policy_styles(policies)
    handles: dict[str, Any] = {}
    for axes, (workload, each) in zip(panels, tables.items(), strict=True):
        for k, policy in enumerate(policies):
            points = [
                (size, row.mean_ratio)
                for size, rows in sorted(each.items())
                for row in rows
                if row.policy == policy
            ]
            if not points:
                continue
            style = styles[policy]
            [handles[policy]] = axes.plot(
                *zip(*points, strict=True),
                color=style.color,
                marker=style.marker,
                linestyle=style.dashes,
                # Where policies agree, the earlier marker is inside the later one.
                markersize=4 + 1.5 * k,
                zorder=3 - 0.01 * k,
            )
        _draw_axes(axes, workload, sorted(each))
        bound = axes.axhline(1, color="black", linestyle="--", linewidth=1.2)
        handles["lower bound"] = bound
        if trained_at is not None:
            line = axes.axvline(trained_at, color="#9A9A9A", linewidth=5, alpha=0.4)
            handles[f"trained at {trained_at}"] = line
    legend_below(figure, handles)
    return figure


def _by_workload(table: Table | Mapping[str, Table]) -> Mapping[str, Table]:
    if all(isinstance(key, str) for key in table):
        return cast("Mapping[str, Table]", table)
    return {"": cast("Table", table)}


def _check(tables: Mapping[str, Table]) -> None:
    if not tables or not all(tables.values()):
        raise PlotError(
            "a picture of generalisation needs rows at batch sizes but there is no"
            " batch size; give {8: compare(...), 32: compare(...)}"
        )
    for table in tables.values():
        for size, rows in table.items():
            if not rows:
                raise PlotError(
                    f"every batch size has rows but {size} has none; leave it out, or"
                    " compare at least one policy at it"
                )
            check_names([row.policy for row in rows], f"batch size {size}")


def _draw_axes(axes: "Axes", workload: str, sizes: list[int]) -> None:
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("instances per minibatch")
    axes.set_ylabel("batches / lower bound")
    set_panel_title(axes, workload)
    axes.grid(color="#E6E6E6")
    axes.set_axisbelow(True)
