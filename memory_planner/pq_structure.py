"""Checks the invariants of a PQ-tree's arrays link by link, in plain Python."""

from collections.abc import Iterator

import numpy as np

from edbatch.memory_planner.pq_nodes import (
    CHILDREN,
    FIRST,
    FREE,
    KIND,
    LAST,
    LEAF,
    LEFT,
    MARK,
    NONE,
    PARENT,
    RIGHT,
    ROOT,
    UNUSED,
    USED,
    P,
    Q,
)


def check_nodes(node: np.ndarray) -> None:
    """Checks the arrays of a PQ-tree.

    Args:
        node: The nodes of the tree.

    Raises:
        AssertionError: A link is wrong; a leaf is missing or in two places; a P node
            has fewer than two children or a Q node fewer than three; a row is lost; or
            a reduction has left marks.
    """
    rows = node.tolist()
    top = rows[-1]
    leaves = len(rows) // 2 - 1
    seen: set[int] = set()
    stack = [top[ROOT]] if leaves else []
    for root in stack:
        links = [rows[root][each] for each in (PARENT, LEFT, RIGHT)]
        assert links == [NONE] * 3, f"the root, row {root}, has no neighbours"
    while stack:
        v = stack.pop()
        assert v not in seen, f"row {v} has one parent"
        seen.add(v)
        assert rows[v][MARK] == 0, f"row {v} has no mark between reductions"
        kind = rows[v][KIND]
        assert (kind == LEAF) == (v < leaves), f"row {v} is a leaf if below {leaves}"
        if kind == P:
            stack.extend(_ring(rows, v))
        elif kind != LEAF:
            assert kind == Q, f"row {v} of the tree is in use"
            stack.extend(_chain(rows, v))
    assert seen.issuperset(range(leaves)), "every leaf is in the tree"
    for v in _free_rows(rows):
        assert v not in seen, f"row {v} is free or in the tree"
        seen.add(v)
    assert len(seen) == top[USED], "every row that was used is in the tree or free"


def _ring(rows: list[list[int]], v: int) -> list[int]:
    """Returns the children of a P node, after checking them."""
    children = [rows[v][FIRST]]
    while rows[children[-1]][RIGHT] != children[0]:
        children.append(rows[children[-1]][RIGHT])
        assert len(children) <= rows[v][CHILDREN], f"the ring of row {v} closes"
    for before, child in zip([children[-1], *children], children, strict=False):
        assert rows[child][PARENT] == v, f"row {child} knows its P node"
        assert rows[child][LEFT] == before, f"row {child} has two true neighbours"
    assert len(children) == rows[v][CHILDREN], f"row {v} counts its children"
    assert len(children) >= 2, f"the P node {v} has two children or more"
    return children


def _chain(rows: list[list[int]], v: int) -> list[int]:
    """Returns the children of a Q node, after checking them."""
    children: list[int] = []
    came, child = int(NONE), rows[v][FIRST]
    # The loop ends: neighbours are checked to be mutual, so the chain can be followed
    # backwards as well, and a repeated child would lead back to the first one.
    while child != NONE:
        children.append(child)
        links = [rows[child][LEFT], rows[child][RIGHT]]
        assert came in links, f"row {child} has two true neighbours"
        links.remove(came)
        came, child = child, links[0]
    assert children[-1] == rows[v][LAST], f"row {v} knows both of its ends"
    assert len(children) >= 3, f"the Q node {v} has three children or more"
    for child in children:
        parent = v if child in (children[0], children[-1]) else NONE
        assert rows[child][PARENT] == parent, f"row {child} knows its Q node if an end"
    return children


def _free_rows(rows: list[list[int]]) -> Iterator[int]:
    v = rows[-1][FREE]
    while v != NONE:
        assert rows[v][KIND] == UNUSED, f"row {v} is free"
        yield v
        v = rows[v][PARENT]
