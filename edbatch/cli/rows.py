"""Rows of a comparison of policies, as commands print them."""

from collections.abc import Sequence
from typing import Any

from edbatch.cli.console import print_table
from edbatch.graph import GraphStructure
from edbatch.policies import Agenda, Depth, Greedy, compare
from edbatch.schedule import Policy

COLUMNS = (
    "policy",
    "batches",
    "lower_bound",
    "worst_ratio",
    "unseen_states",
    "schedule_us_per_node",
)


def compare_rows(
    learned: Policy, structures: Sequence[GraphStructure]
) -> list[dict[str, Any]]:
    """Compares a policy with the heuristics on the same minibatches.

    Args:
        learned: The policy, called ``learned`` in its row.
        structures: The minibatches.

    Returns:
        One dict per policy with the keys `COLUMNS`.
    """
    found = compare([learned, Agenda(), Depth(), Greedy()], structures)
    labels = ("learned", "agenda", "depth", "greedy")
    return [
        {
            "policy": label,
            "batches": round(row.mean_batches, 4),
            "lower_bound": round(row.mean_lower_bound, 4),
            "worst_ratio": round(row.worst_ratio, 4),
            "unseen_states": row.unseen_states,
            "schedule_us_per_node": round(row.schedule_us_per_node, 5),
        }
        for label, row in zip(labels, found, strict=True)
    ]


def print_rows(rows: Sequence[dict[str, Any]], title: str) -> None:
    """Prints the rows as a table."""
    print_table(
        (
            "policy",
            "batches",
            "lower bound",
            "worst ratio",
            "unseen states",
            "µs per node",
        ),
        ([row[column] for column in COLUMNS] for row in rows),
        title,
    )
