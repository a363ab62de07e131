"""Hoisting: products of external inputs run ahead, for a whole minibatch at once."""

from edbatch.memory_planner.hoisting.run_ahead import run_ahead
from edbatch.memory_planner.hoisting.split_cell import SplitCell, split_cell
from edbatch.memory_planner.hoisting.split_types import SplitTable, SplitTypes

__all__ = ["SplitCell", "SplitTable", "SplitTypes", "run_ahead", "split_cell"]
