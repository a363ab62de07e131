"""The loops of a program: what one compiled loop body can run."""

from collections.abc import Iterable
from typing import NamedTuple


class Loop(NamedTuple):
    """One loop of a program; one iteration per chunk of its kind.

    Attributes:
        type_id: Type of the nodes.
        width: Rows of a chunk.
        sliced: Operand slots that it reads as one slice of an arena; the others are
            gathered row by row.
    """

    type_id: int
    width: int
    sliced: tuple[int, ...] = ()


def order_loops(loops: Iterable[Loop]) -> tuple[Loop, ...]:
    """Returns the order of a program's loops: by type, slices, then wide chunks first.

    Args:
        loops: The loops.

    Returns:
        Each of them once.

    Example:
        >>> [each.width for each in order_loops([Loop(0, 4), Loop(0, 8), Loop(0, 4)])]
        [8, 4]
    """
    return tuple(
        sorted(set(loops), key=lambda each: (each.type_id, each.sliced, -each.width))
    )
