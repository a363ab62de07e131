"""Groups: the nodes of a batch by the block that they read.

A read whose nodes come from several batches asks its reader for an order too: where the
blocks are neighbours, nodes that read the first block should come before those that
read the next one. The nodes that read one block are a *group*.
"""

import numpy as np
from numba import njit

from edbatch.memory_planner.block_order import count_producers
from edbatch.memory_planner.tables import (
    BATCH,
    FIRST_CHUNK,
    FIRST_READ,
    NEXT,
    PLACE,
    PRODUCERS,
    RANK,
    SLOT,
    START,
)

_MOST_READS = 4  # that an order is made for


@njit(cache=True, nogil=True)
def find_groups(
    batch: np.ndarray,
    node: np.ndarray,
    b: int,
    nodes: np.ndarray,
    operand_start: np.ndarray,
    operand_node: np.ndarray,
    read: np.ndarray,
    read_bytes: np.ndarray,
    count: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Finds the reads that ask their batch for an order, and their groups.

    Args:
        batch: Batches, with their neighbours.
        node: Nodes.
        b: The batch.
        nodes: Its n nodes.
        operand_start: First operand of each node, and the end.
        operand_node: Node of each operand.
        read: Reads.
        read_bytes: Bytes that one node reads.
        count: Scratch, zero for each batch, ``[S] int32``.

    Returns:
        The reads, most bytes first, ``[C] int32``; the group of each node, numbered in
        the order of blocks, by the node's place in the schedule, ``[C, n] int32``; and
        for each group the rows of its block if that and the next group's are
        neighbours, else 0, ``[C, groups] int32``.
    """
    chosen, most = _choose_reads(batch, b, read, read_bytes)
    group = np.empty((len(chosen), len(nodes) if most else 0), np.int32)
    joined = np.empty((len(chosen), most), np.int32)
    kept = 0
    for r in chosen:
        joined[kept] = 0
        if _group(
            batch, node, b, nodes, operand_start, operand_node, read[r], count,
            group[kept], joined[kept],
        ):  # fmt: skip
            chosen[kept] = r
            kept += 1
    return chosen[:kept], group[:kept], joined[:kept]


@njit(cache=True, nogil=True)
def _choose_reads(batch, b, read, read_bytes):
    """Lists the reads of several blocks, most bytes first; and the most blocks."""
    chosen = np.empty(_MOST_READS, np.int32)
    found = 0
    most = 0
    for r in range(batch[b, FIRST_READ], batch[b + 1, FIRST_READ]):
        if read[r, PRODUCERS] < 2 or read_bytes[r] == 0:
            continue
        most = max(most, read[r, PRODUCERS])
        k = min(found, _MOST_READS - 1)
        if found == _MOST_READS and read_bytes[chosen[k]] >= read_bytes[r]:
            continue
        found = k + 1
        while k > 0 and read_bytes[chosen[k - 1]] < read_bytes[r]:
            chosen[k] = chosen[k - 1]
            k -= 1
        chosen[k] = r
    return chosen[:found], most


@njit(cache=True, nogil=True)
def _group(
    batch, node, b, nodes, operand_start, operand_node, read, count, group, joined
):  # fmt: skip
    """Finds the groups of one read; False if no order of its nodes makes it a slice."""
    producers = np.empty(read[PRODUCERS], np.int32)
    count_producers(
        nodes, read[SLOT], node, operand_start, operand_node, count, producers
    )
    _sort_by_rank(producers, batch)
    is_one = batch[b + 1, FIRST_CHUNK] - batch[b, FIRST_CHUNK] == 1
    last = len(producers) - 1
    total = 0
    fits = True
    for k in range(len(producers)):
        a = producers[k]
        rows = batch[a + 1, START] - batch[a, START]
        is_joined = k < last and batch[a, NEXT] == producers[k + 1]
        is_part = 0 < k < last and count[a] < rows
        fits &= not is_one or not (is_part or (k < last and not is_joined))
        joined[k] = rows if is_joined else 0
        total += count[a]
        count[a] = k
    for v in nodes:
        u = operand_node[operand_start[v] + read[SLOT]]
        group[node[v, PLACE] - batch[b, START]] = count[node[u, BATCH]] if u >= 0 else 0
    for a in producers:
        count[a] = 0
    return fits and total == len(nodes)


@njit(cache=True, nogil=True)
def _sort_by_rank(producers, batch):
    for k in range(1, len(producers)):
        a = producers[k]
        at = k
        while at > 0 and batch[producers[at - 1], RANK] > batch[a, RANK]:
            producers[at] = producers[at - 1]
            at -= 1
        producers[at] = a


@njit(cache=True, nogil=True)
def promised_bytes(
    nodes: np.ndarray,
    node: np.ndarray,
    bounds: np.ndarray,
    group: np.ndarray,
    joined: np.ndarray,
    read_bytes: np.ndarray,
) -> float:
    """Counts the bytes that chunks could read in place if blocks had the right order.

    Args:
        nodes: A batch's nodes, in the order to be judged.
        node: Nodes.
        bounds: First position of each of the batch's chunks, and the end.
        group: As from `find_groups`.
        joined: As from `find_groups`.
        read_bytes: What a node counts for each of these reads, ``[C] float64``.

    Returns:
        The bytes.
    """
    total = 0.0
    for c in range(len(bounds) - 1):
        chunk = nodes[bounds[c] - bounds[0] : bounds[c + 1] - bounds[0]]
        for k in range(len(group)):
            if _are_neighbours(chunk, node, bounds[0], group[k], joined[k]):
                total += read_bytes[k] * len(chunk)
    return total


@njit(cache=True, nogil=True)
def _are_neighbours(chunk, node, start, group, joined):
    """Whether a chunk reads neighbouring blocks in order, the inner ones as a whole."""
    now = group[node[chunk[0], PLACE] - start]
    is_whole = True  # the last rows of the first block are enough
    length = 0
    for v in chunk:
        g = group[node[v, PLACE] - start]
        if g != now:
            if g != now + 1 or joined[now] == 0:
                return False
            if not is_whole and length < joined[now]:
                return False
            now = g
            is_whole = False
            length = 0
        length += 1
    return True
