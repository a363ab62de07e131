"""Memory planning: where every value lives."""

from edbatch.memory_planner.layout import (
    ZERO_ROW,
    Layout,
    check_layout,
    plan_layout,
)
from edbatch.memory_planner.planner import OFF, Planner
from edbatch.memory_planner.pq_tree import PQTree
from edbatch.memory_planner.sizes import Sizes

__all__ = [
    "OFF",
    "ZERO_ROW",
    "Layout",
    "PQTree",
    "Planner",
    "Sizes",
    "check_layout",
    "plan_layout",
]
