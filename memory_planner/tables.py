"""Tables for planning an aligned layout: batches, nodes, and the reads of batches.

Compiled code pays for every array that it passes on, so all integers about a batch are
one row of a table, and those about a node one row of another.

Slots that name the same nodes throughout a batch (the h and the c of a left child, say)
require the same order, so together they are one *read*, which counts the bytes of all
of them. A slot belongs to no read if it cannot be a slice: it is one of a padded list,
its operands lie in several output columns, or, in a batch of one chunk, an operand is
missing or occurs twice.
"""

from typing import NamedTuple

import numpy as np

from edbatch.kernel import kernel
from edbatch.memory_planner.problem import LayoutProblem

NONE = np.int32(-1)

# Columns of a batch: first position in the schedule, rows that its chunks write, first
# chunk and first read; a last row holds the ends. IS_READ says whether some read takes
# any of its nodes. The other columns describe its block: the neighbours, its place
# among all blocks, and the nodes that must come first and last.
START, ROWS, FIRST_CHUNK, FIRST_READ, IS_READ = range(5)
NEXT, PREVIOUS, RANK, FIRST_NODE, LAST_NODE = range(5, 10)
BATCH_COLUMNS = 10

# Columns of a node: its batch, its position in the schedule, and its run (see `runs`).
BATCH, PLACE, AFTER, BEFORE, END, LENGTH = range(6)
NODE_COLUMNS = 6

# Columns of a read: one of its slots, and the number of batches its nodes come from.
SLOT, PRODUCERS = range(2)
READ_COLUMNS = 2


class Tables(NamedTuple):
    """``N`` nodes in ``S`` batches and ``C`` chunks, with ``R`` reads.

    Attributes:
        batch: Columns `START` to `LAST_NODE` of each batch; a last row holds the ends.
        node: Columns `BATCH` to `LENGTH` of each node.
        read: Columns `SLOT` and `PRODUCERS` of each read.
        chunk_start: First position of each chunk in the schedule, and the end.
        operand_start: First operand of each node, and the end.
        operand_node: Node of each operand; negative where it is missing.
    """

    batch: np.ndarray  # [S + 1, BATCH_COLUMNS] int32
    node: np.ndarray  # [N, NODE_COLUMNS] int32
    read: np.ndarray  # [R, READ_COLUMNS] int32
    chunk_start: np.ndarray  # [C + 1] int32
    operand_start: np.ndarray  # [N + 1] int32
    operand_node: np.ndarray  # [E] int32


@kernel
def make_tables(problem: LayoutProblem) -> tuple[Tables, np.ndarray]:
    """Makes the tables, and counts the bytes of each read per node.

    Args:
        problem: The `LayoutProblem`.

    Returns:
        The tables, in which the neighbours of blocks and the runs are not set yet; and
        the bytes that one node reads in each read, ``[R] float64``.
    """
    batch, node = _tabulate(problem)
    read, read_bytes = _find_reads(problem, batch, node)
    chunks = len(problem.chunk_start)
    chunk_start = np.empty(chunks + 1, np.int32)
    for c in range(chunks):
        chunk_start[c] = problem.chunk_start[c]
    chunk_start[chunks] = len(problem.order)
    tables = Tables(
        batch,
        node,
        read,
        chunk_start,
        problem.operand_start,
        problem.operand_node,
    )
    return tables, read_bytes


@kernel
def _tabulate(problem):
    """Makes the tables of batches and nodes, as far as the schedule decides them."""
    order, batch_start = problem.order, problem.batch_start
    chunk_start = problem.chunk_start
    num_batches = len(batch_start) - 1
    batch = np.full((num_batches + 1, BATCH_COLUMNS), NONE, np.int32)
    node = np.empty((len(order), NODE_COLUMNS), np.int32)
    c = 0
    for b in range(num_batches):
        batch[b, START] = batch_start[b]
        batch[b, FIRST_CHUNK] = c
        batch[b, ROWS] = problem.batch_rows[b]
        while c < len(chunk_start) and chunk_start[c] < batch_start[b + 1]:
            c += 1
        for place in range(batch_start[b], batch_start[b + 1]):
            node[order[place], BATCH] = b
            node[order[place], PLACE] = place
    batch[num_batches, START] = batch_start[num_batches]
    batch[num_batches, FIRST_CHUNK] = c
    return batch, node


@kernel
def _find_reads(problem, batch, node):
    """Finds the reads of all batches and their bytes; O(E) if types have few slots."""
    order, batch_type = problem.order, problem.batch_type
    operand_node, slot_bytes = problem.operand_node, problem.slot_bytes
    num_batches = len(batch_type)
    read = np.empty((num_batches * slot_bytes.shape[1], READ_COLUMNS), np.int32)
    read_bytes = np.empty(len(read))
    met = _Met(
        np.full(len(order), NONE, np.int32), np.full(num_batches, NONE, np.int32)
    )
    turn = 0
    count = 0
    batch[:, IS_READ] = 0
    for b in range(num_batches):
        batch[b, FIRST_READ] = count
        own = problem.operand_start[order[batch[b, START] : batch[b + 1, START]]]
        is_one = batch[b + 1, FIRST_CHUNK] - batch[b, FIRST_CHUNK] == 1
        for slot in range(slot_bytes.shape[1]):
            more = slot_bytes[batch_type[b], slot]
            if more == 0 or not _in_one_column(
                own, slot, is_one, problem.operands, problem.value_column
            ):
                continue
            same = batch[b, FIRST_READ]
            while same < count and not _are_same(
                own, slot, read[same, SLOT], operand_node
            ):
                same += 1
            if same < count:
                read_bytes[same] += more
                continue
            turn += 1
            operand = operand_node[own + slot]
            found = _count_producers(operand, turn, is_one, node, batch, met)
            if found > 0:
                read[count, SLOT] = slot
                read[count, PRODUCERS] = found
                read_bytes[count] = more
                count += 1
    batch[num_batches, FIRST_READ] = count
    return read[:count], read_bytes[:count]


@kernel
def _in_one_column(own, slot, is_one, operands, value_column):
    """Whether a slot's operands lie in one column; with ``is_one``, none is missing."""
    column = NONE
    for e in own:
        value = operands[e + slot]
        if value < 0:
            if is_one:
                return False
        elif column == NONE:
            column = value_column[value]
        elif value_column[value] != column:
            return False
    return column != NONE


@kernel
def _are_same(own, slot, other, operand_node):
    k = 0
    while k < len(own) and operand_node[own[k] + slot] == operand_node[own[k] + other]:
        k += 1
    return k == len(own)


class _Met(NamedTuple):
    """The turn in which each node and each batch was last seen, or NONE."""

    node: np.ndarray  # [N] int32
    batch: np.ndarray  # [S] int32


@kernel
def _count_producers(operand, turn, is_one, node, batch, met):
    """Counts the batches that a slot reads; 0 if a single chunk reads a node twice."""
    found = 0
    for u in operand:
        if u < 0:
            continue
        if met.node[u] == turn and is_one:
            return 0
        met.node[u] = turn
        a = node[u, BATCH]
        if met.batch[a] != turn:
            met.batch[a] = turn
            found += 1
    for u in operand:
        if u >= 0:
            batch[node[u, BATCH], IS_READ] = 1
    return found
