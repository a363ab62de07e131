"""The loops of a program; each has one compiled body."""

from collections.abc import Iterable
from typing import NamedTuple


class Loop(NamedTuple):
    """One loop of a program, which runs one iteration per chunk of its kind.

    Attributes:
        type_id: Type of the nodes.
        width: Rows of a chunk.
        sliced: Operand slots that the loop reads as one slice of an arena; it gathers
            the others row by row.
    """

    type_id: int
    width: int
    sliced: tuple[int, ...] = ()


def order_loops(loops: Iterable[Loop]) -> tuple[Loop, ...]:
    """Sorts loops into program order: by type, slices, then wide chunks first.

    Args:
        loops: The loops.

    Returns:
        The loops in order, without duplicates.

    Example:
        >>> [each.width for each in order_loops([Loop(0, 4), Loop(0, 8), Loop(0, 4)])]
        [8, 4]
    """
    return tuple(
        sorted(set(loops), key=lambda each: (each.type_id, each.sliced, -each.width))
    )
