"""The reduction of a PQ-tree, compiled.

Source: K. S. Booth and G. S. Lueker, "Testing for the consecutive ones property,
interval graphs, and graph planarity using PQ-tree algorithms", Journal of Computer and
System Sciences 13 (1976), 335-379: the procedures BUBBLE and REDUCE and the templates
L1, P1 to P6 and Q1 to Q3. There each template changes the tree as soon as it matches,
so a set that is refused further up leaves the tree corrupted. Here a reduction

1. *climbs* from the leaves of the set (BUBBLE) and finds the parent of each *pertinent*
   node: a node with leaves of the set below it. Inner children of Q nodes do not store
   their parent; they wait in blocks until a neighbour has found it. At most one block
   may remain; its unknown Q node is then the pertinent root, which is above all of the
   set;
2. *labels* the pertinent nodes, children first: all leaves of a *full* node are in the
   set, only some leaves of a *partial* node. The labels of its children alone decide
   which template matches a node, so a set is refused here, or in step 1, before
   anything has changed;
3. *restructures* the partial nodes and the pertinent root. Full nodes stay as they are
   (L1, P1, Q1). A partial node becomes a Q node whose FIRST end is full and whose LAST
   end is empty (P3, P5, Q2); the node above absorbs it. The pertinent root keeps the
   full leaves together (P2, P4, P6, Q2, Q3).

Time: O(n + m + s) for m accepted sets of total size s over n leaves, as in the paper.
Beyond O(its size), an accepted set visits nodes with one pertinent child, which are
then merged, and some nodes above the pertinent root, about as many as below it, because
all paths upwards are climbed in turn. A refused set merges nothing, so it pays for the
climb itself: O(its size plus the nodes on the paths upwards), at worst O(n).
"""

import numpy as np

from edbatch.kernel import kernel
from edbatch.memory_planner.pq_nodes import (
    ABOVE,
    CHILDREN,
    FULL_COUNT,
    FULL_LIST,
    IS_FULL,
    IS_PARTIAL,
    KIND,
    LEAF,
    LEFT,
    MARK,
    NEXT_FULL,
    NONE,
    PARENT,
    PARTIAL,
    PARTIAL_2,
    PENDING,
    RIGHT,
    P,
    Q,
    new_tree,
    other_link,
    preorder,
)
from edbatch.memory_planner.pq_templates import restructure, restructure_root

__all__ = ["frontier", "new_tree", "reduce"]

_UNSEEN, _QUEUED, _BLOCKED, _UNBLOCKED = range(4)  # marks during the climb
_REFUSED = -1  # in place of a label


@kernel
def frontier(tree: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Returns the leaves from left to right, one ordering of the tree.

    Args:
        tree: As returned by `new_tree`.

    Returns:
        The leaves; ``[n] int32``.
    """
    kind, value = preorder(tree)
    return value[kind == LEAF]


@kernel
def reduce(
    tree: tuple[np.ndarray, np.ndarray], subset: np.ndarray, count: int | np.int64
) -> bool:
    """Keeps only the orderings in which the leaves of a subset are consecutive.

    Args:
        tree: As returned by `new_tree`; updated.
        subset: Leaves of the tree, from 0 to n - 1, in any order; repeated leaves count
            once. ``[count or more]``, integers.
        count: How many entries of ``subset`` to use.

    Returns:
        Whether there are such orderings. If not, the tree is unchanged.

    Example:
        >>> tree = new_tree(4)
        >>> reduce(tree, np.array([1, 3]), 2), reduce(tree, np.array([0, 1]), 2)
        (True, True)
        >>> reduce(tree, np.array([1, 2]), 2)
        False
        >>> frontier(tree).tolist()
        [0, 1, 3, 2]
    """
    node, queue = tree
    leaves = np.int64(0)  # not a literal: Numba would compile the callees again
    for k in range(count):
        if node[subset[k], MARK] == _UNSEEN:
            queue[leaves] = subset[k]
            node[subset[k], MARK] = _QUEUED
            leaves += 1
    if leaves == 0:
        return True
    if not _climb(node, queue, leaves):
        return False
    root, labelled = _label(node, queue, leaves)
    if root != NONE:
        for k in range(leaves, labelled - 1):
            if node[queue[k], MARK] == IS_PARTIAL:
                restructure(node, queue[k])
        restructure_root(node, root)
    for k in range(labelled):
        node[queue[k], MARK] = _UNSEEN
    return root != NONE


@kernel
def _climb(node, queue, leaves):
    """Finds the node ABOVE each pertinent one; False if the set must be refused."""
    top = np.int32(len(node) - 1)
    first, last = 0, leaves
    blocks = 0
    at_top = 0
    while first < last and last - first + blocks + at_top > 1:
        v = queue[first]
        first += 1
        above = _find_above(node, v)
        left, right = node[v, LEFT], node[v, RIGHT]
        for neighbour in (left, right):
            if neighbour != NONE and node[neighbour, MARK] == _BLOCKED:
                blocks -= 1
        if above == NONE:
            node[v, MARK] = _BLOCKED
            blocks += 1
        elif above == top:
            at_top = 1
        else:
            if node[above, MARK] == _UNSEEN:
                _expect(node, above)
                node[above, MARK] = _QUEUED
                queue[last] = above
                last += 1
            _settle(node, v, above)
            for neighbour in (left, right):
                _settle_block(node, v, neighbour, above)
    found = last - first + blocks + at_top == 1
    _expect(node, top)
    for k in range(last):
        if node[queue[k], MARK] == _BLOCKED:
            _settle(node, queue[k], top)
        node[queue[k], MARK] = _UNSEEN
    return found


@kernel
def _find_above(node, v):
    """Returns the parent, `NONE` if not known yet, or the last row if v is the root."""
    if node[v, PARENT] != NONE:
        return node[v, PARENT]
    left, right = node[v, LEFT], node[v, RIGHT]
    if left == NONE:
        return np.int32(len(node) - 1)
    if node[left, MARK] == _UNBLOCKED:
        return node[left, ABOVE]
    if node[right, MARK] == _UNBLOCKED:
        return node[right, ABOVE]
    return NONE


@kernel
def _expect(node, above):
    """Resets what a node records about its pertinent children."""
    node[above, PENDING] = 0
    node[above, FULL_COUNT] = 0
    node[above, FULL_LIST] = NONE
    node[above, PARTIAL] = NONE
    node[above, PARTIAL_2] = NONE


@kernel
def _settle(node, v, above):
    node[v, MARK] = _UNBLOCKED
    node[v, ABOVE] = above
    node[above, PENDING] += 1


@kernel
def _settle_block(node, came, v, above):
    """Settles the consecutive blocked nodes from v on."""
    while v != NONE and node[v, MARK] == _BLOCKED:
        _settle(node, v, above)
        after = other_link(node, v, came)
        came = v
        v = after


@kernel
def _label(node, queue, leaves):
    """Labels pertinent nodes up to their root.

    Returns:
        The pertinent root, or `NONE` if the set is refused; and the number of labelled
        nodes, which are the first in the queue.
    """
    separate = leaves  # labelled nodes, or leaves, with no labelled node above
    last = leaves
    k = 0
    while True:
        v = queue[k]
        k += 1
        if k > leaves:
            separate -= _pertinent(node, v) - 1
        if separate == 1:
            fits = node[v, KIND] != Q or _find_run(node, v)[0]
            return (v if fits else NONE), last
        label = _label_below(node, v)
        if label == _REFUSED:
            return NONE, last
        node[v, MARK] = label
        above = node[v, ABOVE]
        if label == IS_FULL:
            node[above, FULL_COUNT] += 1
            node[v, NEXT_FULL] = node[above, FULL_LIST]
            node[above, FULL_LIST] = v
        elif node[above, PARTIAL] == NONE:
            node[above, PARTIAL] = v
        elif node[above, PARTIAL_2] == NONE:
            node[above, PARTIAL_2] = v
        else:
            return NONE, last
        node[above, PENDING] -= 1
        if node[above, PENDING] == 0:
            queue[last] = above
            last += 1


@kernel
def _pertinent(node, v):
    """Number of a node's pertinent children, all of which are labelled."""
    return (
        node[v, FULL_COUNT]
        + int(node[v, PARTIAL] != NONE)
        + int(node[v, PARTIAL_2] != NONE)
    )


@kernel
def _label_below(node, v):
    """Returns the label of a pertinent node that is not the pertinent root."""
    if node[v, KIND] == LEAF:
        return IS_FULL  # template L1
    if node[v, KIND] == P:
        if node[v, FULL_COUNT] == node[v, CHILDREN]:
            return IS_FULL  # P1
        # P3, P5
        return IS_PARTIAL if node[v, PARTIAL_2] == NONE else _REFUSED
    is_run, full_ends = _find_run(node, v)
    if not is_run or full_ends == 0 or node[v, PARTIAL_2] != NONE:
        return _REFUSED
    if full_ends == 2:
        return IS_FULL  # Q1
    return IS_PARTIAL  # Q2


@kernel
def _find_run(node, v):
    """Looks at the order of a Q node's pertinent children.

    Returns:
        Whether they are consecutive, with the full ones between the partial ones; and
        how many ends of the Q node the full ones reach, or the single partial one if
        none is full.
    """
    has_full = node[v, FULL_LIST] != NONE
    start = node[v, FULL_LIST] if has_full else node[v, PARTIAL]
    met = 1
    full_ends = 0
    for side in (LEFT, RIGHT):
        came = start
        child = node[start, side]
        while child != NONE and node[child, MARK] == IS_FULL:
            met += 1
            after = other_link(node, child, came)
            came = child
            child = after
        if child == NONE:
            full_ends += 1
        elif node[child, MARK] == IS_PARTIAL:
            met += 1
    return met == _pertinent(node, v), full_ends
