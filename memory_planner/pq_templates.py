"""The templates of a PQ-tree's reduction that change the tree.

Source: Booth and Lueker (1976), templates P2 to P6, Q2 and Q3. They are applied only
when they are known to match (`edbatch.memory_planner.pq_reduction`). Every function
takes O(1 + full children of the node) time.
"""

import numpy as np

from edbatch.kernel import kernel
from edbatch.memory_planner.pq_nodes import (
    ABOVE,
    CHILDREN,
    FIRST,
    FULL_COUNT,
    FULL_LIST,
    IS_FULL,
    KIND,
    LAST,
    LEFT,
    MARK,
    NEXT_FULL,
    NONE,
    PARTIAL,
    PARTIAL_2,
    RIGHT,
    P,
    Q,
    Row,
    add_to_chain,
    add_to_ring,
    free_node,
    new_node,
    replace,
    splice,
    take_from_ring,
)


@kernel
def restructure(node: np.ndarray, v: Row) -> None:
    """Turns a partial node into a Q node, ordered from full to empty."""
    if node[v, KIND] == Q:
        _restructure_q(node, v)
    else:
        _restructure_p(node, v)


@kernel
def _restructure_p(node, v):
    """Templates P3 (no partial child) and P5 (one partial child)."""
    full = _take_full(node, v)
    chain = node[v, PARTIAL]
    if chain == NONE:
        chain = new_node(node, Q)
    else:
        take_from_ring(node, v, chain)
    replace(node, v, chain)
    above = node[v, ABOVE]
    column = PARTIAL if node[above, PARTIAL] == v else PARTIAL_2
    node[above, column] = chain
    if full != NONE:
        add_to_chain(node, chain, FIRST, full)
    empty = v
    if node[v, CHILDREN] < 2:
        empty = node[v, FIRST]
        free_node(node, v)
    if empty != NONE:
        add_to_chain(node, chain, LAST, empty)


@kernel
def _restructure_q(node, v):
    """Template Q2 below the pertinent root."""
    partial = node[v, PARTIAL]
    first = node[v, FIRST]
    is_full = node[first, MARK] == IS_FULL
    if not is_full and (node[v, FULL_COUNT] > 0 or first != partial):
        node[v, FIRST] = node[v, LAST]
        node[v, LAST] = first
    if partial != NONE:
        splice(node, v, partial, _empty_side(node, partial, NONE))


@kernel
def restructure_root(node: np.ndarray, v: Row) -> None:
    """Restructures the pertinent root, which may be the last row."""
    if node[v, KIND] == P:
        _restructure_root_p(node, v)
    elif node[v, KIND] == Q:  # templates Q2, with one partial child, and Q3, with two
        partial, partial_2 = node[v, PARTIAL], node[v, PARTIAL_2]
        if partial_2 != NONE:
            outer_2 = _empty_side(node, partial_2, partial)
        if partial != NONE:
            splice(node, v, partial, _empty_side(node, partial, partial_2))
        if partial_2 != NONE:
            splice(node, v, partial_2, outer_2)


@kernel
def _restructure_root_p(node, v):
    """Templates P2, P4 and P6: no partial child, one, or two."""
    chain, chain_2 = node[v, PARTIAL], node[v, PARTIAL_2]
    if chain == NONE:
        if node[v, FULL_COUNT] < node[v, CHILDREN]:
            _group_full(node, v)
        return
    full = _take_full(node, v)
    if full != NONE:
        add_to_chain(node, chain, FIRST, full)
    if chain_2 != NONE:
        take_from_ring(node, v, chain_2)
        add_to_chain(node, chain, FIRST, chain_2)
        splice(node, chain, chain_2, NONE)
    if node[v, CHILDREN] == 1:
        replace(node, v, chain)
        free_node(node, v)


@kernel
def _take_full(node, v):
    """Removes the full children of a P node; several are put below a new P node."""
    full = node[v, FULL_LIST]
    if node[v, FULL_COUNT] < 2:
        if full != NONE:
            take_from_ring(node, v, full)
        return full
    group = new_node(node, P)
    while full != NONE:
        take_from_ring(node, v, full)
        add_to_ring(node, group, full)
        full = node[full, NEXT_FULL]
    return group


@kernel
def _group_full(node, v):
    """Puts the full children, two or more, below a new child.

    The new child takes the place of the full child that was labelled first, so all
    nodes that need not move stay where they are.
    """
    group = new_node(node, P)
    full = node[v, FULL_LIST]
    while node[full, NEXT_FULL] != NONE:
        take_from_ring(node, v, full)
        add_to_ring(node, group, full)
        full = node[full, NEXT_FULL]
    replace(node, full, group)
    add_to_ring(node, group, full)


@kernel
def _empty_side(node, v, partial):
    """Returns the neighbour, or `NONE`, that a partial node's empty end must face.

    It is neither full nor the other partial node. Where both neighbours qualify, v is
    at the end of its chain, and no other child is full.
    """
    left, right = node[v, LEFT], node[v, RIGHT]
    if left != NONE and (left == partial or node[left, MARK] == IS_FULL):
        return right
    if right != NONE and (right == partial or node[right, MARK] == IS_FULL):
        return left
    return left if left != NONE else right
