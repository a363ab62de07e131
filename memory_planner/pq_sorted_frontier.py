"""The ordering of a PQ-tree that is nearest to 0, 1, 2 and so on."""

import numpy as np

from edbatch.kernel import kernel
from edbatch.memory_planner.pq_nodes import LEAF, P, preorder

_NONE = -1


@kernel
def sorted_frontier(tree: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Returns the ordering in which no child of a P node comes before a smaller one.

    Children are compared by their smallest leaf; Q nodes are reversed so that their
    first child is smaller than their last one. So the result is 0, 1, 2 and so on if
    the tree allows that ordering.

    Args:
        tree: The tree, as returned by `edbatch.memory_planner.pq_reduction.new_tree`.

    Returns:
        The leaves; ``[n] int32``. Time O(n).

    Example:
        >>> from edbatch.memory_planner.pq_reduction import new_tree, reduce
        >>> tree = new_tree(5)
        >>> reduce(tree, np.array([1, 3]), 2), reduce(tree, np.array([1, 4]), 2)
        (True, True)
        >>> sorted_frontier(tree).tolist()
        [0, 3, 1, 4, 2]
    """
    kind, value = preorder(tree)
    parent, smallest, node_of = _climb(kind, value)
    # Linked lists of children, last child first, in the order for pushing on a stack.
    child = np.full(len(kind), _NONE, np.int32)
    sibling = np.full(len(kind), _NONE, np.int32)
    for v in range(1, len(kind)):
        if kind[parent[v]] != P:
            sibling[v] = child[parent[v]]
            child[parent[v]] = v
    is_listed = np.zeros(len(kind), np.bool_)
    for v in node_of:  # by leaf, so children of P nodes are in order of their smallest
        while v > 0 and not is_listed[v]:
            is_listed[v] = True
            if kind[parent[v]] == P:
                sibling[v] = child[parent[v]]
                child[parent[v]] = v
            v = parent[v]
    order = np.empty(len(node_of), np.int32)
    stack = np.empty(len(kind), np.int32)
    stack[0] = 0
    height = 1
    count = 0
    while height > 0:
        height -= 1
        v = stack[height]
        if kind[v] == LEAF:
            order[count] = value[v]
            count += 1
        first = height
        w = child[v]
        while w != _NONE:
            stack[height] = w
            height += 1
            w = sibling[w]
        if height > first and smallest[stack[first]] < smallest[stack[height - 1]]:
            for k in range((height - first) // 2):
                a, b = first + k, height - 1 - k
                stack[a], stack[b] = stack[b], stack[a]
    return order


@kernel
def _climb(kind, value):
    """Finds each node's parent and smallest leaf, and the node of each leaf."""
    parent = np.full(len(kind), _NONE, np.int32)
    open_ = np.empty(len(kind), np.int32)  # ancestors with children still to come
    lacks = value.copy()
    height = 0
    leaves = 0
    for v in range(len(kind)):
        if height > 0:
            parent[v] = open_[height - 1]
            lacks[parent[v]] -= 1
            if lacks[parent[v]] == 0:
                height -= 1
        if kind[v] == LEAF:
            leaves += 1
        else:
            open_[height] = v
            height += 1
    smallest = np.full(len(kind), leaves, np.int32)
    node_of = np.empty(leaves, np.int32)
    for v in range(len(kind) - 1, -1, -1):
        if kind[v] == LEAF:
            smallest[v] = value[v]
            node_of[value[v]] = v
        if v > 0:
            smallest[parent[v]] = min(smallest[parent[v]], smallest[v])
    return parent, smallest, node_of
