"""Skeletons: the structure of what a model returns, as nested tuples.

* ``("value", kind)``: a node's output; ``("external", kind)``: a concrete array;
* ``("node", treedef, children, marks)``: a tuple, dict or other pytree node, with its
  `number_marks`;
* ``("list", child)``: a Python list, whose elements are all alike. Its length may vary
  between instances, so it is kept apart, in a column of lengths, and a result has a
  `Ragged` for it, whatever the lengths are in a minibatch;
* ``("empty",)``: the element of a list that was always empty.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax

from edbatch.graph.node_type import Aval

Skeleton = tuple[Any, ...]
EMPTY: Skeleton = ("empty",)


class Mismatch(Exception):
    """Two skeletons differ."""


def unify(first: Skeleton, second: Skeleton) -> Skeleton:
    """Finds the common skeleton of two outputs; lists may have been empty in one.

    Args:
        first: A skeleton.
        second: Another.

    Returns:
        The skeleton that both have.

    Raises:
        Mismatch: They have none.

    Example:
        >>> unify(("list", EMPTY), ("list", ("value", 0)))
        ('list', ('value', 0))
    """
    if first is second or first == second or second == EMPTY:
        return first
    if first == EMPTY:
        return second
    if first[0] == second[0] == "list":
        return ("list", unify(first[1], second[1]))
    if first[0] == second[0] == "node" and are_alike(first, second):
        pairs = zip(first[2], second[2], strict=True)
        return (*first[:2], tuple(unify(a, b) for a, b in pairs), first[3])
    raise Mismatch


def are_alike(first: Skeleton, second: Skeleton) -> bool:
    """Tells whether two pytree nodes have one structure, their children aside."""
    return bool(first[1] == second[1] and first[3] == second[3])


def walk(skeleton: Skeleton) -> Iterator[Skeleton]:
    """Lists the parts of a skeleton depth first, in the order of its columns."""
    yield skeleton
    if skeleton[0] == "node":
        for each in skeleton[2]:
            yield from walk(each)
    elif skeleton[0] == "list":
        yield from walk(skeleton[-1])


def describe(skeleton: Skeleton, avals: Sequence[Aval]) -> str:
    """Writes a skeleton for a message.

    Args:
        skeleton: The structure.
        avals: Shape and dtype of each array kind.

    Returns:
        The structure with a shape and dtype for each leaf. Leaves that no cell
        computed are said to be inputs.

    Example:
        >>> import numpy as np
        >>> avals = [Aval((2, 3), np.dtype("float32"))]
        >>> describe(("list", ("value", 0)), avals)
        '[float32[2, 3], ...]'
        >>> describe(("external", 0), avals)
        'input float32[2, 3]'
    """
    if skeleton[0] == "list":
        return f"[{describe(skeleton[1], avals)}, ...]"
    if skeleton[0] == "node":
        children = [describe(each, avals) for each in skeleton[2]]
        return str(jax.tree.unflatten(skeleton[1], children)).replace("'", "")
    if skeleton == EMPTY:
        return "*"
    kind = avals[skeleton[1]]
    return str(kind) if skeleton[0] == "value" else f"input {kind}"
