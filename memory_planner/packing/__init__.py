"""Packing inside a cell: products that share an input or are summed run as one."""

from edbatch.memory_planner.packing.description import CellDescription, describe_cells
from edbatch.memory_planner.packing.packed_cell import (
    OVERHEAD,
    PackedCell,
    pack_cell,
    pack_type,
)
from edbatch.memory_planner.packing.summary import CellSummary, ProductShape

__all__ = [
    "OVERHEAD",
    "CellDescription",
    "CellSummary",
    "PackedCell",
    "ProductShape",
    "describe_cells",
    "pack_cell",
    "pack_type",
]
