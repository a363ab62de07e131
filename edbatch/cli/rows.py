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
_OF_THE_PROOF = ("proven_bound", "ratio_to_proven", "proven_optimal")
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
    """Prints the rows as a table, and what is proven as another: both fit 80 columns.

    Args:
        rows: As from `as_rows`, with or without what `add_optima` adds.
        title: Stands above.
    """
    # The size of the minibatches only where sizes differ.
    sizes = {row["batch_size"] for row in rows}
    heads = ("batch_size", "policy") if len(sizes) > 1 else ("policy",)
    rest = [name for name in rows[0] if name not in ("batch_size", "policy")]
    proof = [name for name in rest if name in _OF_THE_PROOF]
    _print_columns(rows, (*heads, *(n for n in rest if n not in proof)), title)
    if proof:
        title = "The same batches, against a bound that an exact search proves"
        _print_columns(rows, (*heads, "batches", *proof), title)


def _print_columns(
    rows: Sequence[dict[str, Any]], names: Sequence[str], title: str
) -> None:
    heads = [COLUMNS[name] for name in names]
    print_table(heads, ([row[name] for name in names] for row in rows), title)
