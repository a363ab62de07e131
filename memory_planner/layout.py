"""Where every value lives.

Values live in arenas, one per array kind (shape and dtype), a row each. A batch's
outputs have consecutive rows, in the batch's own order (see `rows`).

In *schedule order*, nodes keep the order of the schedule, in which they follow the
order of their last operand, and batches follow each other. It is the cheapest layout,
linear in values, and the one that is taken where nothing is gained by another. The
*aligned* layout orders nodes inside batches, and batches among each other, so that most
operands are read in place (see `alignment`).

Row 0 of every arena is zero and stands for operands that a padded list lacks.
"""

from dataclasses import dataclass, replace

import numpy as np
from numba import njit

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.merge import check_rows
from edbatch.memory_planner.alignment_search import best_alignment
from edbatch.memory_planner.planner import LAYOUTS, default_effort
from edbatch.memory_planner.reuse import find_outputs, place_with_reuse
from edbatch.memory_planner.rows import (
    find_in_place,
    lane_tables,
    place_blocks,
    slot_tables,
    value_lanes,
)
from edbatch.memory_planner.sizes import Sizes
from edbatch.schedule.schedule import Schedule

ZERO_ROW = 0  # the row of each arena and pool that is zero


@dataclass(frozen=True, eq=False)
class Layout:
    """Rows of ``V`` values of ``K`` kinds; ``N`` nodes in ``S`` batches, ``C`` chunks.

    Attributes:
        order: Nodes in the order in which they run.
        batch_start: First position in ``order`` of each batch, and the end.
        batch_type: Type of each batch.
        chunk_start: First position in ``order`` of each chunk.
        chunk_size: Nodes in each chunk.
        chunk_width: Rows that each chunk computes, at least its size.
        value_row: Row of each value in its kind's arena.
        arena_rows: Rows used in each kind's arena, the zero row included. A slice of
            full width that begins where a chunk's operands are in place stays within.
        in_place: Whether the operands in a slot of a chunk are one contiguous slice of
            an arena, in the chunk's own order. Slots that a type does not have are
            False, and so are those of padded lists, which are stacked.
        reuse: Whether values that nobody reads any more are overwritten.
    """

    order: np.ndarray  # [N] int32
    batch_start: np.ndarray  # [S + 1] int32
    batch_type: np.ndarray  # [S] int32
    chunk_start: np.ndarray  # [C] int32
    chunk_size: np.ndarray  # [C] int32
    chunk_width: np.ndarray  # [C] int32
    value_row: np.ndarray  # [V] int32
    arena_rows: np.ndarray  # [K] int64
    in_place: np.ndarray  # [C, most slots] bool
    reuse: bool = False


def plan_layout(
    graph: DataflowGraph,
    schedule: Schedule,
    sizes: Sizes,
    *,
    method: str = "schedule",
    reuse: bool = False,
    effort: int | None = None,
) -> Layout:
    """Lays out a scheduled graph.

    Args:
        graph: The graph.
        schedule: Its schedule.
        sizes: Widths of chunks.
        method: ``"schedule"`` keeps the order of the schedule; ``"aligned"`` orders
            nodes and blocks. Never are fewer bytes read in place than in the order of
            the schedule.
        reuse: Whether rows are used again once nobody reads their values any more; the
            model's outputs are kept. There is no gradient then.
        effort: How many operands the search for a better alignment may look at, once
            the first one is found; None for `default_effort`.

    Returns:
        The layout. Time O(V + E), and sorting for the aligned one.

    Raises:
        PlanError: An arena would have more rows than int32 can count.
    """
    assert method in LAYOUTS, f"there is no layout {method!r}"
    planning = _Planning(graph, schedule, sizes)
    blocks = np.arange(schedule.num_batches, dtype=np.int32)
    layout, in_place_bytes = planning.lay_out(schedule.order, blocks, tight=False)
    if method == "aligned":
        if effort is None:
            effort = default_effort(graph.num_nodes)
        order, aligned, aligned_bytes = planning.align(effort)
        if aligned_bytes >= in_place_bytes:
            blocks = aligned
            layout, _ = planning.lay_out(order, blocks, tight=True)
    if reuse:
        layout = planning.reuse_rows(layout, blocks)
    check_rows(int(layout.arena_rows.max(initial=0)), "arena rows")
    return layout


class _Planning:
    """What the layouts of one schedule have in common."""

    def __init__(self, graph: DataflowGraph, schedule: Schedule, sizes: Sizes) -> None:
        self.graph = graph
        self.schedule = schedule
        self.chunk_start, self.chunk_size, self.chunk_width = _cut(
            schedule.batch_start, sizes.cut_table(), sizes.widths[-1]
        )
        self.batch_rows = _add_widths(
            schedule.batch_start, self.chunk_start, self.chunk_width
        )
        self.lane_kind, self.lane_leaf = lane_tables(graph.types)
        self.slot_bytes, self.slot_kind = slot_tables(graph.types)

    def lay_out(
        self, order: np.ndarray, blocks: np.ndarray, *, tight: bool
    ) -> tuple[Layout, int]:
        """Lays out nodes and blocks in a given order; also returns bytes in place."""
        graph, schedule = self.graph, self.schedule
        value_row, arena_rows = place_blocks(
            blocks, tight, order, schedule.batch_start, schedule.batch_type,
            self.batch_rows, graph.value_start, self.lane_kind, self.lane_leaf,
            len(graph.types.avals), graph.num_values,
        )  # fmt: skip
        return self._finish(order, value_row, arena_rows)

    def align(self, effort: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Finds orders of nodes and blocks, and how many bytes they put in place."""
        graph, schedule = self.graph, self.schedule
        return best_alignment(
            schedule.order, schedule.batch_start, schedule.batch_type,
            self.chunk_start, self.chunk_size, self.chunk_width, graph.node_type,
            graph.value_start, graph.operand_start, graph.operands,
            graph.structure.operand_node, self._value_lanes(), self.lane_kind,
            self.lane_leaf, self.slot_bytes, self.slot_kind, len(graph.types.avals),
            effort,
        )  # fmt: skip

    def reuse_rows(self, layout: Layout, blocks: np.ndarray) -> Layout:
        """Places the values of a layout again, without keeping those that are read."""
        graph = self.graph
        value_row, arena_rows = place_with_reuse(
            blocks, layout.order, layout.batch_start, layout.batch_type,
            self.batch_rows, layout.chunk_start, layout.chunk_size, layout.in_place,
            graph.value_start, graph.operand_start, graph.operands,
            graph.structure.operand_node, self._value_lanes(), self.lane_kind,
            self.lane_leaf, len(graph.types.avals), find_outputs(graph),
        )  # fmt: skip
        placed, _ = self._finish(layout.order, value_row, arena_rows)
        return replace(placed, reuse=True)

    def _value_lanes(self) -> np.ndarray:
        graph = self.graph
        return value_lanes(
            graph.node_type, graph.value_start, self.lane_leaf, graph.num_values
        )

    def _finish(
        self, order: np.ndarray, value_row: np.ndarray, arena_rows: np.ndarray
    ) -> tuple[Layout, int]:
        in_place, in_place_bytes = find_in_place(
            order, self.chunk_start, self.chunk_size, self.chunk_width,
            self.graph.node_type, self.graph.operand_start, self.graph.operands,
            value_row, self.slot_bytes, self.slot_kind, arena_rows,
        )  # fmt: skip
        layout = Layout(
            order,
            self.schedule.batch_start,
            self.schedule.batch_type,
            self.chunk_start,
            self.chunk_size,
            self.chunk_width,
            value_row,
            arena_rows,
            in_place,
        )
        return layout, in_place_bytes


@njit(cache=True, nogil=True)
def _cut(batch_start, table, widest):
    num_batches = len(batch_start) - 1
    num_chunks = 0
    for b in range(num_batches):
        rows = batch_start[b + 1] - batch_start[b]
        while rows > 0:
            rows -= table[rows] if rows < len(table) else widest
            num_chunks += 1
    start = np.empty(num_chunks, np.int32)
    size = np.empty(num_chunks, np.int32)
    width = np.empty(num_chunks, np.int32)
    c = 0
    for b in range(num_batches):
        place = batch_start[b]
        while place < batch_start[b + 1]:
            rows = batch_start[b + 1] - place
            width[c] = table[rows] if rows < len(table) else widest
            start[c] = place
            size[c] = min(rows, width[c])
            place += size[c]
            c += 1
    return start, size, width


@njit(cache=True, nogil=True)
def _add_widths(batch_start, chunk_start, chunk_width):
    """Adds up the widths of each batch's chunks."""
    rows = np.zeros(len(batch_start) - 1, np.int32)
    c = 0
    for b in range(len(rows)):
        while c < len(chunk_start) and chunk_start[c] < batch_start[b + 1]:
            rows[b] += chunk_width[c]
            c += 1
    return rows
