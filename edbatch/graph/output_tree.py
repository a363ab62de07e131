"""What models return: its structure once, and flat columns of values per instance.

A model returns a pytree of handles. The structure is described by nested tuples:

* ``("value", kind)``: a node's output; ``("external", kind)``: a concrete array;
* ``("node", treedef, children)``: a tuple, dict or other pytree node;
* ``("list", child)``: a Python list whose elements are all alike. Its length may vary
  between instances, so it is kept apart, in a column of lengths.

Every leaf has a column that holds its values for all instances (and all elements of
the lists around it) one after the other, so merging graphs concatenates columns.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from edbatch.errors import RecordingError

Skeleton = tuple[Any, ...]
EMPTY: Skeleton = ("empty",)  # the element of a list that was always empty


@dataclass(frozen=True)
class Outputs:
    """Outputs of all instances of a graph.

    Attributes:
        skeleton: Their common structure.
        columns: One ``[n] int32`` array per leaf in depth-first order: value ids, or
            rows of external inputs.
        lengths: One ``[m] int32`` array per ``"list"`` in depth-first order.
    """

    skeleton: Skeleton
    columns: tuple[np.ndarray, ...]
    lengths: tuple[np.ndarray, ...]


def count(skeleton: Skeleton) -> tuple[int, int]:
    """Counts the columns and the length columns of a structure.

    Args:
        skeleton: A structure.

    Returns:
        Number of leaves and of ``"list"`` nodes.

    Example:
        >>> count(("list", ("value", 0)))
        (1, 1)
    """
    if skeleton[0] == "list":
        columns, lengths = count(skeleton[1])
        return columns, lengths + 1
    if skeleton[0] == "node":
        counts = [count(each) for each in skeleton[2]]
        return sum(each[0] for each in counts), sum(each[1] for each in counts)
    return (0, 0) if skeleton == EMPTY else (1, 0)


def leaves(skeleton: Skeleton) -> list[Skeleton]:
    """Lists the leaves of a structure in the order of its columns.

    Args:
        skeleton: A structure.

    Returns:
        ``("value", kind)`` and ``("external", kind)`` tuples.

    Example:
        >>> leaves(("list", ("value", 3)))
        [('value', 3)]
    """
    if skeleton[0] == "list":
        return leaves(skeleton[1])
    if skeleton[0] == "node":
        return [leaf for each in skeleton[2] for leaf in leaves(each)]
    return [] if skeleton == EMPTY else [skeleton]


class Mismatch(Exception):
    """Two structures differ."""


def unify(first: Skeleton, second: Skeleton) -> Skeleton:
    """Finds the common structure of two outputs; lists may have been empty in one.

    Args:
        first: A structure.
        second: Another.

    Returns:
        The structure that both have.

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
    if first[0] == second[0] == "node" and first[1] == second[1]:
        pairs = zip(first[2], second[2], strict=True)
        return ("node", first[1], tuple(unify(a, b) for a, b in pairs))
    raise Mismatch


def spread(
    outputs: Outputs, skeleton: Skeleton
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Aligns the columns of outputs with a wider common structure.

    Args:
        outputs: Outputs whose structure was unified into ``skeleton``.
        skeleton: The wider structure.

    Returns:
        Columns and length columns of the wider structure, empty where it was empty.
    """
    columns: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    own_columns, own_lengths = iter(outputs.columns), iter(outputs.lengths)
    nothing = np.zeros(0, np.int32)

    def walk(own: Skeleton, wide: Skeleton) -> None:
        if own == EMPTY:
            num_columns, num_lengths = count(wide)
            columns.extend([nothing] * num_columns)
            lengths.extend([nothing] * num_lengths)
        elif own[0] == "list":
            lengths.append(next(own_lengths))
            walk(own[1], wide[1])
        elif own[0] == "node":
            for one, other in zip(own[2], wide[2], strict=True):
                walk(one, other)
        else:
            columns.append(next(own_columns))

    walk(outputs.skeleton, skeleton)
    return columns, lengths


def unify_outputs(first: Skeleton, second: Skeleton) -> Skeleton:
    """As `unify`, with an error for users.

    Args:
        first: Structure of some instances' outputs.
        second: Structure of another's.

    Returns:
        The common structure.

    Raises:
        RecordingError: There is none.
    """
    try:
        return unify(first, second)
    except Mismatch:
        raise RecordingError(
            "the model returns outputs of different structure, shape or dtype for"
            f" different instances: {_describe(first)} and {_describe(second)}; return"
            " the same pytree for every instance (only lists may differ in length)"
        ) from None


def _describe(skeleton: Skeleton) -> str:
    if skeleton[0] == "list":
        return f"[{_describe(skeleton[1])}, ...]"
    if skeleton[0] == "node":
        children = [_describe(each) for each in skeleton[2]]
        return str(jax.tree.unflatten(skeleton[1], children)).replace("'", "")
    return "*" if skeleton == EMPTY else f"{skeleton[0]} of kind {skeleton[1]}"
