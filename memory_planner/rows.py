"""Rows of arenas: places the blocks of batches, and finds operands read in place.

The values that a batch writes as one output form a *block* of consecutive rows, in the
batch's own order. A type may have several outputs of one array kind. The first outputs
of all types form one *output column* of the kind, the second outputs the next. Blocks
have the same order in all columns. So if a read across the border of two blocks is one
slice for a cell's first output (h, say), it is one slice for the second (c), too.

A chunk writes as many rows as its width. Its padding rows may overlap the blocks behind
its own if these are written later; otherwise a gap is left.
"""

import numpy as np

from edbatch.kernel import kernel
from edbatch.memory_planner.problem import NO_COLUMN, LayoutProblem


@kernel
def place_blocks(
    problem: LayoutProblem, block_order: np.ndarray, order: np.ndarray, tight: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Assigns a row to each value.

    Args:
        problem: The `LayoutProblem`.
        block_order: Batches in the order of their blocks, ``[S]``.
        order: Nodes in the order in which they run, ``[N]``.
        tight: Whether padding rows may overlap other blocks.

    Returns:
        Row of each value, ``[V] int32``, and rows of each arena, ``[K] int64``.
    """
    batch_start, column_kind = problem.batch_start, problem.column_kind
    value_row = np.zeros(len(problem.value_column), np.int32)
    arena_rows = np.ones(problem.num_kinds, np.int64)  # row 0 stays zero
    # Blocks with padding behind them: where it ends, and the batch that writes it.
    end = np.empty(len(block_order), np.int64)
    written = np.empty(len(block_order), np.int32)
    for column in range(len(column_kind)):
        at = top = arena_rows[column_kind[column]]
        count = 0
        for b in block_order:
            leaf = problem.column_leaf[problem.batch_type[b], column]
            if leaf == NO_COLUMN:
                continue
            latest = -1
            kept = 0
            for k in range(count):
                if end[k] > at:
                    end[kept] = end[k]
                    written[kept] = written[k]
                    latest = max(latest, written[k])
                    kept += 1
            if not tight or latest > b:
                at = top
                kept = 0
            for place in range(batch_start[b], batch_start[b + 1]):
                row = at + place - batch_start[b]
                value_row[problem.value_start[order[place]] + leaf] = row
            end[kept] = at + problem.batch_rows[b]
            written[kept] = b
            count = kept + 1
            top = max(top, end[kept])
            at += batch_start[b + 1] - batch_start[b]
        arena_rows[column_kind[column]] = top
    return value_row, arena_rows


@kernel
def find_in_place(
    problem: LayoutProblem,
    order: np.ndarray,
    value_row: np.ndarray,
    arena_rows: np.ndarray,
) -> tuple[np.ndarray, int]:
    """Finds the operands that are read as slices.

    Args:
        problem: The `LayoutProblem`.
        order: Nodes in the order in which they run, ``[N]``.
        value_row: Row of each value.
        arena_rows: Rows of each arena; increased where a full-width slice needs more.

    Returns:
        Whether each chunk reads each slot in place, ``[C, most slots] bool``; and the
        bytes that all nodes together read in place.
    """
    chunk_start, slot_bytes = problem.chunk_start, problem.slot_bytes
    operand_start, operands = problem.operand_start, problem.operands
    in_place = np.zeros((len(chunk_start), slot_bytes.shape[1]), np.bool_)
    num_bytes = 0
    for c in range(len(chunk_start)):
        first = chunk_start[c]
        size = problem.chunk_size[c]
        node = order[first]
        t = problem.node_type[node]
        for slot in range(operand_start[node + 1] - operand_start[node]):
            if slot_bytes[t, slot] == 0:
                continue
            value = operands[operand_start[node] + slot]
            row = value_row[value] if value >= 0 else -1
            same = row >= 0
            member = 1
            while same and member < size:
                value = operands[operand_start[order[first + member]] + slot]
                same = value >= 0 and value_row[value] == row + member
                member += 1
            in_place[c, slot] = same
            if same:
                num_bytes += size * slot_bytes[t, slot]
                kind = problem.slot_kind[t, slot]
                arena_rows[kind] = max(arena_rows[kind], row + problem.chunk_width[c])
    return in_place, num_bytes
