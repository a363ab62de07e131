"""Groups: the nodes of a batch, grouped by the block that they read.

A read whose nodes come from several batches also suggests an order for the reading
batch: where the blocks are neighbours, nodes that read the first block should come
before nodes that read the next one. The nodes that read one block are a *group*.
"""

from typing import NamedTuple

import numpy as np

from edbatch.kernel import kernel
from edbatch.memory_planner.block_chains import count_producers
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
    Tables,
)

_MOST_READS = 4  # considered for the order of one batch


class Groups(NamedTuple):
    """Groups of the ``n`` nodes of a batch by ``C`` reads, most bytes first.

    Attributes:
        weight: Weight of a node for each read.
        group: The group of each node, by the node's place in the schedule. Groups are
            numbered in the order of their blocks.
        joined: For each group, the rows of its block if that block and the next group's
            are neighbours, otherwise 0.
    """

    weight: np.ndarray  # [C] float64
    group: np.ndarray  # [C, n] int32
    joined: np.ndarray  # [C, groups] int32


@kernel
def find_groups(
    tables: Tables, b: int, nodes: np.ndarray, weight: np.ndarray, count: np.ndarray
) -> Groups:
    """Finds the reads that suggest an order for their batch, and their groups.

    Args:
        tables: The tables, with the neighbours of blocks.
        b: The batch.
        nodes: Its n nodes.
        weight: Weight of one node for each read.
        count: Scratch, zero for each batch, ``[S] int32``.

    Returns:
        The groups.
    """
    read = tables.read
    chosen, most = _choose_reads(tables.batch, b, read, weight)
    group = np.empty((len(chosen), len(nodes) if most else 0), np.int32)
    joined = np.empty((len(chosen), most), np.int32)
    kept = 0
    for r in chosen:
        joined[kept] = 0
        if _group(tables, b, nodes, read[r], count, group[kept], joined[kept]):
            chosen[kept] = r
            kept += 1
    return Groups(weight[chosen[:kept]], group[:kept], joined[:kept])


@kernel
def _choose_reads(batch, b, read, weight):
    """Lists reads of several blocks, most bytes first; also returns the most blocks."""
    chosen = np.empty(_MOST_READS, np.int32)
    found = 0
    most = 0
    for r in range(batch[b, FIRST_READ], batch[b + 1, FIRST_READ]):
        if read[r, PRODUCERS] < 2 or weight[r] == 0:
            continue
        most = max(most, read[r, PRODUCERS])
        k = min(found, _MOST_READS - 1)
        if found == _MOST_READS and weight[chosen[k]] >= weight[r]:
            continue
        found = k + 1
        while k > 0 and weight[chosen[k - 1]] < weight[r]:
            chosen[k] = chosen[k - 1]
            k -= 1
        chosen[k] = r
    return chosen[:found], most


@kernel
def _group(tables, b, nodes, read, count, group, joined):
    """Finds the groups of one read; False if no order of nodes makes it a slice."""
    batch, node = tables.batch, tables.node
    producers = np.empty(read[PRODUCERS], np.int32)
    count_producers(tables, nodes, read[SLOT], count, producers)
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
        u = tables.operand_node[tables.operand_start[v] + read[SLOT]]
        group[node[v, PLACE] - batch[b, START]] = count[node[u, BATCH]] if u >= 0 else 0
    for a in producers:
        count[a] = 0
    return fits and total == len(nodes)


@kernel
def _sort_by_rank(producers, batch):
    for k in range(1, len(producers)):
        a = producers[k]
        at = k
        while at > 0 and batch[producers[at - 1], RANK] > batch[a, RANK]:
            producers[at] = producers[at - 1]
            at -= 1
        producers[at] = a


@kernel
def possible_bytes(tables: Tables, b: int, nodes: np.ndarray, groups: Groups) -> float:
    """Counts bytes that chunks could read in place with the right order within blocks.

    Args:
        tables: The tables.
        b: A batch.
        nodes: Its nodes, in the order to be judged.
        groups: Their groups.

    Returns:
        The bytes.
    """
    batch, node = tables.batch, tables.node
    bounds = tables.chunk_start[batch[b, FIRST_CHUNK] : batch[b + 1, FIRST_CHUNK] + 1]
    weight, group, joined = groups
    total = 0.0
    for c in range(len(bounds) - 1):
        chunk = nodes[bounds[c] - bounds[0] : bounds[c + 1] - bounds[0]]
        for k in range(len(group)):
            if _are_neighbours(chunk, node, bounds[0], group[k], joined[k]):
                total += weight[k] * len(chunk)
    return total


@kernel
def _are_neighbours(chunk, node, start, group, joined):
    """Whether a chunk reads neighbouring blocks in order, the inner ones completely."""
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
