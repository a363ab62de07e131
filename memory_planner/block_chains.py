"""Order of blocks: chooses which batch's block follows which.

A read whose nodes come from several batches can be a slice only if the blocks of these
batches are neighbours and the blocks in between are read completely. So such a read
requires some *pairs* of blocks to be neighbours, weighted by its bytes. Pairs are
accepted in descending order of their bytes while both blocks still lack that neighbour;
the accepted pairs form *chains*.

Gain on 32 sampled instances (`experiments/alignment_parts.py`): 9 percentage points of
the share of bytes in place for tree-LSTMs, 46 for word lattices, 23 for module
networks, none for taggers and translation.

A block may follow a block that is written earlier, whose padding is then overwritten,
or a block without padding.
"""

import numpy as np

from edbatch.kernel import kernel
from edbatch.memory_planner.tables import (
    BATCH,
    FIRST_CHUNK,
    FIRST_NODE,
    FIRST_READ,
    LAST_NODE,
    NEXT,
    NONE,
    PREVIOUS,
    PRODUCERS,
    RANK,
    ROWS,
    SLOT,
    START,
    Tables,
)
from edbatch.sorting import order_by_weight, sort_in_place, stable_order


@kernel
def find_pairs(
    tables: Tables, order: np.ndarray, read_bytes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Finds the pairs of blocks that some read requires.

    Args:
        tables: The tables.
        order: Nodes in the order of the schedule.
        read_bytes: Bytes that one node of each read reads.

    Returns:
        Distinct pairs of batches, ``[P, 2] int32``; the bytes of each pair,
        ``[P] float64``; and the bytes of all reads that can be slices at all. Time
        O(E + P log P).
    """
    batch, read = tables.batch, tables.read
    num_batches = len(batch) - 1
    most = 0
    for r in range(len(read)):
        most += 2 * read[r, PRODUCERS]
    pairs = np.empty((most, 2), np.int32)
    pair_bytes = np.empty(len(pairs))
    count = np.zeros(num_batches, np.int32)
    producers = np.empty(num_batches, np.int32)
    num_pairs = np.int64(0)
    possible = 0.0
    for b in range(num_batches):
        nodes = order[batch[b, START] : batch[b + 1, START]]
        chunks = batch[b + 1, FIRST_CHUNK] - batch[b, FIRST_CHUNK]
        for r in range(batch[b, FIRST_READ], batch[b + 1, FIRST_READ]):
            if read[r, PRODUCERS] < 2:
                possible += read_bytes[r] * len(nodes)
                continue
            found = producers[: read[r, PRODUCERS]]
            count_producers(tables, nodes, read[r, SLOT], count, found)
            weight = read_bytes[r] * len(nodes) / max(len(found) - 1, chunks)
            if chunks > 1 or _put_parts_outside(found, count, batch):
                possible += read_bytes[r] * len(nodes)
                num_pairs = _add_pairs(
                    found, count, chunks > 1, weight, batch, pairs, pair_bytes,
                    num_pairs,
                )  # fmt: skip
            for a in found:
                count[a] = 0
    joined, total = _join_equal(pairs[:num_pairs], pair_bytes[:num_pairs])
    return joined, total, possible


@kernel
def count_producers(
    tables: Tables,
    nodes: np.ndarray,
    slot: int,
    count: np.ndarray,
    producers: np.ndarray,
) -> None:
    """Counts how many operands in a slot come from each batch.

    Args:
        tables: The tables.
        nodes: The reading nodes.
        slot: The slot.
        count: Zero for each batch; updated. ``[S] int32``.
        producers: Receives the batches that are read, ascending; its length is their
            number. ``int32``.
    """
    found = 0
    for v in nodes:
        u = tables.operand_node[tables.operand_start[v] + slot]
        if u >= 0:
            a = tables.node[u, BATCH]
            if count[a] == 0:
                producers[found] = a
                found += 1
            count[a] += 1
    sort_in_place(producers)


@kernel
def _is_part(b, count, batch):
    return count[b] < batch[b + 1, START] - batch[b, START]


@kernel
def _put_parts_outside(found, count, batch):
    """Puts partly read blocks first and last; False if there are more than two."""
    parts = 0
    at = 0
    for k in range(len(found)):
        if _is_part(found[k], count, batch):
            parts += 1
            at = k
    last = len(found) - 1
    if parts == 1 and 0 < at < last:
        found[at], found[last] = found[last], found[at]
    elif parts == 2:
        for side in (0, last):
            k = side
            while not _is_part(found[k], count, batch):
                k += 1 if side == 0 else -1
            found[k], found[side] = found[side], found[k]
    return parts <= 2


@kernel
def _add_pairs(found, count, only_whole, weight, batch, pairs, pair_bytes, num_pairs):
    for k in range(len(found) - 1):
        if only_whole and (
            _is_part(found[k], count, batch) or _is_part(found[k + 1], count, batch)
        ):
            continue
        for turn in range(2):
            a, b = found[k + turn], found[k + 1 - turn]
            if a < b or batch[a, ROWS] == batch[a + 1, START] - batch[a, START]:
                pairs[num_pairs, 0] = a
                pairs[num_pairs, 1] = b
                pair_bytes[num_pairs] = weight
                num_pairs += 1
    return num_pairs


@kernel
def _join_equal(pairs, pair_bytes):
    """Merges equal pairs, adding up their bytes."""
    code = np.empty(len(pairs), np.int64)
    for k in range(len(pairs)):
        code[k] = np.int64(pairs[k, 0]) << 32 | pairs[k, 1]
    joined = np.empty_like(pairs)
    total = np.zeros(len(pairs))
    count = 0
    last = np.int64(-1)
    for k in stable_order(code):
        if code[k] != last:
            last = code[k]
            joined[count, 0] = pairs[k, 0]
            joined[count, 1] = pairs[k, 1]
            count += 1
        total[count - 1] += pair_bytes[k]
    return joined[:count], total[:count]


@kernel
def chain_blocks(
    batch: np.ndarray,
    pairs: np.ndarray,
    pair_bytes: np.ndarray,
) -> np.ndarray:
    """Chooses the neighbours of blocks, and the order of all blocks.

    Args:
        batch: Table of batches; the neighbours and ranks of blocks are set, and their
            first and last nodes are reset to `NONE`.
        pairs: As returned by `find_pairs`.
        pair_bytes: Bytes of each pair; pairs with 0 bytes are left out.

    Returns:
        Batches in the order of their blocks, ``[S] int32``.
    """
    num_batches = len(batch) - 1
    end = np.arange(num_batches)  # first block of a chain to its last, and vice versa
    for b in range(num_batches):
        batch[b, NEXT] = NONE
        batch[b, PREVIOUS] = NONE
        batch[b, FIRST_NODE] = NONE
        batch[b, LAST_NODE] = NONE
    for k in order_by_weight(pair_bytes):
        a, b = pairs[k, 0], pairs[k, 1]
        if pair_bytes[k] == 0:
            break
        if batch[a, NEXT] == NONE and batch[b, PREVIOUS] == NONE and end[a] != b:
            batch[a, NEXT] = b
            batch[b, PREVIOUS] = a
            first, last = end[a], end[b]
            end[first], end[last] = last, first
    order = np.empty(num_batches, np.int32)
    count = 0
    for b in range(num_batches):
        a = np.int32(b) if batch[b, PREVIOUS] == NONE else NONE
        while a != NONE:
            batch[a, RANK] = count
            order[count] = a
            count += 1
            a = batch[a, NEXT]
    return order
