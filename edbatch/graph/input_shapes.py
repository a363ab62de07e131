"""Warning for cells that are called with input arrays of many shapes."""

import warnings
from collections.abc import Sequence
from typing import Any

from edbatch.errors import ManyTypesWarning, user_line
from edbatch.graph.cell import Cell
from edbatch.graph.many_values import ManyValues

_SHOWN = 4  # maximum number of shapes in a message

Shape = tuple[int, ...]


class InputShapes:
    """Shapes of the external input arrays that a model's cells were called with."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[Cell, str, Any], ManyValues] = {}

    def add(
        self, cell: Cell, path: str, treedef: Any, shapes: Sequence[Shape], by: Any
    ) -> None:
        """Records the call of a new type; warns once if there were many shapes.

        Args:
            cell: The cell.
            path: Path of the parameters that it is called with.
            treedef: Structure of its ``(args, kwargs)``.
            shapes: Shape per external slot.
            by: Recorder of the calling instance.
        """
        if not any(shapes):  # only numbers
            return
        known = self._shapes.setdefault((cell, path, treedef), ManyValues())
        if known.add(tuple(shapes), by):
            _warn(cell, known)


def _warn(cell: Cell, known: ManyValues) -> None:
    arrays = sorted({each for shapes in known.values for each in shapes if each})
    shown = ", ".join(str([*each]) for each in arrays[:_SHOWN])
    warnings.warn(
        "each shape of the arrays that a cell is called with makes a separate node"
        " type, which is compiled separately and never batched with the others, and"
        f" cell {cell.name!r} was called with arrays of {len(known.values)} different"
        f" shapes ({shown}, ...; {user_line()}); pad them to a few shapes, together"
        " with a mask or a length, or pass their elements as a list that is declared as"
        " padded",
        ManyTypesWarning,
        stacklevel=2,
    )
