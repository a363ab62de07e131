"""A warning for cells that are called with lists of many lengths."""

import warnings
from collections.abc import Iterable
from typing import Any

import jax

from edbatch.errors import ManyTypesWarning, user_line
from edbatch.graph.cell import Cell

MANY = 8  # lengths of one list, each of which makes a type


class ListLengths:
    """The lengths of lists that cells of one model were called with."""

    def __init__(self) -> None:
        self._lengths: dict[tuple[str, str], dict[str, set[int]]] = {}
        self._warned: set[tuple[str, str]] = set()

    def add(self, cell: Cell, path: str, treedef: Any) -> None:
        """Notes the call of a new type, and warns once if a list has many lengths.

        Args:
            cell: The cell.
            path: The parameters that it is called with.
            treedef: Structure of its ``(args, kwargs)``.
        """
        lists = dict(_lists(cell, treedef))
        key = cell.name, path
        if not lists or key in self._warned:
            return
        known = self._lengths.setdefault(key, {})
        for name, length in lists.items():
            lengths = known.setdefault(name, set())
            lengths.add(length)
            if len(lengths) == MANY:
                self._warned.add(key)
                _warn(cell, name, lengths)


def _lists(cell: Cell, treedef: Any) -> Iterable[tuple[str, int]]:
    """Finds the lists among the arguments of a call: their names and lengths."""
    args, kwargs = jax.tree.unflatten(treedef, range(treedef.num_leaves))
    names = dict(zip(cell.positions, args, strict=False)) | kwargs
    for name, value in names.items():
        if isinstance(value, list) and name not in cell.padded:
            yield name, len(value)


def _warn(cell: Cell, name: str, lengths: Iterable[int]) -> None:
    shown = ", ".join(map(str, sorted(lengths)))
    padded = (*cell.padded, name)
    mask = "mask" if len(padded) == 1 else f"{name}_mask"
    warnings.warn(
        f"each length of a list that a cell is called with makes a type of its own,"
        f" which is compiled by itself and shares no batch with the others, and cell"
        f" {cell.name!r} was called with {name!r} of {shown} elements ({user_line()});"
        f" declare the list as padded, @eb.cell(padded={padded!r}), and give the"
        f" function an argument {mask!r}",
        ManyTypesWarning,
        stacklevel=2,
    )
