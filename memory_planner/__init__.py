"""Memory planning: assigns each value a row of an arena.

Combined with packed cells, the aligned layout shortens the forward pass of chains by a
fifth and that of `lattice-lstm` by a tenth. By itself, it gains nothing on trees, where
the default keeps the order of the schedule (`edbatch bench --planner`,
docs/results-memory.md).
"""

from edbatch.memory_planner.layout import (
    ZERO_ROW,
    Layout,
    plan_layout,
)
from edbatch.memory_planner.layout_check import check_layout
from edbatch.memory_planner.memory_report import MemoryReport, report_memory
from edbatch.memory_planner.planner import Planner
from edbatch.memory_planner.pq_tree import PQTree
from edbatch.memory_planner.sizes import Sizes

__all__ = [
    "ZERO_ROW",
    "Layout",
    "MemoryReport",
    "PQTree",
    "Planner",
    "Sizes",
    "check_layout",
    "plan_layout",
    "report_memory",
]
