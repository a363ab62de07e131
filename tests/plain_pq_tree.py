"""A second, simple implementation of PQ-trees, and brute force over permutations.

A tree is a nested tuple: a leaf (a number), `P` (its children in any order) or `Q` (its
children in this order or in reverse). A reduction makes a new tree in one recursive
pass.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import factorial, prod

import numpy as np

EMPTY, PARTIAL, FULL = "empty", "partial", "full"


@dataclass(frozen=True)
class P:
    children: tuple["Tree", ...]


@dataclass(frozen=True)
class Q:
    children: tuple["Tree", ...]


Tree = int | P | Q


def universal(n: int) -> Tree:
    """The tree that allows all orders of n leaves."""
    return group(list(range(n)))


def group(trees: list[Tree]) -> Tree:
    return trees[0] if len(trees) == 1 else P(tuple(trees))


def leaves(tree: Tree) -> list[int]:
    if isinstance(tree, int):
        return [tree]
    return [leaf for child in tree.children for leaf in leaves(child)]


def label(tree: Tree, subset: frozenset[int]) -> str:
    inside = [leaf in subset for leaf in leaves(tree)]
    return FULL if all(inside) else PARTIAL if any(inside) else EMPTY


def with_label(trees: Iterable[Tree], subset: frozenset[int], which: str) -> list[Tree]:
    return [each for each in trees if label(each, subset) == which]


def reduce(tree: Tree, subset: Iterable[int]) -> Tree | None:
    """The tree of orders that keep the subset consecutive; None if there are none."""
    subset = frozenset(subset)
    if isinstance(tree, int) or not subset:
        return tree
    for k, child in enumerate(tree.children):
        if subset <= {*leaves(child)}:
            inner = reduce(child, subset)
            if inner is None:
                return None
            return type(tree)((*tree.children[:k], inner, *tree.children[k + 1 :]))
    return (root_p if isinstance(tree, P) else root_q)(tree, subset)


def root_p(tree: P, subset: frozenset[int]) -> Tree | None:
    empty, partial, full = (
        with_label(tree.children, subset, which) for which in (EMPTY, PARTIAL, FULL)
    )
    if not partial:
        return group([*empty, group(full)])
    runs = [empty_to_full(each, subset) for each in partial]
    if len(runs) > 2 or None in runs:
        return None
    middle = [group(full)] if full else []
    right = runs[1][::-1] if len(runs) == 2 else []
    return group([*empty, Q((*runs[0], *middle, *right))])


def root_q(tree: Q, subset: frozenset[int]) -> Tree | None:
    labels = [label(child, subset) for child in tree.children]
    inside = [k for k, each in enumerate(labels) if each != EMPTY]
    first, last = inside[0], inside[-1]
    if any(labels[k] != FULL for k in range(first + 1, last)):
        return None
    runs = [empty_to_full(tree.children[k], subset) for k in (first, last)]
    if None in runs:
        return None
    between = tree.children[first + 1 : last]
    pieces = (*runs[0], *between, *runs[1][::-1])
    return Q((*tree.children[:first], *pieces, *tree.children[last + 1 :]))


def empty_to_full(tree: Tree, subset: frozenset[int]) -> list[Tree] | None:
    """The pieces of a Q node that keeps the subset at its right end."""
    if label(tree, subset) != PARTIAL:
        return [tree]
    children = list(tree.children)
    if isinstance(tree, P):
        empty = with_label(children, subset, EMPTY)
        full = with_label(children, subset, FULL)
        partial = with_label(children, subset, PARTIAL)
        children = [group(each) for each in (empty, partial, full) if each]
        if len(partial) > 1:
            return None
    elif label(children[0], subset) == FULL or label(children[-1], subset) == EMPTY:
        children.reverse()
    labels = [label(child, subset) for child in children]
    if labels != sorted(labels, key=[EMPTY, PARTIAL, FULL].index):
        return None
    if labels.count(PARTIAL) > 1:
        return None
    runs = [empty_to_full(child, subset) for child in children]
    return None if None in runs else [piece for run in runs for piece in run]


def canonical(tree: Tree) -> str:
    """The tree as text, with the smallest leaves first as far as the tree allows."""
    if isinstance(tree, int):
        return str(tree)
    if isinstance(tree, P):
        words = (canonical(each) for each in sorted(tree.children, key=smallest))
        return "{" + " ".join(words) + "}"
    children = sorted(
        [tree.children, tree.children[::-1]], key=lambda each: smallest(each[0])
    )[0]
    return "[" + " ".join(map(canonical, children)) + "]"


def smallest(tree: Tree) -> int:
    return min(leaves(tree))


def count(tree: Tree) -> int:
    if isinstance(tree, int):
        return 1
    own = factorial(len(tree.children)) if isinstance(tree, P) else 2
    return own * prod(map(count, tree.children))


def orderings(tree: Tree) -> Iterator[tuple[int, ...]]:
    if isinstance(tree, int):
        yield (tree,)
        return
    ways = [tree.children, tree.children[::-1]]
    for way in itertools.permutations(tree.children) if isinstance(tree, P) else ways:
        for parts in itertools.product(*map(orderings, way)):
            yield tuple(itertools.chain(*parts))


def parse(text: str) -> Tree:
    """Parses the output of `canonical`."""
    stack: list[tuple[str, list[Tree]]] = [("", [])]
    for word in (
        text.replace("{", "{ ")
        .replace("[", "[ ")
        .replace("}", " }")
        .replace("]", " ]")
        .split()
    ):
        if word in "{[":
            stack.append((word, []))
        elif word in "}]":
            opened, children = stack.pop()
            stack[-1][1].append((P if opened == "{" else Q)(tuple(children)))
        else:
            stack[-1][1].append(int(word))
    ((_, (tree,)),) = stack
    return tree


def defining_subsets(tree: Tree) -> Iterator[list[int]]:
    """Subsets that reduce the universal tree to this one, lower nodes first."""
    if isinstance(tree, int):
        return
    for child in tree.children:
        yield from defining_subsets(child)
    if isinstance(tree, P):
        yield leaves(tree)
    else:
        for pair in itertools.pairwise(tree.children):
            yield leaves(P(pair))


class Permutations:
    """All orders of n leaves, for testing which keep a subset consecutive."""

    def __init__(self, n: int) -> None:
        orders = itertools.permutations(range(n))
        self.orders = np.array(list(orders), np.int8).reshape(factorial(n), n)
        self.number = {order: k for k, order in enumerate(map(tuple, self.orders))}
        self.all = np.ones(factorial(n), bool)

    def consecutive(self, subset: Iterable[int]) -> np.ndarray:
        """Whether each order keeps the subset consecutive; [n!] bool."""
        inside = np.isin(self.orders, list(subset))
        starts = inside[:, :1].sum(1) + (inside[:, 1:] & ~inside[:, :-1]).sum(1)
        return starts <= 1

    def of(self, orders: Iterable[tuple[int, ...]]) -> np.ndarray:
        """Mask of these orders, each of which may occur only once; [n!] bool."""
        found = np.zeros(len(self.orders), bool)
        for order in orders:
            assert not found[self.number[order]], "an order comes twice"
            found[self.number[order]] = True
        return found
