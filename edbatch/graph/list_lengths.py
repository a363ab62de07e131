"""Warning for cells that are called with lists of many lengths."""

import warnings
from collections.abc import Iterable
from typing import Any

import jax

from edbatch.errors import ManyTypesWarning, user_line
from edbatch.graph.cell import Cell

MANY = 8  # number of lengths of one list at which to warn; each makes a type


class ListLengths:
    """The lengths of lists that a model's cells were called with."""

    def __init__(self) -> None:
        self._lengths: dict[tuple[str, str], dict[str, set[int]]] = {}
        self._warned: set[tuple[str, str]] = set()

    def add(self, cell: Cell, path: str, treedef: Any) -> None:
        """Records the call of a new type; warns once if a list has many lengths.

        Args:
            cell: The cell.
            path: Path of the parameters that it is called with.
            treedef: Structure of its ``(args, kwargs)``.
        """
        lists = _lists(cell, treedef)
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


def _lists(cell: Cell, treedef: Any) -> dict[str, int]:
    """Finds the lists among the arguments of a call: names and lengths.

    A list within an argument is named by its position, such as ``"both[1]"``; the
    arguments that a function takes as ``*more`` are a list of that name.
    """
    args, kwargs = jax.tree.unflatten(treedef, range(treedef.num_leaves))
    fixed = list(cell.positions)
    named = dict(zip(fixed, args, strict=False)) | kwargs
    found: dict[str, int] = {}
    for name, value in named.items():
        if name not in cell.padded:
            _add_lists(found, name, value)
    if cell.variadic is not None:
        found[f"*{cell.variadic}"] = len(args[len(cell.positions) :])
    return found


def _add_lists(found: dict[str, int], name: str, value: Any) -> None:
    """Adds a value if it is a list, otherwise the lists within it."""
    if isinstance(value, list):
        found[name] = len(value)
        return
    below = jax.tree_util.tree_flatten_with_path(
        value, is_leaf=lambda each: isinstance(each, list)
    )[0]
    for path, leaf in below:
        if isinstance(leaf, list):
            found[f"{name}{jax.tree_util.keystr(path)}"] = len(leaf)


def _warn(cell: Cell, name: str, lengths: Iterable[int]) -> None:
    shown = ", ".join(map(str, sorted(lengths)))
    if name.isidentifier():
        padded = (*cell.padded, name)
        mask = "mask" if len(padded) == 1 else f"{name}_mask"
        fix = (
            f"declare the list as padded, @eb.cell(padded={padded!r}), and give the"
            f" function an argument {mask!r}"
        )
    else:
        fix = (
            "give the list an argument of its own, which can be declared as padded, as"
            " in @eb.cell(padded=('items',)), and the function one for its mask"
        )
    warnings.warn(
        "each length of a list that a cell is called with makes a separate node type,"
        " which is compiled separately and never batched with the others, and cell"
        f" {cell.name!r} was called with {name!r} of {shown} elements ({user_line()});"
        f" {fix}",
        ManyTypesWarning,
        stacklevel=2,
    )
