"""The nodes of a PQ-tree as one array, and the operations on them.

A node is a row of integers that refer to other rows; all the data of one node lies
together. Rows 0 to n - 1 are the leaves. The children of a P node form a ring; those of
a Q node form a chain whose links have no direction, so two chains can be joined, and
one of them reversed, in constant time. Only the two children at the ends store their Q
node; Booth and Lueker (1976) leave the parent of the inner ones undefined, because
keeping it up to date would cost too much. Here it is `NONE`.

Every function takes constant time, except `new_tree`, O(n), and `preorder`, O(nodes).
"""

import numpy as np

from edbatch.kernel import kernel

Row = int | np.int32
Column = int | np.int64
NONE = np.int32(-1)  # has the dtype of the arrays, so that functions are compiled once
UNUSED, LEAF, P, Q = np.int32(0), np.int32(1), np.int32(2), np.int32(3)

# Columns of a node. A P node's FIRST is any of its children, a Q node's FIRST and LAST
# are its ends; CHILDREN is the number of children of a P node. A free row's PARENT is
# the next free row.
KIND, PARENT, LEFT, RIGHT = range(4)
FIRST, LAST = np.int64(4), np.int64(5)  # passed to functions: no literals, see NONE
CHILDREN, MARK = 6, 7
# Set during a reduction: ABOVE is the parent, as found by the reduction; PENDING is the
# number of pertinent children that are not labelled yet; FULL_COUNT is the number of
# full children. These form a linked list: FULL_LIST of the parent is the latest, and
# NEXT_FULL of each child the previous. PARTIAL and PARTIAL_2 are the partial children.
# Between two reductions MARK is 0 and these columns are undefined.
ABOVE, PENDING, FULL_COUNT, FULL_LIST, NEXT_FULL, PARTIAL, PARTIAL_2 = range(8, 15)
COLUMNS = 16  # one cache line
IS_FULL, IS_PARTIAL = 1, 2  # labels, stored in MARK; an empty node has 0

# The last row stands for a Q node that a reduction has not found (the pseudo-root). It
# also stores the root, the head of the list of freed rows, and how many rows have ever
# been used.
ROOT, FREE, USED = FIRST, LAST, CHILDREN


@kernel
def new_tree(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Makes the tree of all orderings, in the form that compiled functions take.

    Args:
        n: Number of leaves.

    Returns:
        The tree: its nodes, ``[2 n + 2, 16] int32``, and scratch, ``[2 n + 2] int32``.
        Only one thread may use it at a time.
    """
    # Inner nodes have two children or more, so there are fewer than n; two more exist
    # during a reduction.
    rows = 2 * n + 2
    node = np.empty((rows, COLUMNS), np.int32)
    top = rows - 1
    node[top, MARK] = 0
    node[top, KIND] = Q
    node[top, FREE] = NONE
    node[top, USED] = n
    node[top, ROOT] = 0 if n > 0 else NONE
    for v in range(n):
        _clear(node, np.int32(v), LEAF)
    if n > 1:
        root = new_node(node, P)
        node[top, ROOT] = root
        for v in range(n - 1, -1, -1):
            add_to_ring(node, root, np.int32(v))
    return node, np.empty(rows, np.int32)


@kernel
def preorder(tree: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Lists the nodes, each before its children, in the order of the frontier.

    Args:
        tree: As returned by `new_tree`.

    Returns:
        Kind of each node, `LEAF`, `P` or `Q`, and the leaf or the number of children;
        ``[nodes] int32`` both.
    """
    node, _ = tree
    top = len(node) - 1
    kind = np.empty(top, np.int32)
    value = np.empty(top, np.int32)
    stack = np.empty(top, np.int32)
    height = count = 0
    if node[top, ROOT] != NONE:
        stack[0] = node[top, ROOT]
        height = 1
    while height > 0:
        height -= 1
        v = stack[height]
        kind[count] = node[v, KIND]
        value[count] = v
        if node[v, KIND] != LEAF:
            value[count] = _push_children(node, v, stack, height)
            height += value[count]
        count += 1
    return kind[:count], value[:count]


@kernel
def _push_children(node, v, stack, height):
    """Pushes the children so that the first is on top; returns their number."""
    first = node[v, FIRST]
    is_ring = node[v, KIND] == P
    child = node[first, LEFT] if is_ring else node[v, LAST]
    came = NONE
    count = 1
    stack[height] = child
    while child != first:
        after = node[child, LEFT] if is_ring else other_link(node, child, came)
        came = child
        child = after
        stack[height + count] = child
        count += 1
    return count


@kernel
def new_node(node: np.ndarray, kind: Row) -> Row:
    """Returns a row for a node without children."""
    top = len(node) - 1
    v = node[top, FREE]
    if v != NONE:
        node[top, FREE] = node[v, PARENT]
    else:
        v = node[top, USED]
        node[top, USED] += 1
    _clear(node, v, kind)
    return v


@kernel
def free_node(node: np.ndarray, v: Row) -> None:
    """Frees a row."""
    top = len(node) - 1
    node[v, KIND] = UNUSED
    node[v, PARENT] = node[top, FREE]
    node[top, FREE] = v


@kernel
def _clear(node, v, kind):
    node[v, KIND] = kind
    node[v, PARENT] = NONE
    node[v, LEFT] = NONE
    node[v, RIGHT] = NONE
    node[v, FIRST] = NONE
    node[v, LAST] = NONE
    node[v, CHILDREN] = 0
    node[v, MARK] = 0


@kernel
def other_link(node: np.ndarray, v: Row, neighbour: Row) -> Row:
    """Returns v's other neighbour in a chain; `NONE` at an end."""
    return node[v, RIGHT] if node[v, LEFT] == neighbour else node[v, LEFT]


@kernel
def relink(node: np.ndarray, v: Row, old: Row, new: Row) -> None:
    """Replaces v's neighbour old by new, unless v is `NONE`."""
    if v == NONE:
        return
    if node[v, LEFT] == old:
        node[v, LEFT] = new
    else:
        node[v, RIGHT] = new


@kernel
def replace(node: np.ndarray, old: Row, new: Row) -> None:
    """Puts new in the place of old, in a ring, in a chain or at the root."""
    parent, left, right = node[old, PARENT], node[old, LEFT], node[old, RIGHT]
    node[new, PARENT], node[new, LEFT], node[new, RIGHT] = parent, left, right
    relink(node, left, old, new)
    relink(node, right, old, new)
    if parent != NONE:
        replace_end(node, parent, old, new)
    elif left == NONE:  # and so is right: an inner child of a Q node has both
        node[len(node) - 1, ROOT] = new


@kernel
def replace_end(node: np.ndarray, parent: Row, old: Row, new: Row) -> None:
    """Makes new an end of the parent's children if old was one."""
    if node[parent, FIRST] == old:
        node[parent, FIRST] = new
    elif node[parent, LAST] == old:
        node[parent, LAST] = new


@kernel
def add_to_ring(node: np.ndarray, parent: Row, v: Row) -> None:
    """Makes v the first child of a P node."""
    after = node[parent, FIRST]
    if after == NONE:
        node[v, LEFT] = node[v, RIGHT] = v
    else:
        before = node[after, LEFT]
        node[v, LEFT] = before
        node[v, RIGHT] = after
        node[before, RIGHT] = v
        node[after, LEFT] = v
    node[v, PARENT] = parent
    node[parent, FIRST] = v
    node[parent, CHILDREN] += 1


@kernel
def take_from_ring(node: np.ndarray, parent: Row, v: Row) -> None:
    """Removes v from the children of a P node, which leaves v's own links stale."""
    left, right = node[v, LEFT], node[v, RIGHT]
    node[left, RIGHT] = right
    node[right, LEFT] = left
    if node[parent, FIRST] == v:
        node[parent, FIRST] = right if right != v else NONE
    node[parent, CHILDREN] -= 1


@kernel
def add_to_chain(node: np.ndarray, parent: Row, end: Column, v: Row) -> None:
    """Makes v the outermost child of a Q node at one end, FIRST or LAST."""
    before = node[parent, end]
    node[v, LEFT] = before
    node[v, RIGHT] = NONE
    node[v, PARENT] = parent
    if before == NONE:
        node[parent, FIRST] = node[parent, LAST] = v
        return
    relink(node, before, NONE, v)
    if node[parent, FIRST] != node[parent, LAST]:
        node[before, PARENT] = NONE
    node[parent, end] = v


@kernel
def splice(node: np.ndarray, parent: Row, v: Row, outer: Row) -> None:
    """Replaces a Q node in a chain by its own children.

    Args:
        node: The nodes.
        parent: The parent of v, a Q node; used only if v is at an end.
        v: The Q node to replace; it is freed.
        outer: The neighbour of v, or `NONE`, next to which the last child of v is
            placed; the first child is placed next to the other neighbour.
    """
    _hand_over(node, parent, v, FIRST, other_link(node, v, outer))
    _hand_over(node, parent, v, LAST, outer)
    free_node(node, v)


@kernel
def _hand_over(node, parent, v, end, neighbour):
    """Links the child at one end of v with a neighbour of v, in place of v."""
    child = node[v, end]
    relink(node, child, NONE, neighbour)
    relink(node, neighbour, v, child)
    node[child, PARENT] = NONE if neighbour != NONE else parent
    if neighbour == NONE:
        replace_end(node, parent, v, child)
