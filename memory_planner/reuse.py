"""Reuse of rows: each value keeps its row only until its last read.

A value lives from the batch that writes it to the last batch that reads it; outputs of
the model live to the end. Blocks that some chunk reads as one slice stay neighbours;
they form a *unit*, mostly of a single block. Units are placed in the order in which
their first blocks are written, each into the smallest gap that holds it (best fit). A
batch of several chunks still reads after it has begun to write, so the rows of its
operands become gaps only for the next batch.

Gain (docs/results-memory.md): with aligned layouts of 32 instances, arenas take 34%
less memory for tree-LSTMs, 48% for word lattices and 61% for taggers. Gradients are
impossible then.

This is dynamic storage allocation with known lifetimes. Time O(V + E + R G) for R
ranges of rows that are freed together, of which aligned layouts have few, and G gaps.
"""

import numpy as np

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.kernel import kernel
from edbatch.memory_planner.gaps import give_rows_back, take_rows
from edbatch.memory_planner.problem import NO_COLUMN, LayoutProblem

_NONE = -1

# Columns of a block: its batch, its column, the index of the output in that column,
# whether it must directly follow the previous block, its offset within its unit, and
# its row.
_BATCH, _COLUMN, _LEAF, _TIED, _OFFSET, _ROW = range(6)


def find_outputs(graph: DataflowGraph) -> np.ndarray:
    """Finds the values that the model returns; ``[V] bool``."""
    is_output = np.zeros(graph.num_values, np.bool_)
    for _, values in graph.outputs.values():
        is_output[values] = True
    return is_output


@kernel
def place_with_reuse(
    problem: LayoutProblem,
    blocks: np.ndarray,
    order: np.ndarray,
    in_place: np.ndarray,
    is_output: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Assigns a row to each value, and reuses rows after the last read of their value.

    Args:
        problem: The `LayoutProblem`.
        blocks: Batches in the order of their blocks without reuse, ``[S]``.
        order: Nodes in the order in which they run, ``[N]``.
        in_place: Whether each chunk reads each slot in place without reuse; these slots
            stay in place. ``[C, slots] bool``.
        is_output: Whether the model returns each value, ``[V] bool``.

    Returns:
        Row of each value, ``[V] int32``, and rows of each arena, ``[K] int64``.
    """
    batch_start, value_start = problem.batch_start, problem.value_start
    batch_of = np.empty(len(order), np.int32)
    for b in range(len(problem.batch_type)):
        for place in range(batch_start[b], batch_start[b + 1]):
            batch_of[order[place]] = b
    block, block_of = _list_blocks(blocks, problem.batch_type, problem.column_leaf)
    last_read = _find_last_reads(problem, order, is_output)
    _tie(problem, block, block_of, order, in_place, batch_of)
    arena_rows = np.ones(problem.num_kinds, np.int64)
    for kind in range(problem.num_kinds):
        arena_rows[kind] = _place_units(problem, block, kind, order, last_read)
    value_row = np.zeros(len(problem.value_column), np.int32)
    for k in range(len(block)):
        b = block[k, _BATCH]
        for place in range(batch_start[b], batch_start[b + 1]):
            value = value_start[order[place]] + block[k, _LEAF]
            value_row[value] = block[k, _ROW] + place - batch_start[b]
    return value_row, arena_rows


@kernel
def _list_blocks(blocks, batch_type, column_leaf):
    """Lists the blocks of all columns; also returns their index by batch and column."""
    block_of = np.full((len(blocks), column_leaf.shape[1]), NO_COLUMN, np.int32)
    block = np.zeros((block_of.size, 6), np.int32)
    count = 0
    for column in range(column_leaf.shape[1]):
        for b in blocks:
            leaf = column_leaf[batch_type[b], column]
            if leaf != NO_COLUMN:
                block[count, _BATCH] = b
                block[count, _COLUMN] = column
                block[count, _LEAF] = leaf
                block_of[b, column] = count
                count += 1
    return block[:count], block_of


@kernel
def _find_last_reads(problem, order, is_output):
    """Finds the last batch that reads or writes each value; S for outputs."""
    batch_start, value_start = problem.batch_start, problem.value_start
    operand_start, operands = problem.operand_start, problem.operands
    num_batches = len(batch_start) - 1
    last_read = np.empty(len(is_output), np.int32)
    for b in range(num_batches):
        for place in range(batch_start[b], batch_start[b + 1]):
            v = order[place]
            for e in range(operand_start[v], operand_start[v + 1]):
                if operands[e] >= 0 and not is_output[operands[e]]:
                    last_read[operands[e]] = b
            for value in range(value_start[v], value_start[v + 1]):
                last_read[value] = num_batches if is_output[value] else b
    return last_read


@kernel
def _tie(problem, block, block_of, order, in_place, batch_of):
    """Marks blocks that some slice reads together with the previous block."""
    chunk_start, chunk_size = problem.chunk_start, problem.chunk_size
    for c in range(len(chunk_start)):
        for slot in range(in_place.shape[1]):
            if not in_place[c, slot]:
                continue
            before = -1
            for place in range(chunk_start[c], chunk_start[c] + chunk_size[c]):
                e = problem.operand_start[order[place]] + slot
                column = problem.value_column[problem.operands[e]]
                k = block_of[batch_of[problem.operand_node[e]], column]
                if before >= 0 and k != before:
                    block[k, _TIED] = 1
                before = k


@kernel
def _place_units(problem, block, kind, order, last_read):
    """Places the units of one arena; returns its rows."""
    batch_start, value_start = problem.batch_start, problem.value_start
    batch_rows = problem.batch_rows
    num_batches = len(batch_rows)
    size = batch_start[1:] - batch_start[:-1]
    unit_start, unit_rows, born = _find_units(
        block, problem.column_kind, kind, size, batch_rows
    )
    first_unit, next_unit = _list_by_birth(born, num_batches)
    # Rows to free, in a linked list for each batch after which they are freed: first
    # row, number of rows, and next entry.
    freed = np.empty((unit_rows.sum() + len(born), 3), np.int64)
    freed_after = np.full(num_batches + 1, _NONE, np.int32)
    count = 0
    gap = np.empty((len(freed) + 1, 2), np.int64)
    gaps = 0
    top = 1  # row 0 stays zero
    for b in range(num_batches):
        f = freed_after[b - 1] if b > 0 else _NONE
        while f != _NONE:
            gaps = give_rows_back(gap, gaps, freed[f, 0], freed[f, 1])
            f = freed[f, 2]
        u = first_unit[b]
        while u != _NONE:
            row, gaps, top = take_rows(gap, gaps, top, unit_rows[u])
            written = end = 0
            for k in range(unit_start[u], unit_start[u + 1]):
                own = block[k, _BATCH]
                block[k, _ROW] = row + block[k, _OFFSET]
                written = max(written, own)
                end = block[k, _OFFSET] + size[own]
                values = value_start[order[batch_start[own] : batch_start[own + 1]]]
                count = _free_after_reads(
                    last_read[values + block[k, _LEAF]], block[k, _ROW], freed,
                    freed_after, count,
                )  # fmt: skip
            # Rows of padding only: needed until the last block is written.
            count = _free_after(
                written, row + end, unit_rows[u] - end, freed, freed_after, count
            )
            u = next_unit[u]
    return top


@kernel
def _free_after_reads(last_read, row, freed, freed_after, count):
    """Notes when the rows of one block are freed, by ranges that are freed together."""
    first = 0
    for k in range(1, len(last_read) + 1):
        if k == len(last_read) or last_read[k] != last_read[first]:
            count = _free_after(
                last_read[first], row + first, k - first, freed, freed_after, count
            )
            first = k
    return count


@kernel
def _free_after(b, row, rows, freed, freed_after, count):
    """Notes rows to free after a batch; returns the new number of entries."""
    freed[count, 0] = row
    freed[count, 1] = rows
    freed[count, 2] = freed_after[b]
    freed_after[b] = count
    return count + 1


@kernel
def _find_units(block, column_kind, kind, size, batch_rows):
    """Finds the units of one arena, and places blocks within them.

    Returns:
        First block of each unit, and the end; the rows that each unit needs while it is
        written; and the first batch that writes it.
    """
    unit_start = np.empty(len(block) + 1, np.int32)
    unit_rows = np.zeros(len(block), np.int64)
    born = np.empty(len(block), np.int32)
    count = 0
    end = 0
    for k in range(len(block)):
        if column_kind[block[k, _COLUMN]] != kind:
            continue
        b = block[k, _BATCH]
        if block[k, _TIED] == 0:
            unit_start[count] = k
            born[count] = b
            count += 1
            block[k, _OFFSET] = 0
        else:
            block[k, _OFFSET] = block[k - 1, _OFFSET] + size[block[k - 1, _BATCH]]
        u = count - 1
        born[u] = min(born[u], b)
        unit_rows[u] = max(unit_rows[u], block[k, _OFFSET] + batch_rows[b])
        end = k + 1
    unit_start[count] = end
    return unit_start[: count + 1], unit_rows[:count], born[:count]


@kernel
def _list_by_birth(born, num_batches):
    """Lists units by the first batch that writes them: head of each list, next unit."""
    first = np.full(num_batches, _NONE, np.int32)
    after = np.full(len(born), _NONE, np.int32)
    for u in range(len(born) - 1, -1, -1):
        after[u] = first[born[u]]
        first[born[u]] = u
    return first, after
