"""Orders nodes and blocks so that most operands are read in place.

Batches are visited from the last to the first. When a batch is reached, the orders of
its readers are known, so each chunk of a reader requires one exact sequence of nodes.
Sequences are accepted in descending order of their bytes, as a whole or not at all
(`runs`); the remaining order is chosen for the batch's own operands (`run_sorting`).

A batch whose readers require no order can *wait*: it is ordered after all others, by
the rows of the operands of one of its reads. This is the read over the fewest chains of
blocks; ties go to the read with the most bytes. If that read takes whole blocks, it can
always be a slice.

Differs from the memory planning of ED-Batch (Chen et al., ICML 2023, section 4), which
collects the constraints of all batches in one PQ-tree and broadcasts them from operand
to operand: here the order of a reader is fixed before that of its operands, so nearly
all constraints are sequences, and PQ-trees are needed only for the rest.

Gain on 32 sampled instances (`experiments/alignment_parts.py`, docs/results-memory.md):
the share of bytes in place rises from 3% to 53% for tree-LSTMs, from 8% to 76% for word
lattices, from 46% to 86% for taggers. Waiting contributes 32 of these percentage points
for lattices, 4 for taggers and none for trees; for DAG-LSTMs it loses 18 points.

Time O(E + sorting) for E operands, if types have few slots.
"""

from typing import NamedTuple

import numpy as np

from edbatch.kernel import kernel
from edbatch.memory_planner.block_chains import count_producers
from edbatch.memory_planner.run_sorting import order_runs
from edbatch.memory_planner.runs import CHANGE_COLUMNS, cut_runs, link_sequence
from edbatch.memory_planner.tables import (
    BATCH,
    FIRST_CHUNK,
    FIRST_READ,
    NEXT,
    NONE,
    PRODUCERS,
    RANK,
    SLOT,
    START,
    Tables,
)
from edbatch.sorting import order_by_weight, stable_order

# Columns of an adjacency constraint: its chunk, its read, and the next constraint of a
# linked list.
_CHUNK, _READ, _NEXT = range(3)


class Constraints(NamedTuple):
    """Adjacency constraints: sequences of nodes that chunks require.

    Attributes:
        table: Chunk, read and next constraint of each.
        num_bytes: Bytes that are read in place if the constraint is accepted.
        first: First constraint in the list of each batch, or `NONE`. A constraint is in
            the list of the last batch that it takes nodes from.
    """

    table: np.ndarray  # [W, 3] int32
    num_bytes: np.ndarray  # [W] float64
    first: np.ndarray  # [S] int32


@kernel
def align(
    tables: Tables,
    weight: np.ndarray,
    reference: np.ndarray,
    may_wait: np.ndarray,
    use_tree: bool,
) -> tuple[np.ndarray, bool]:
    """Orders the nodes of all batches.

    Args:
        tables: The tables, with the neighbours of blocks as set by `chain_blocks`; runs
            and first and last nodes are updated.
        weight: Weight of one node for each read, ``[R] float64``.
        reference: Nodes, batch by batch, in the order that they keep where no read
            requires another, ``[N]``.
        may_wait: Whether each batch may be ordered last, ``[S] bool``.
        use_tree: Whether runs may be ordered by PQ-trees.

    Returns:
        The nodes in their order, ``[N] int32``; and whether the order of any batch is
        that of a PQ-tree.
    """
    batch = tables.batch
    num_batches = len(batch) - 1
    order = reference.copy()
    position = np.empty(len(order), np.int32)
    cut_runs(tables.node)
    constraints = _new_constraints(batch)
    num_constraints = np.int64(0)
    longest = 0
    for b in range(num_batches):
        longest = max(longest, batch[b + 1, START] - batch[b, START])
    change = np.empty((longest, CHANGE_COLUMNS), np.int32)
    count = np.zeros(num_batches, np.int32)
    followed = np.full(num_batches, NONE, np.int32)  # read that a waiting batch follows
    is_constrained = np.zeros(num_batches, np.bool_)
    is_by_tree = False
    for b in range(num_batches - 1, -1, -1):
        if constraints.first[b] != NONE:
            _accept(tables, constraints, b, order, change, is_constrained)
        first, last = batch[b, START], batch[b + 1, START]
        nodes = reference[first:last]
        if may_wait[b] and not is_constrained[b]:
            followed[b] = _read_to_follow(tables, b, nodes, weight, count)
            if followed[b] != NONE:
                continue
        has_reads = batch[b, FIRST_READ] < batch[b + 1, FIRST_READ]
        if is_constrained[b] or has_reads:
            found, by_tree = order_runs(tables, b, nodes, weight, count, use_tree)
            is_by_tree |= by_tree
            # A loop, because Numba takes two seconds to compile the error message of a
            # slice assignment.
            for k in range(last - first):
                order[first + k] = found[k]
        for place in range(first, last):
            position[order[place]] = place
        num_constraints = _add_constraints(
            tables, b, order, weight, constraints, num_constraints
        )
    for b in range(num_batches):
        if followed[b] != NONE:
            _follow(tables, b, tables.read[followed[b], SLOT], order, position)
    return order, is_by_tree


@kernel
def _new_constraints(batch):
    """Allocates a constraint for each chunk and read; each batch's list is empty."""
    most = 0
    for b in range(len(batch) - 1):
        chunks = batch[b + 1, FIRST_CHUNK] - batch[b, FIRST_CHUNK]
        most += chunks * (batch[b + 1, FIRST_READ] - batch[b, FIRST_READ])
    first = np.full(len(batch) - 1, NONE, np.int32)
    return Constraints(np.empty((most, 3), np.int32), np.empty(most), first)


@kernel
def _add_constraints(tables, b, order, weight, constraints, count):
    """Adds a constraint per chunk and read of a batch; returns the new count."""
    batch, read, chunk_start = tables.batch, tables.read, tables.chunk_start
    table, num_bytes, first = constraints
    for c in range(batch[b, FIRST_CHUNK], batch[b + 1, FIRST_CHUNK]):
        nodes = order[chunk_start[c] : chunk_start[c + 1]]
        for r in range(batch[b, FIRST_READ], batch[b + 1, FIRST_READ]):
            if weight[r] == 0:
                continue
            latest = _latest_producer(tables, nodes, read[r, SLOT])
            if latest != NONE and len(nodes) > 1:
                table[count, _CHUNK] = c
                table[count, _READ] = r
                table[count, _NEXT] = first[latest]
                num_bytes[count] = weight[r] * len(nodes)
                first[latest] = count
                count += 1
    return count


@kernel
def _latest_producer(tables, nodes, slot):
    """Finds the last batch that a slot reads; `NONE` if it cannot read a slice."""
    before = latest = NONE
    for v in nodes:
        u = tables.operand_node[tables.operand_start[v] + slot]
        if u < 0:
            return NONE
        a = tables.node[u, BATCH]
        if a != before and before != NONE and tables.batch[before, NEXT] != a:
            return NONE
        before = a
        latest = max(latest, a)
    return latest


@kernel
def _accept(tables, constraints, b, order, change, is_constrained):
    """Accepts or rejects the constraints of a batch, most bytes first."""
    sequence = np.empty(len(change), np.int32)
    for w in _sort_constraints(constraints, b):
        slot = tables.read[constraints.table[w, _READ], SLOT]
        c = constraints.table[w, _CHUNK]
        first, last = tables.chunk_start[c], tables.chunk_start[c + 1]
        wanted = sequence[: last - first]
        for k in range(len(wanted)):
            start = tables.operand_start[order[first + k]]
            wanted[k] = tables.operand_node[start + slot]
        if link_sequence(tables.batch, tables.node, wanted, change):
            for u in wanted:
                is_constrained[tables.node[u, BATCH]] = True


@kernel
def _sort_constraints(constraints, b):
    """Lists a batch's constraints, most bytes first; ties in order of creation."""
    table, num_bytes, first = constraints
    total = 0
    w = first[b]
    while w != NONE:
        total += 1
        w = table[w, _NEXT]
    found = np.empty(total, np.int32)
    w = first[b]
    for k in range(total - 1, -1, -1):
        found[k] = w
        w = table[w, _NEXT]
    if total == 1:
        return found
    own = np.empty(total)
    for k in range(total):
        own[k] = num_bytes[found[k]]
    return found[order_by_weight(own)]


@kernel
def _read_to_follow(tables, b, nodes, weight, count):
    """Chooses the read that a batch's order follows; `NONE` if it has no read.

    It is the read over the fewest chains of blocks; ties go to the one with the most
    bytes.
    """
    batch, read = tables.batch, tables.read
    best = NONE
    fewest = 0
    for r in range(batch[b, FIRST_READ], batch[b + 1, FIRST_READ]):
        producers = np.empty(read[r, PRODUCERS], np.int32)
        count_producers(tables, nodes, read[r, SLOT], count, producers)
        chains = 0
        for a in producers:
            if batch[a, NEXT] == NONE or count[batch[a, NEXT]] == 0:
                chains += 1
        for a in producers:
            count[a] = 0
        is_better = best == NONE or chains < fewest
        if not is_better and chains == fewest:
            is_better = weight[r] > weight[best]
        if is_better:
            best = np.int32(r)
            fewest = chains
    return best


@kernel
def _follow(tables, b, slot, order, position):
    """Orders the nodes of a batch by the rows of their operands in a slot."""
    batch = tables.batch
    first, last = batch[b, START], batch[b + 1, START]
    key = np.empty(last - first, np.int64)
    is_sorted = True
    for k in range(last - first):
        u = tables.operand_node[tables.operand_start[order[first + k]] + slot]
        key[k] = np.int64(len(batch)) << 32
        if u >= 0:
            key[k] = np.int64(batch[tables.node[u, BATCH], RANK]) << 32 | position[u]
        is_sorted &= k == 0 or key[k - 1] <= key[k]
    if not is_sorted:
        before = order[first:last].copy()
        by_key = stable_order(key)
        for k in range(last - first):
            order[first + k] = before[by_key[k]]
    for place in range(first, last):
        position[order[place]] = place
