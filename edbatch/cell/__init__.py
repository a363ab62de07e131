"""Cells as programs: tracing, packing, hoisting and differentiation of cells.

Only this package knows jaxprs. A cell is traced into a graph of equations, which is
split by binding time, that is, by when values are known. Products are packed, products
of external inputs can be hoisted, and the cell is differentiated with tapes for the
gradients of its weights.

Packing shortens the forward pass of taggers by up to a fifth and that of trees by up to
an eighth, less if states are wide (`experiments/packing_speed.py`). Hoisting shortens
that of word lattices by 12 to 14% at hidden size 128 and 256 (docs/results-memory.md).
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
