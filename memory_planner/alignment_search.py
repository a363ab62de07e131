"""Searches for better orders by repeating the alignment with changed constraints.

The first try weighs reads by their bytes. For small graphs there is time for more tries
with other weights of reads and of pairs of blocks, other orders of nodes where no read
requires one, and other batches that wait, each a few changes away from the best so far.
On small minibatches this finds everything that an exhaustive search finds (the tests
compare the two); the first try alone misses something in one minibatch of twenty.

Gain (`experiments/alignment_parts.py`): 3 percentage points of the share of bytes in
place on two sampled trees, 9 on two DAGs, none on 32 instances, whose graphs are too
large to be searched.
"""

from typing import NamedTuple

import numpy as np

from edbatch.kernel import kernel
from edbatch.memory_planner.alignment import align
from edbatch.memory_planner.block_chains import chain_blocks, find_pairs
from edbatch.memory_planner.problem import LayoutProblem
from edbatch.memory_planner.rows import find_in_place, place_blocks
from edbatch.memory_planner.tables import IS_READ, make_tables

_MOST_CHANGES = np.int64(3)  # from one try to the next
_KINDS = np.int64(4)  # of changes
_FACTORS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)  # of weights; 0 leaves a read or pair out
_PATIENCE = 50  # tries without gain, after which the search starts over


class Alignment(NamedTuple):
    """The best orders found so far, and the rows that follow from them.

    Attributes:
        order: Nodes in their order.
        blocks: Batches in the order of their blocks.
        value_row: Row of each value.
        arena_rows: Rows of each arena.
        num_bytes: Bytes that are read in place.
    """

    order: np.ndarray  # [N] int32
    blocks: np.ndarray  # [S] int32
    value_row: np.ndarray  # [V] int32
    arena_rows: np.ndarray  # [K] int64
    num_bytes: int


@kernel
def best_alignment(problem: LayoutProblem, effort: int) -> Alignment:
    """Finds orders of nodes and of blocks that put many bytes in place.

    Args:
        problem: The `LayoutProblem`.
        effort: Maximum number of operands and nodes that all tries after the first may
            examine. A first try that used a PQ-tree is repeated without one regardless.

    Returns:
        The alignment.
    """
    order, batch_start = problem.order, problem.batch_start
    tables, read_bytes = make_tables(problem)
    pairs, pair_bytes, possible = find_pairs(tables, order, read_bytes)
    may_wait = np.empty(len(tables.batch) - 1, np.bool_)
    for b in range(len(may_wait)):
        may_wait[b] = tables.batch[b, IS_READ] == 0
    start = (pair_bytes, read_bytes, order, may_wait)
    state = start
    state_bytes = -1
    patience = _PATIENCE
    best_bytes = -1
    tries = 1 + effort // (len(problem.operands) + len(order) + 1)
    # Not literals: Numba would compile the callees a second time for them.
    use_tree = tight = tries > 0
    random = np.empty(1, np.uint64)
    random[0] = np.uint64(0x9E3779B97F4A7C15)
    k = 0
    while k < tries and best_bytes < possible:
        now = state
        if k > 0 and use_tree:
            now = _change(random, state, pair_bytes, read_bytes, batch_start)
        pair_weight, read_weight, reference, may_wait = now
        blocks = chain_blocks(tables.batch, pairs, pair_weight)
        found, by_tree = align(tables, read_weight, reference, may_wait, use_tree)
        value_row, arena_rows = place_blocks(problem, blocks, found, tight)
        _, num_bytes = find_in_place(problem, found, value_row, arena_rows)
        patience -= 1
        if num_bytes > state_bytes:
            patience = _PATIENCE
        if num_bytes >= state_bytes:  # an equal state may lead to better ones
            state, state_bytes = now, num_bytes
        if num_bytes > best_bytes:
            best = Alignment(found, blocks, value_row, arena_rows, num_bytes)
            best_bytes = num_bytes
        if patience == 0:
            state, state_bytes, patience = start, -1, _PATIENCE
        # The order from a PQ-tree is always compared with the sorted order.
        use_tree = not (k == 0 and by_tree)
        if not use_tree:
            tries = max(tries, 2)
        k += 1
    return best


@kernel
def _below(random, limit):
    """Draws a number from 0 to limit - 1 (xorshift, Marsaglia 2003)."""
    x = random[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    random[0] = x
    return np.int64(x >> np.uint64(33)) % limit


@kernel
def _change(random, state, pair_bytes, read_bytes, batch_start):
    """Returns the weights, order and waiting batches with a few random changes."""
    pair_weight, read_weight, reference, may_wait = state
    pair_weight, read_weight = pair_weight.copy(), read_weight.copy()
    reference, may_wait = reference.copy(), may_wait.copy()
    for _ in range(1 + _below(random, _MOST_CHANGES)):
        what = _below(random, _KINDS)
        factor = _FACTORS[_below(random, len(_FACTORS))]
        if what == 0 and len(pair_weight) > 0:
            p = _below(random, len(pair_weight))
            pair_weight[p] = pair_bytes[p] * factor
        elif what == 1 and len(read_weight) > 0:
            r = _below(random, len(read_weight))
            read_weight[r] = read_bytes[r] * factor
        else:
            b = _below(random, len(may_wait))
            if what == 2:
                may_wait[b] = not may_wait[b]
            size = batch_start[b + 1] - batch_start[b]
            one = batch_start[b] + _below(random, size)
            other = batch_start[b] + _below(random, size)
            reference[one], reference[other] = reference[other], reference[one]
    return pair_weight, read_weight, reference, may_wait
