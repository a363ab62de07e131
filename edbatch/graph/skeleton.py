"""Skeletons: the structure of a model's result, as nested tuples.

* ``("value", kind)``: a node's output; ``("external", kind)``: a concrete array;
* ``("node", treedef, children, marks)``: a tuple, dict or other pytree node, with its
  `number_marks`;
* ``("list", child)``: a Python list, whose elements all have the same skeleton. Its
  length may vary between instances, so lengths are stored separately, in a column of
  lengths, and a result has a `Ragged` for the list, even if a minibatch has only lists
  of equal length;
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
    """Finds the common skeleton of two outputs; lists may be empty in either of them.

    Args:
        first: A skeleton.
        second: Another skeleton.

    Returns:
        The common skeleton.

    Raises:
        Mismatch: There is none.

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
    """Tells whether two pytree nodes are the same, apart from their children."""
    return bool(first[1] == second[1] and first[3] == second[3])


def walk(skeleton: Skeleton) -> Iterator[Skeleton]:
    """Yields the parts of a skeleton depth first, in the order of its columns."""
    yield skeleton
    if skeleton[0] == "node":
        for each in skeleton[2]:
            yield from walk(each)
    elif skeleton[0] == "list":
        yield from walk(skeleton[-1])


def describe(skeleton: Skeleton, avals: Sequence[Aval]) -> str:
    """Formats a skeleton for a message.

    Args:
        skeleton: The structure.
        avals: Shape and dtype of each array kind.

    Returns:
        The structure with the shape and dtype of each leaf. Leaves that no cell
        computed are marked as inputs.

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
