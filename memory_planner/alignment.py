"""The orders of nodes and of blocks in which most operands are read in place.

Batches are visited from the last to the first. When a batch is reached, the orders of
its readers are known, so what a chunk of a reader wants is one exact sequence of nodes.
Sequences are taken in the order of their bytes, as a whole or not at all (`runs`); what
order is left open is chosen for the batch's own operands (`run_order`).

A batch whose readers ask for nothing can wait: if the read of most bytes takes whole
blocks, it comes last, follows their order, and has its slice for nothing.

Differs from the memory planning of ED-Batch (Chen et al., ICML 2023, section 4), which
collects the constraints of all batches in one PQ-tree and broadcasts them from operand
to operand: here a reader's order is fixed before it asks, so that nearly all
constraints are sequences, and PQ-trees are needed for what is left only.

Time O(E + sorting) for E operands, if types have few slots.
"""

import numpy as np
from numba import njit

from edbatch.memory_planner.block_order import count_producers
from edbatch.memory_planner.run_order import order_runs
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
)

# Columns of an adjacency constraint: the chunk that has it, the read, and the next one
# of a list.
_CHUNK, _READ, _NEXT = range(3)


@njit(cache=True, nogil=True)
def align(
    batch: np.ndarray,
    node: np.ndarray,
    chunk_start: np.ndarray,
    operand_start: np.ndarray,
    operand_node: np.ndarray,
    read: np.ndarray,
    weight: np.ndarray,
    reference: np.ndarray,
    may_wait: np.ndarray,
    use_tree: bool,
) -> tuple[np.ndarray, bool]:
    """Orders the nodes of all batches.

    Args:
        batch: Batches with their neighbours, as from `chain_blocks`; first and last
            nodes are set.
        node: Nodes; runs are set.
        chunk_start: First position of each chunk, and the end.
        operand_start: First operand of each node, and the end.
        operand_node: Node of each operand.
        read: Reads.
        weight: What one node counts for each read, ``[R] float64``.
        reference: Nodes, batch by batch, in the order that they keep unless something
            speaks for another, ``[N]``.
        may_wait: Whether each batch may come last, ``[S] bool``.
        use_tree: Whether runs may be ordered by PQ-trees.

    Returns:
        The nodes in their order, ``[N] int32``; and whether a tree made any of it.
    """
    num_batches = len(batch) - 1
    order = reference.copy()
    position = np.empty(len(order), np.int32)
    cut_runs(node)
    constraints, constraint_bytes = _new_constraints(batch)
    constraints_of = np.full(num_batches, NONE, np.int32)  # the first one, by batch
    num_constraints = 0
    longest = (batch[1:, START] - batch[:-1, START]).max() if num_batches else 0
    sequence = np.empty(longest, np.int32)
    change = np.empty((longest, CHANGE_COLUMNS), np.int32)
    count = np.zeros(num_batches, np.int32)
    followed = np.full(num_batches, NONE, np.int32)  # the read, of batches that wait
    is_asked = np.zeros(num_batches, np.bool_)
    is_by_tree = False
    for b in range(num_batches - 1, -1, -1):
        if constraints_of[b] != NONE:
            _accept(
                batch, node, chunk_start, operand_start, operand_node, read, order,
                constraints, constraint_bytes, constraints_of[b], sequence, change,
                is_asked,
            )  # fmt: skip
        first, last = batch[b, START], batch[b + 1, START]
        nodes = reference[first:last]
        if may_wait[b] and not is_asked[b]:
            followed[b] = _read_to_follow(
                batch, node, b, nodes, operand_start, operand_node, read, weight, count
            )
            if followed[b] != NONE:
                continue
        found, by_tree = order_runs(
            batch, node, chunk_start, b, nodes, operand_start, operand_node, read,
            weight, count, use_tree,
        )  # fmt: skip
        order[first:last] = found
        is_by_tree |= by_tree
        for place in range(first, last):
            position[order[place]] = place
        num_constraints = _add_constraints(
            batch, node, chunk_start, b, operand_start, operand_node, read, order,
            weight, constraints, constraint_bytes, num_constraints, constraints_of,
        )  # fmt: skip
    for b in range(num_batches):
        if followed[b] != NONE:
            _follow(
                batch, node, b, read[followed[b], SLOT], operand_start, operand_node,
                order, position,
            )  # fmt: skip
    return order, is_by_tree


@njit(cache=True, nogil=True)
def _new_constraints(batch):
    """Allocates a constraint for each chunk and read."""
    most = 0
    for b in range(len(batch) - 1):
        chunks = batch[b + 1, FIRST_CHUNK] - batch[b, FIRST_CHUNK]
        most += chunks * (batch[b + 1, FIRST_READ] - batch[b, FIRST_READ])
    return np.empty((most, 3), np.int32), np.empty(most)


@njit(cache=True, nogil=True)
def _add_constraints(
    batch, node, chunk_start, b, operand_start, operand_node, read, order, weight,
    constraints, constraint_bytes, num_constraints, constraints_of,
):  # fmt: skip
    """Adds what a batch's chunks ask for to the latest batch that they read."""
    for c in range(batch[b, FIRST_CHUNK], batch[b + 1, FIRST_CHUNK]):
        nodes = order[chunk_start[c] : chunk_start[c + 1]]
        for r in range(batch[b, FIRST_READ], batch[b + 1, FIRST_READ]):
            if weight[r] == 0:
                continue
            latest = _latest_producer(
                batch, node, nodes, read[r, SLOT], operand_start, operand_node
            )
            if latest != NONE and len(nodes) > 1:
                constraints[num_constraints, _CHUNK] = c
                constraints[num_constraints, _READ] = r
                constraints[num_constraints, _NEXT] = constraints_of[latest]
                constraint_bytes[num_constraints] = weight[r] * len(nodes)
                constraints_of[latest] = num_constraints
                num_constraints += 1
    return num_constraints


@njit(cache=True, nogil=True)
def _latest_producer(batch, node, nodes, slot, operand_start, operand_node):
    """Finds the last batch that nodes read; `NONE` if they can read no slice."""
    before = latest = NONE
    for v in nodes:
        u = operand_node[operand_start[v] + slot]
        if u < 0:
            return NONE
        a = node[u, BATCH]
        if a != before and before != NONE and batch[before, NEXT] != a:
            return NONE
        before = a
        latest = max(latest, a)
    return latest


@njit(cache=True, nogil=True)
def _accept(
    batch, node, chunk_start, operand_start, operand_node, read, order, constraints,
    constraint_bytes, first_constraint, sequence, change, is_asked,
):  # fmt: skip
    """Accepts or rejects the constraints of a list, those of most bytes first."""
    for w in _sort_constraints(constraints, constraint_bytes, first_constraint):
        slot = read[constraints[w, _READ], SLOT]
        first = chunk_start[constraints[w, _CHUNK]]
        wanted = sequence[: chunk_start[constraints[w, _CHUNK] + 1] - first]
        for k in range(len(wanted)):
            wanted[k] = operand_node[operand_start[order[first + k]] + slot]
        if link_sequence(batch, node, wanted, change):
            for u in wanted:
                is_asked[node[u, BATCH]] = True


@njit(cache=True, nogil=True)
def _sort_constraints(constraints, constraint_bytes, first_constraint):
    """Lists constraints by their bytes; of equal ones those that were made first."""
    total = 0
    w = first_constraint
    while w != NONE:
        total += 1
        w = constraints[w, _NEXT]
    found = np.empty(total, np.int32)
    w = first_constraint
    for k in range(total - 1, -1, -1):
        found[k] = w
        w = constraints[w, _NEXT]
    if total == 1:
        return found
    return found[np.argsort(-constraint_bytes[found], kind="mergesort")]


@njit(cache=True, nogil=True)
def _read_to_follow(
    batch, node, b, nodes, operand_start, operand_node, read, weight, count
):  # fmt: skip
    """Chooses the read that a batch's order follows; `NONE` if it has no read.

    It is that of the fewest chains of blocks; of these, that of most bytes.
    """
    best = NONE
    fewest = 0
    for r in range(batch[b, FIRST_READ], batch[b + 1, FIRST_READ]):
        producers = np.empty(read[r, PRODUCERS], np.int32)
        count_producers(
            nodes, read[r, SLOT], node, operand_start, operand_node, count, producers
        )
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


@njit(cache=True, nogil=True)
def _follow(batch, node, b, slot, operand_start, operand_node, order, position):
    """Orders the nodes of a batch as the rows of what they read in a slot."""
    first, last = batch[b, START], batch[b + 1, START]
    key = np.empty(last - first, np.int64)
    is_sorted = True
    for k in range(last - first):
        u = operand_node[operand_start[order[first + k]] + slot]
        key[k] = np.int64(len(batch)) << 32
        if u >= 0:
            key[k] = np.int64(batch[node[u, BATCH], RANK]) << 32 | position[u]
        is_sorted &= k == 0 or key[k - 1] <= key[k]
    if not is_sorted:
        order[first:last] = order[first:last][np.argsort(key, kind="mergesort")]
    for place in range(first, last):
        position[order[place]] = place
