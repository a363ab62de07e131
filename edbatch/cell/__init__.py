"""Cells as programs: the one place that knows jaxprs.

A cell is traced into a graph of equations, which is split by binding time: when values
are known. Its products are packed, those of external inputs can be hoisted, and it is
differentiated with tapes for the gradients of its weights.

Packing takes up to a fifth off the forward pass of taggers and an eighth off that of
trees, and less where states are wide (`experiments/packing_speed.py`); hoisting takes
12 to 14% off that of word lattices at hidden 128 and 256 (docs/results-memory.md).
"""

from edbatch.cell.description import CellDescription, describe_cells
from edbatch.cell.hoisted_cell import HoistedCell, hoisted_cell
from edbatch.cell.hoisted_types import HoistedTable, HoistedTypes
from edbatch.cell.packed_cell import OVERHEAD, PackedCell, pack_cell, pack_type
from edbatch.cell.summary import CellSummary, ProductShape

__all__ = [
    "OVERHEAD",
    "CellDescription",
    "CellSummary",
    "HoistedCell",
    "HoistedTable",
    "HoistedTypes",
    "PackedCell",
    "ProductShape",
    "describe_cells",
    "hoisted_cell",
    "pack_cell",
    "pack_type",
]
