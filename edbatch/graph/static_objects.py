"""A warning for cells that receive static arguments which the model makes anew."""

import functools
import warnings
from collections.abc import Iterator
from typing import Any

import jax

from edbatch.errors import ManyTypesWarning, user_line
from edbatch.graph.cell import Cell
from edbatch.graph.node_type import CallTemplate

MANY = 8  # objects of one definition, each of which makes a type


class StaticObjects:
    """Static arguments that equal nothing but themselves, such as functions."""

    def __init__(self) -> None:
        # By cell, parameters, argument and definition; types keep the objects alive.
        self._objects: dict[tuple[str, str, str, Any], set[int]] = {}

    def add(self, cell: Cell, path: str, template: CallTemplate) -> None:
        """Notes the call of a new type, and warns once if an argument had many objects.

        Args:
            cell: The cell.
            path: The parameters that it is called with.
            template: How it is called.
        """
        for name, value in _static_arguments(cell, template):
            if getattr(type(value), "__eq__", None) is not object.__eq__:
                continue
            key = cell.name, path, name, _definition(value)
            known = self._objects.setdefault(key, set())
            if id(value) not in known:
                known.add(id(value))
                if len(known) == MANY:
                    _warn(cell, name, value)


def _static_arguments(cell: Cell, template: CallTemplate) -> Iterator[tuple[str, Any]]:
    """Gives each static leaf of a call, with the name of the argument that has it."""
    if all(kind != "static" for kind, _ in template.leaves):
        return
    numbers = range(len(template.leaves))
    args, kwargs = jax.tree.unflatten(template.treedef, numbers)
    names = [*cell.positions, *[f"*{cell.variadic}"] * len(args)]
    for name, argument in [*zip(names, args, strict=False), *kwargs.items()]:
        for number in jax.tree.leaves(argument):
            kind, value = template.leaves[number]
            if kind == "static":
                yield name, value


def _definition(value: Any) -> Any:
    """What objects have in common that one place in a program makes again and again."""
    while isinstance(value, functools.partial):
        value = value.func
    return getattr(value, "__code__", type(value))


def _warn(cell: Cell, name: str, value: Any) -> None:
    shown = getattr(value, "__qualname__", type(value).__qualname__)
    warnings.warn(
        "each object that a cell receives as a static argument makes a type of its own,"
        f" which is compiled by itself and shares no batch with the others, and cell"
        f" {cell.name!r} received {MANY} different objects {shown} as {name!r}"
        f" ({user_line()}), as from a model that makes one in each call; make it once,"
        " outside the model, and pass what differs as an argument",
        ManyTypesWarning,
        stacklevel=2,
    )
