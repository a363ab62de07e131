"""Memory planning: where every value lives.

With packed cells, it takes a fifth off the forward pass of chains and a tenth off that
of word lattices; on trees it gains nothing and leaves them alone (`edbatch bench
--planner`, docs/results-memory.md).
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
