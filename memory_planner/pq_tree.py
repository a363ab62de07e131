"""PQ-trees: represent all orderings of a set that keep given subsets consecutive.

Source: Booth and Lueker (1976); the reduction and its cost are in
`edbatch.memory_planner.pq_reduction`.
"""

import copy
import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from edbatch.errors import PlanError
from edbatch.kernel import kernel
from edbatch.memory_planner.pq_nodes import LEAF, MARK, P, preorder
from edbatch.memory_planner.pq_reduction import frontier, new_tree, reduce
from edbatch.memory_planner.pq_structure import check_nodes

_SHOWN = 200  # characters of a tree that its repr shows


class PQTree:
    """All orderings of ``n`` leaves in which given subsets are each consecutive.

    A tree is written like ``{0 1 [2 3 {4 5}]}``: the children of a P node, in braces,
    may be in any order; those of a Q node, in brackets, in this order or in reverse. P
    nodes have two children or more, Q nodes three or more.

    Args:
        num_leaves: Number of leaves, which are 0 to ``num_leaves - 1``. Initially they
            may be in any order.

    Raises:
        PlanError: ``num_leaves`` is negative.

    Example:
        >>> tree = PQTree(5)
        >>> tree.reduce([1, 2]), tree.reduce([2, 3])
        (True, True)
        >>> tree
        PQTree({0 [1 2 3] 4})
        >>> tree.reduce([2, 4])  # 2 stands between 1 and 3
        False
        >>> tree.num_orderings()
        12
        >>> tree.frontier()
        array([0, 3, 2, 1, 4], dtype=int32)
    """

    def __init__(self, num_leaves: int) -> None:
        num_leaves = operator.index(num_leaves)
        if num_leaves < 0:
            raise PlanError(
                f"num_leaves of a PQ-tree must be 0 or more but is {num_leaves}; give"
                " the number of things to order"
            )
        self._arrays = new_tree(num_leaves)

    @property
    def num_leaves(self) -> int:
        """The number of leaves."""
        return len(self._arrays[0]) // 2 - 1

    def copy(self) -> "PQTree":
        """Returns an independent copy of the tree.

        Example:
            >>> tree = PQTree(3)
            >>> other = tree.copy()
            >>> other.reduce([0, 2])
            True
            >>> tree, other
            (PQTree({0 1 2}), PQTree({{0 2} 1}))
        """
        other = copy.copy(self)
        node, queue = self._arrays
        other._arrays = (node.copy(), queue.copy())
        return other

    def reduce(self, subset: Iterable[int]) -> bool:
        """Keeps only the orderings in which the leaves of a subset are consecutive.

        Args:
            subset: Distinct leaves in any order.

        Returns:
            Whether there are such orderings. If not, the tree is unchanged.

        Raises:
            PlanError: An element of the subset is not a leaf, or occurs twice; the tree
                is unchanged.

        Example:
            >>> tree = PQTree(4)
            >>> [tree.reduce(pair) for pair in ([0, 1], [1, 2], [2, 3], [3, 0])]
            [True, True, True, False]
            >>> tree
            PQTree([0 1 2 3])
        """
        leaves = _as_leaves(subset)
        place, is_leaf = _first_wrong(self._arrays, leaves)
        if place >= 0 and is_leaf:
            raise PlanError(
                f"a subset must not repeat a leaf, but this one has {leaves[place]}"
                " twice; give a set"
            )
        if place >= 0:
            raise PlanError(
                f"leaves of a subset must be 0 or more and below {self.num_leaves}, but"
                f" this one has {leaves[place]}; leaves are numbered from 0"
            )
        return bool(reduce(self._arrays, leaves, len(leaves)))

    def frontier(self) -> np.ndarray:
        """Returns one of the orderings; ``[n] int32``.

        It is 0, 1, 2 and so on while the tree allows all orderings.
        """
        return frontier(self._arrays)

    def num_orderings(self) -> int:
        """Returns the exact number of orderings.

        Example:
            >>> PQTree(20).num_orderings() == math.factorial(20)
            True
        """
        kind, value = (each.tolist() for each in preorder(self._arrays))
        return math.prod(
            math.factorial(size) if each == P else 2
            for each, size in zip(kind, value, strict=True)
            if each != LEAF
        )

    def orderings(self) -> Iterator[tuple[int, ...]]:
        """Yields all orderings, each once; for small trees.

        Example:
            >>> tree = PQTree(3)
            >>> tree.reduce([0, 1])
            True
            >>> sorted(tree.orderings())
            [(0, 1, 2), (1, 0, 2), (2, 0, 1), (2, 1, 0)]
        """
        kind, value = (each.tolist() for each in preorder(self._arrays))
        children = _children(kind, value)

        def ways(v: int) -> Iterator[tuple[int, ...]]:
            if kind[v] == P:
                return itertools.permutations(children[v])
            return iter((tuple(children[v]), tuple(children[v][::-1])))

        inner = [v for v, each in enumerate(kind) if each != LEAF]
        later = {v: ways(v) for v in inner}
        now = {v: next(later[v]) for v in inner}
        while True:
            order = (value[v] for v in _walk(now, len(kind)) if kind[v] == LEAF)
            yield tuple(order)
            # Like an odometer: the first node with another arrangement takes it, and
            # the nodes before it start over.
            for v in inner:
                now[v] = next(later[v], ())
                if now[v]:
                    break
                later[v] = ways(v)
                now[v] = next(later[v])
            else:
                return

    def canonical(self) -> str:
        """Returns the tree as text, the same for all trees with the same orderings.

        Children of P nodes are sorted by their smallest leaves; Q nodes are reversed so
        that the smallest leaf of the first child is below that of the last.

        Example:
            >>> tree = PQTree(4)
            >>> tree.reduce([3, 2]), tree.reduce([2, 0])
            (True, True)
            >>> tree.canonical()
            '{[0 2 3] 1}'
        """
        kind, value = (each.tolist() for each in preorder(self._arrays))
        if not kind:
            return "{}"
        children = _children(kind, value)
        smallest = value.copy()
        for v in range(len(kind) - 1, -1, -1):
            if kind[v] == LEAF:
                continue
            smallest[v] = min(smallest[child] for child in children[v])
            if kind[v] == P:
                children[v].sort(key=smallest.__getitem__)
            elif smallest[children[v][0]] > smallest[children[v][-1]]:
                children[v].reverse()
        return _write(kind, value, children)

    def check_structure(self) -> None:
        """Checks the arrays behind the tree.

        Raises:
            AssertionError: A link, a count or a mark is wrong; the message says which.
        """
        check_nodes(self._arrays[0])

    def __repr__(self) -> str:
        text = self.canonical()
        if len(text) <= _SHOWN:
            return f"PQTree({text})"
        return f"PQTree({text[:_SHOWN]}..., {self.num_leaves} leaves)"


def _children(kind: list[int], value: list[int]) -> list[list[int]]:
    """Returns each node's children, all as positions in the preorder."""
    children: list[list[int]] = [[] for _ in kind]
    roots: list[int] = []  # of the part read so far, from the end; the last is leftmost
    for v in range(len(kind) - 1, -1, -1):
        if kind[v] != LEAF:
            children[v] = [roots.pop() for _ in range(value[v])]
        roots.append(v)
    return children


def _walk(children: Mapping[int, Sequence[int]], count: int) -> Iterator[int]:
    """Yields all nodes of a tree, parents before children, from left to right."""
    stack = [0] if count else []
    while stack:
        v = stack.pop()
        yield v
        stack.extend(reversed(children.get(v, ())))


def _write(kind: list[int], value: list[int], children: list[list[int]]) -> str:
    pieces: list[str] = []
    stack: list[int | str] = [0]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            pieces.append(item)
        elif kind[item] == LEAF:
            pieces.append(str(value[item]))
        else:
            first, *others = children[item]
            stack.append("}" if kind[item] == P else "]")
            for child in reversed(others):
                stack += (child, " ")
            stack += (first, "{" if kind[item] == P else "[")
    return "".join(pieces)


def _as_leaves(subset: Iterable[int]) -> np.ndarray:
    """Returns a subset as an array; ``[*] int64``."""
    is_array = isinstance(subset, np.ndarray) or not isinstance(subset, Iterable)
    given = subset if is_array else list(subset)
    try:
        leaves = np.asarray(given)
    except ValueError:  # lists of unequal lengths
        leaves = np.asarray(None)
    if leaves.shape == (0,):
        return np.zeros(0, np.int64)
    if leaves.ndim != 1 or leaves.dtype.kind not in "iu":
        raise PlanError(
            "a subset is a sequence of leaves, which are whole numbers, but this one is"
            f" {given!r:.60}; of a mask, give np.flatnonzero(mask)"
        )
    return leaves.astype(np.int64, copy=False)


@kernel
def _first_wrong(tree, leaves):
    """Finds an invalid or repeated leaf: its index, or -1; and whether it is a leaf."""
    node, _ = tree
    num_leaves = len(node) // 2 - 1
    wrong = -1
    is_leaf = True
    k = 0
    while wrong < 0 and k < len(leaves):
        leaf = leaves[k]
        is_leaf = 0 <= leaf < num_leaves
        if not is_leaf or node[leaf, MARK] != 0:
            wrong = k
        else:
            node[leaf, MARK] = 1
            k += 1
    for leaf in leaves[:k]:
        node[leaf, MARK] = 0
    return wrong, is_leaf
