"""Cells as programs: the one place that knows jaxprs.

A cell is split by when its parts are known, its products are packed, its products of
external inputs can run ahead, and it is differentiated with tapes for its parameters.
"""

from edbatch.cell.description import CellDescription, describe_cells
from edbatch.cell.packed_cell import OVERHEAD, PackedCell, pack_cell, pack_type
from edbatch.cell.run_ahead import run_ahead
from edbatch.cell.split_cell import SplitCell, split_cell
from edbatch.cell.split_types import SplitTable, SplitTypes
from edbatch.cell.summary import CellSummary, ProductShape

__all__ = [
    "OVERHEAD",
    "CellDescription",
    "CellSummary",
    "PackedCell",
    "ProductShape",
    "SplitCell",
    "SplitTable",
    "SplitTypes",
    "describe_cells",
    "pack_cell",
    "pack_type",
    "run_ahead",
    "split_cell",
]
