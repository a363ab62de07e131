"""Rows of `edbatch compare --memory`: the memory cost of layouts."""

import time
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from edbatch.cli.console import print_table
from edbatch.graph import DataflowGraph
from edbatch.memory_planner import Sizes, plan_layout, report_memory
from edbatch.memory_planner.planner import LAYOUTS
from edbatch.schedule import Policy

# Columns that fit a narrow terminal; JSON output has all fields.
_HEADS = {
    "policy": "policy",
    "layout": "layout",
    "operand_bytes": "read",
    "in_place_bytes": "in place",
    "padding_rows": "pad",
    "arena_bytes": "arenas",
    "reuse_bytes": "reused",
    "peak_bytes": "peak",
    "layout_us_per_node": "µs/node",
}


def memory_rows(
    policies: Mapping[str, Policy], graphs: Sequence[DataflowGraph], batch_size: int
) -> list[dict[str, Any]]:
    """Schedules minibatches with each policy, and lays them out with each method.

    Args:
        policies: The policies, by their label in the rows.
        graphs: The minibatches, with the model's real array sizes.
        batch_size: Instances per minibatch, for the rows.

    Returns:
        One row per policy and layout, with means over the minibatches: the fields of
        `MemoryReport`, the arena bytes with `reuse`, and the time of the layout.
    """
    rows = []
    for label, policy in policies.items():
        schedules = [policy.schedule(graph.structure) for graph in graphs]
        for method in LAYOUTS:
            pairs = list(zip(graphs, schedules, strict=True))
            found = [_measure(*pair, method) for pair in pairs]
            means = {name: fmean(each[name] for each in found) for name in found[0]}
            row: dict[str, Any] = {"batch_size": batch_size, "policy": label}
            row["layout"] = method
            row |= {name: round(value, 4) for name, value in means.items()}
            rows.append(row)
    return rows


def _measure(graph: DataflowGraph, schedule: Any, method: str) -> dict[str, float]:
    sizes = Sizes()
    plan_layout(graph, schedule, sizes, method=method)  # compiles
    start = time.perf_counter()
    layout = plan_layout(graph, schedule, sizes, method=method)
    seconds = time.perf_counter() - start
    reused = plan_layout(graph, schedule, sizes, method=method, reuse=True)
    return {
        **report_memory(layout, graph).as_dict(),
        "reuse_bytes": report_memory(reused, graph).arena_bytes,
        "layout_us_per_node": 1e6 * seconds / graph.num_nodes,
    }


def print_memory_rows(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """Prints the rows as a table."""

    def cell(name: str, value: Any) -> Any:
        if name.endswith("_bytes"):
            return round(value / 1e3)
        if isinstance(value, str):
            return value
        return round(value, 3) if name == "layout_us_per_node" else round(value)

    shown = [[cell(name, row[name]) for name in _HEADS] for row in rows]
    about = (
        "; kilobytes read from arenas, and how many of them in place, padding rows;"
        " kilobytes of arenas, of arenas with reused rows, and of the values that are"
        " live at the same time; time of the layout"
    )
    print_table([*_HEADS.values()], shown, title + about)
