"""Compares policies and prints the comparison as rows of a table."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from edbatch.cli.console import print_out, print_table
from edbatch.graph import GraphStructure
from edbatch.policies import (
    Agenda,
    AgendaRemaining,
    BeamSearch,
    Comparison,
    Depth,
    Greedy,
    Optimum,
    compare,
    find_optimum,
    guarded,
)
from edbatch.schedule import Policy

COLUMNS = {
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
HEURISTICS = (Agenda(), AgendaRemaining(), Depth(), Greedy())
_OF_THE_PROOF = ("proven_bound", "ratio_to_proven", "proven_optimal")
LEARNED = "learned"
ALONE = "learned alone"
SEARCHED = "searched"


def comparisons(
    learned: Policy, structures: Sequence[GraphStructure], search_ms: float = 0.0
) -> list[Comparison]:
    """Compares a policy, guarded, alone and with a search, with the heuristics.

    The rows ``learned`` and ``searched`` run as in `edbatch.batch`: its guard takes the
    schedule of a heuristic where that has fewer batches.

    Args:
        learned: The policy.
        structures: The minibatches.
        search_ms: Milliseconds for the search on each minibatch; 0 leaves its row out.

    Returns:
        One row per policy.
    """
    policies: dict[str, Policy] = {LEARNED: guarded(learned), ALONE: learned}
    if search_ms > 0:
        policies[SEARCHED] = guarded(BeamSearch(learned, search_ms))
    policies |= {each.name: each for each in HEURISTICS}
    found = compare([*policies.values()], structures)
    return [
        replace(row, policy=label) for label, row in zip(policies, found, strict=True)
    ]


def where_beaten(
    found: Sequence[Comparison], batch_size: int, policy: str = ALONE
) -> str | None:
    """Describes the best heuristic if it needs fewer batches than the policy alone.

    Args:
        found: The rows of the comparison.
        batch_size: Instances per minibatch, for the sentence.
        policy: The row of the policy without the guard.

    Returns:
        A sentence; None if no heuristic needs fewer batches.
    """
    names = {each.name for each in HEURISTICS}
    alone = next(row for row in found if row.policy == policy)
    best = min(
        (row for row in found if row.policy in names),
        key=lambda row: (row.mean_batches, row.policy != "greedy"),  # the default
    )
    if best.mean_batches >= alone.mean_batches:
        return None
    return (
        f"At {batch_size:,} instances per minibatch {best.policy} runs fewer batches"
        f" than the policy alone: {best.mean_batches:.2f} instead of"
        f" {alone.mean_batches:.2f}, or {best.mean_ratio:.3f} instead of"
        f" {alone.mean_ratio:.3f} times the lower bound. The guard of eb.batch takes"
        " its schedules where they have fewer batches."
    )


def as_rows(found: Sequence[Comparison], batch_size: int) -> list[dict[str, Any]]:
    """Converts a comparison to JSON values.

    Args:
        found: The rows of the comparison.
        batch_size: Instances per minibatch.

    Returns:
        One dict per policy, with the first keys of `COLUMNS` and the batch size.
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
    """Adds proven bounds, and the ratios to them, to rows; slow.

    Args:
        rows: Rows from `as_rows`; the last keys of `COLUMNS` are added.
        learned: The policy that the exact search starts from.
        structures: The minibatches.
        found: The comparison from which the rows were made.
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
    """Prints one table of rows per minibatch size.

    Proven bounds are in a second table. All tables fit in 80 columns.

    Args:
        rows: Rows from `as_rows`, with or without the keys of `add_optima`.
        title: The title of the tables.
    """
    sizes = [*dict.fromkeys(row["batch_size"] for row in rows)]
    if len(sizes) > 1:
        print_out(f"{title}\n")
    names = [name for name in rows[0] if name != "batch_size"]
    proof = [name for name in names if name in _OF_THE_PROOF]
    for size in sizes:
        of_size = [row for row in rows if row["batch_size"] == size]
        what = f"Minibatches of {size:,}" if len(sizes) > 1 else title
        _print_columns(of_size, [name for name in names if name not in proof], what)
        if proof:
            what = "The same batches, against a bound that an exact search proves"
            _print_columns(of_size, ["policy", "batches", *proof], what)


def _print_columns(
    rows: Sequence[dict[str, Any]], names: Sequence[str], title: str
) -> None:
    heads = [COLUMNS[name] for name in names]
    print_table(heads, ([row[name] for name in names] for row in rows), title)
