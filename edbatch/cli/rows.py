"""Rows of a comparison of policies, as commands print them."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from edbatch.cli.console import print_table
from edbatch.graph import GraphStructure
from edbatch.policies import (
    Agenda,
    Comparison,
    Depth,
    Greedy,
    Optimum,
    Searched,
    compare,
    find_optimum,
)
from edbatch.schedule import Policy

COLUMNS = {
    "batch_size": "size",
    "policy": "policy",
    "batches": "batches",
    "lower_bound": "lower bound",
    "mean_ratio": "mean ratio",
    "worst_ratio": "worst ratio",
    "unseen_states": "unseen states",
    "schedule_us_per_node": "µs/node",
    "proven_bound": "proven bound",
    "ratio_to_proven": "ratio to it",
    "proven_optimal": "proven optimal",
}
SEARCHED = "searched"


def comparisons(
    learned: Policy, structures: Sequence[GraphStructure], search_ms: float = 0.0
) -> list[Comparison]:
    """Compares a policy, alone and with a search, with the heuristics.

    Args:
        learned: The policy, called ``learned`` in its row.
        structures: The minibatches.
        search_ms: Milliseconds for the search on each; 0 for no such row.

    Returns:
        One row per policy.
    """
    policies: dict[str, Policy] = {"learned": learned}
    if search_ms > 0:
        policies[SEARCHED] = Searched(learned, search_ms)
    policies |= {"agenda": Agenda(), "depth": Depth(), "greedy": Greedy()}
    found = compare([*policies.values()], structures)
    return [
        replace(row, policy=label) for label, row in zip(policies, found, strict=True)
    ]


def as_rows(found: Sequence[Comparison], batch_size: int) -> list[dict[str, Any]]:
    """Returns a comparison as JSON values.

    Args:
        found: The rows.
        batch_size: Instances per minibatch.

    Returns:
        One dict per policy, with the first keys of `COLUMNS`.
    """
    return [
        {
            "batch_size": batch_size,
            "policy": row.policy,
            "batches": round(row.mean_batches, 4),
            "lower_bound": round(row.mean_lower_bound, 4),
            "mean_ratio": round(row.mean_ratio, 4),
            "worst_ratio": round(row.worst_ratio, 4),
            "unseen_states": row.unseen_states,
            "schedule_us_per_node": round(row.schedule_us_per_node, 4),
        }
        for row in found
    ]


def add_optima(
    rows: list[dict[str, Any]],
    learned: Policy,
    structures: Sequence[GraphStructure],
    found: Sequence[Comparison],
) -> None:
    """Adds to rows how far the policies are from what is proven; slow.

    Args:
        rows: As from `as_rows`; get the last keys of `COLUMNS`.
        learned: The policy that the exact search starts from.
        structures: The minibatches.
        found: The comparison that the rows are of.
    """
    optima: list[Optimum] = [find_optimum(each, learned) for each in structures]
    bounds = [each.bound for each in optima]
    for row, comparison in zip(rows, found, strict=True):
        batches = comparison.batches
        row["proven_bound"] = round(fmean(bounds), 4)
        row["ratio_to_proven"] = round(
            fmean(b / low for b, low in zip(batches, bounds, strict=True)), 4
        )
        row["proven_optimal"] = sum(
            b == low for b, low in zip(batches, bounds, strict=True)
        )


def print_rows(rows: Sequence[dict[str, Any]], title: str) -> None:
    """Prints the rows as a table; the minibatch's size only where sizes differ."""
    shown = [
        name
        for name in rows[0]
        if name != "batch_size" or len({row["batch_size"] for row in rows}) > 1
    ]
    print_table(
        tuple(COLUMNS[name] for name in shown),
        ([row[name] for name in shown] for row in rows),
        title,
    )
