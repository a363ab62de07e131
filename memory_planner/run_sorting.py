"""Orders a batch's runs to suit the batch's own operands.

Runs come from the constraints of the batch's readers. They are sorted by groups (see
`groups`), first by those of the read with the most bytes. This keeps the groups of that
read together, but not always the groups of other reads. So a PQ-tree over the runs then
takes the groups of all reads, and pairs of neighbouring groups, as sets that should be
consecutive. The better of the two orders is kept: the one with more bytes in chunks
that could be slices.

Gain of the tree over sorting alone (`experiments/alignment_parts.py`): 0.3 to 0.4
percentage points of the share of bytes in place on 32 sampled trees, none elsewhere.
"""

import numpy as np

from edbatch.kernel import kernel
from edbatch.memory_planner.groups import find_groups, possible_bytes
from edbatch.memory_planner.pq_reduction import new_tree, reduce
from edbatch.memory_planner.pq_sorted_frontier import sorted_frontier
from edbatch.memory_planner.tables import (
    AFTER,
    BEFORE,
    END,
    FIRST_NODE,
    LAST_NODE,
    NONE,
    PLACE,
    START,
    Tables,
)
from edbatch.sorting import stable_order

_KEY_BITS = 60
_PAIR = np.int64(2)  # not a literal: Numba would compile `reduce` a second time


@kernel
def order_runs(
    tables: Tables,
    b: int,
    nodes: np.ndarray,
    weight: np.ndarray,
    count: np.ndarray,
    use_tree: bool,
) -> tuple[np.ndarray, bool]:
    """Chooses the order of a batch's nodes.

    Args:
        tables: The tables, with runs and the neighbours of blocks.
        b: The batch.
        nodes: Its nodes; runs keep this order where no read suggests another.
        weight: Weight of one node for each read.
        count: Scratch, zero for each batch, ``[S] int32``.
        use_tree: Whether to try a PQ-tree.

    Returns:
        The nodes in their order, ``[n] int32``; and whether it is the tree's order.
    """
    own, node = tables.batch[b], tables.node
    heads = _find_heads(nodes, node, own)
    if len(heads) == 1:
        return _expand(heads, node, len(nodes)), False
    groups = find_groups(tables, b, nodes, weight, count)
    group = groups.group
    if len(group) > 0:
        heads = heads[_sort_by_groups(heads, node, own, group)]
    order = _expand(heads, node, len(nodes))
    if not use_tree or len(group) < 2 or len(heads) < 3:
        return order, False
    tree = _make_tree(heads, node, own, group)
    other = _expand(heads[sorted_frontier(tree)[1:-1] - 1], node, len(nodes))
    now = possible_bytes(tables, b, order, groups)
    if possible_bytes(tables, b, other, groups) > now:
        return other, True
    return order, False


@kernel
def _find_heads(nodes, node, own):
    """Lists the first nodes of runs; a fixed first or last run is in its place."""
    heads = np.empty(len(nodes), np.int32)
    first, last = own[FIRST_NODE], own[LAST_NODE]
    found = 0
    if first != NONE:
        heads[0] = first
        found = 1
    if last != NONE:
        last = node[last, END]
    for v in nodes:
        if node[v, BEFORE] == NONE and v != first and v != last:
            heads[found] = v
            found += 1
    if last != NONE and last != first:
        heads[found] = last
        found += 1
    return heads[:found]


@kernel
def _expand(heads, node, size):
    """Lists the nodes of runs."""
    order = np.empty(size, np.int32)
    count = 0
    for v in heads:
        while v != NONE:
            order[count] = v
            count += 1
            v = node[v, AFTER]
    return order


@kernel
def _sort_by_groups(heads, node, own, group):
    """Returns the order of runs by the groups of their first and last nodes."""
    key = np.ones(len(heads), np.int64)
    if own[FIRST_NODE] != NONE:
        key[0] = 0
    if own[LAST_NODE] != NONE:
        key[-1] = 2
    used = 2
    for k in range(len(group)):
        bits = 1
        largest = _largest(group[k])
        while largest >> bits:
            bits += 1
        used += 2 * bits
        if used > _KEY_BITS:
            break
        for h in range(len(heads)):
            first = group[k, node[heads[h], PLACE] - own[START]]
            last = group[k, node[node[heads[h], END], PLACE] - own[START]]
            key[h] = (key[h] << bits | first) << bits | last
    return stable_order(key)


@kernel
def _make_tree(heads, node, own, group):
    """Makes the PQ-tree over runs; the first and last leaf are the batch's two ends."""
    n = len(heads)
    tree = new_tree(n + 2)
    leaves = np.arange(n + 2)
    reduce(tree, leaves, n + 1)
    reduce(tree, leaves[1:], n + 1)
    if own[FIRST_NODE] != NONE:
        reduce(tree, leaves, _PAIR)
    if own[LAST_NODE] != NONE:
        reduce(tree, leaves[n:], _PAIR)
    for k in range(len(group)):
        members, first = _list_members(heads, node, own[START], group[k])
        for g in range(len(first) - 1):
            reduce(tree, members[first[g] :], first[g + 1] - first[g])
        for g in range(len(first) - 2):
            reduce(tree, members[first[g] :], first[g + 2] - first[g])
    return tree


@kernel
def _largest(group):
    """Returns the largest number of a group."""
    largest = group[0]
    for g in group:
        largest = max(largest, g)
    return largest


@kernel
def _list_members(heads, node, start, group):
    """Lists leaf 0, then the leaves of each group; and the start of each list.

    A run with nodes of several groups is in all of them.
    """
    num_groups = _largest(group) + 1
    first = np.zeros(num_groups + 2, np.int64)
    members = np.zeros(len(group) + 1, np.int64)
    last = np.empty(num_groups, np.int64)
    end = np.ones(num_groups, np.int64)
    for is_counted in (False, True):
        last[:] = -1
        for h in range(len(heads)):
            v = heads[h]
            while v != NONE:
                g = group[node[v, PLACE] - start]
                if last[g] != h and is_counted:
                    members[end[g]] = h + 1
                    end[g] += 1
                elif last[g] != h:
                    first[g + 2] += 1
                last[g] = h
                v = node[v, AFTER]
        first[1] = 1
        for g in range(0 if is_counted else num_groups):
            first[g + 2] += first[g + 1]
            end[g] = first[g + 1]
    return members, first
