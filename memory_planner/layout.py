"""Where every value lives: the layout in schedule order.

Values live in arenas, one per array kind (shape and dtype), a row each. This layout
gives the outputs of each batch consecutive rows, batch after batch, and keeps the
schedule's order of nodes, in which nodes follow the order of their last operand. It is
the cheapest layout, linear in values, and the one that a better planner falls back to.

Row 0 of every arena is zero and stands for operands that a padded list lacks. A batch
owns as many rows per output as its chunks are wide, so a chunk writes its padding into
rows that nobody reads.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.merge import check_rows
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
        arena_rows: Rows used in each kind's arena, the zero row included.
        in_place: Whether the operands in a slot of a batch are one contiguous slice of
            an arena, in the batch's own order. Slots that a type does not have are
            False.
    """

    order: np.ndarray  # [N] int32
    batch_start: np.ndarray  # [S + 1] int32
    batch_type: np.ndarray  # [S] int32
    chunk_start: np.ndarray  # [C] int32
    chunk_size: np.ndarray  # [C] int32
    chunk_width: np.ndarray  # [C] int32
    value_row: np.ndarray  # [V] int32
    arena_rows: np.ndarray  # [K] int64
    in_place: np.ndarray  # [S, most slots] bool


def plan_layout(graph: DataflowGraph, schedule: Schedule, sizes: Sizes) -> Layout:
    """Lays out a scheduled graph in schedule order.

    Args:
        graph: The graph.
        schedule: Its schedule.
        sizes: Widths of chunks.

    Returns:
        The layout. Time O(V + E).

    Raises:
        PlanError: An arena would have more rows than int32 can count.
    """
    types = graph.types
    most_slots = max((len(each.operand_kinds) for each in types.types), default=0)
    chunk_start, chunk_size, chunk_width = _cut(
        schedule.batch_start, sizes.cut_table(), sizes.widths[-1]
    )
    value_row, arena_rows = _assign_rows(
        schedule.order,
        schedule.batch_start,
        schedule.batch_type,
        chunk_start,
        chunk_width,
        graph.value_start,
        output_kind_table(graph),
        len(types.avals),
        graph.num_values,
    )
    check_rows(int(arena_rows.max(initial=0)), "arena rows")
    in_place = _find_in_place(
        schedule.order,
        schedule.batch_start,
        graph.operand_start,
        graph.operands,
        value_row,
        most_slots,
    )
    return Layout(
        order=schedule.order,
        batch_start=schedule.batch_start,
        batch_type=schedule.batch_type,
        chunk_start=chunk_start,
        chunk_size=chunk_size,
        chunk_width=chunk_width,
        value_row=value_row,
        arena_rows=arena_rows,
        in_place=in_place,
    )


def output_kind_table(graph: DataflowGraph) -> np.ndarray:
    """Returns the array kind of each type's outputs; ``[T, most outputs] int32``."""
    kinds = [each.output_kinds for each in graph.types.types]
    table = np.zeros((len(kinds), max(map(len, kinds), default=0)), np.int32)
    for row, each in zip(table, kinds, strict=True):
        row[: len(each)] = each
    return table


def check_layout(layout: Layout, graph: DataflowGraph) -> None:
    """Checks that no value is overwritten and that chunks cover all nodes once.

    Args:
        layout: The layout.
        graph: The graph that it was made for.

    Raises:
        AssertionError: Two chunks write one row, or a chunk writes the zero row or
            outside its arena, or ``in_place`` is wrong.
    """
    assert sorted(layout.order) == list(range(graph.num_nodes)), "each node runs once"
    covered = [
        np.arange(start, start + size)
        for start, size in zip(layout.chunk_start, layout.chunk_size, strict=True)
    ]
    positions = np.concatenate([*covered, np.zeros(0, int)])
    assert (positions == np.arange(graph.num_nodes)).all(), "chunks cover the order"
    assert (layout.chunk_size <= layout.chunk_width).all(), "a chunk holds its nodes"
    owner = [np.zeros(rows, bool) for rows in layout.arena_rows]
    types = graph.types.types
    for start, size, width in zip(
        layout.chunk_start, layout.chunk_size, layout.chunk_width, strict=True
    ):
        nodes = layout.order[start : start + size]
        kinds = types[graph.node_type[nodes[0]]].output_kinds
        for leaf, kind in enumerate(kinds):
            rows = layout.value_row[graph.value_start[nodes] + leaf]
            assert (np.diff(rows) == 1).all(), "a chunk's outputs are consecutive"
            first = int(rows[0])
            assert first > ZERO_ROW, "the zero row is never written"
            assert first + width <= layout.arena_rows[kind], "rows stay in the arena"
            assert not owner[kind][first : first + width].any(), "rows are written once"
            owner[kind][first : first + width] = True
    _check_in_place(layout, graph)


def _check_in_place(layout: Layout, graph: DataflowGraph) -> None:
    for b, (first, last) in enumerate(
        zip(layout.batch_start[:-1], layout.batch_start[1:], strict=True)
    ):
        nodes = layout.order[first:last]
        slots = len(graph.types.types[layout.batch_type[b]].operand_kinds)
        for slot in range(layout.in_place.shape[1]):
            expected = False
            if slot < slots:
                values = graph.operands[graph.operand_start[nodes] + slot]
                rows = layout.value_row[values]
                expected = bool((values >= 0).all() and (np.diff(rows) == 1).all())
            assert layout.in_place[b, slot] == expected, "in_place tells the truth"


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
def _assign_rows(
    order, batch_start, batch_type, chunk_start, chunk_width,
    value_start, output_kinds, num_kinds, num_values,
):  # fmt: skip
    value_row = np.zeros(num_values, np.int32)
    next_row = np.ones(num_kinds, np.int64)  # row 0 stays zero
    c = 0
    for b in range(len(batch_type)):
        owned = 0
        while c < len(chunk_start) and chunk_start[c] < batch_start[b + 1]:
            owned += chunk_width[c]
            c += 1
        first_node = order[batch_start[b]]
        outputs = value_start[first_node + 1] - value_start[first_node]
        for leaf in range(outputs):
            kind = output_kinds[batch_type[b], leaf]
            for place in range(batch_start[b], batch_start[b + 1]):
                row = next_row[kind] + place - batch_start[b]
                value_row[value_start[order[place]] + leaf] = row
            next_row[kind] += owned
    return value_row, next_row


@njit(cache=True, nogil=True)
def _find_in_place(
    order, batch_start, operand_start, operands, value_row, most_slots
):  # fmt: skip
    num_batches = len(batch_start) - 1
    in_place = np.zeros((num_batches, most_slots), np.bool_)
    for b in range(num_batches):
        first = order[batch_start[b]]
        slots = operand_start[first + 1] - operand_start[first]
        for slot in range(slots):
            value = operands[operand_start[first] + slot]
            row = value_row[value] if value >= 0 else -1
            same = row >= 0
            place = batch_start[b] + 1
            while same and place < batch_start[b + 1]:
                value = operands[operand_start[order[place]] + slot]
                row += 1
                same = value >= 0 and value_row[value] == row
                place += 1
            in_place[b, slot] = same
    return in_place
