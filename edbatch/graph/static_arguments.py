"""Warning for cells whose static arguments make many types.

Such arguments are objects that the model creates again in each call, and numbers with
many values.
"""

import functools
import warnings
from collections.abc import Collection, Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from types import FunctionType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np

from edbatch.errors import ManyTypesWarning, user_line
from edbatch.graph.cell import Cell
from edbatch.graph.many_values import ManyValues
from edbatch.graph.node_type import CallTemplate
from edbatch.graph.reference import reference

# Number of objects of one definition at which to warn; each makes a type. Legitimate
# tables of such objects are shorter.
MANY = 32
_NUMBERS = (int, float, np.integer, np.floating)


class StaticArguments:
    """The static arguments that cells of one model were called with.

    It counts objects that are equal only to themselves, such as functions, and numbers
    if one instance after the other brings new ones.
    """

    def __init__(self) -> None:
        # By cell, parameters, argument and definition. Types keep the objects alive.
        self._objects: dict[tuple[str, str, str, Any], set[int]] = {}
        self._numbers: dict[tuple[Cell, str, str], ManyValues] = {}

    def add(self, cell: Cell, path: str, template: CallTemplate, by: Any) -> None:
        """Records the call of a new type; warns once if an argument had many values.

        Args:
            cell: The cell.
            path: Path of the parameters that it is called with.
            template: The template of the call.
            by: The recorder of the calling instance.
        """
        for name, value in _static_arguments(cell, template):
            if isinstance(value, _NUMBERS) and not isinstance(value, bool | Enum):
                numbers = self._numbers.setdefault((cell, path, name), ManyValues())
                if numbers.add(value, by):
                    _warn_of_numbers(cell, name, numbers.values)
                continue
            for each in _nameless(value):
                key = cell.name, path, name, _definition(each)
                known = self._objects.setdefault(key, set())
                if id(each) not in known:
                    known.add(id(each))
                    if len(known) == MANY:
                        _warn(cell, name, each)


def _static_arguments(cell: Cell, template: CallTemplate) -> Iterator[tuple[str, Any]]:
    """Yields each static leaf of a call, with the name of its argument."""
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


def _nameless(value: Any) -> Iterator[Any]:
    """Yields parts of a value that equal only themselves and cannot be imported."""
    if isinstance(value, tuple | frozenset):
        for each in value:
            yield from _nameless(each)
    elif isinstance(value, MethodType):  # equal if function and object are equal
        yield from _nameless(value.__self__)
    elif getattr(type(value), "__eq__", None) is not object.__eq__:
        if is_dataclass(value):
            for own in fields(value):
                yield from _nameless(getattr(value, own.name, None))
    elif not isinstance(value, type | ModuleType | Enum) and not _has_name(value):
        yield value


def _has_name(value: Any) -> bool:
    try:
        return reference(value) is not None
    except Exception:  # raised by the object's own `__getattr__`
        return False


def _definition(value: Any) -> Any:
    """Returns a key shared by the objects that one place in a program creates."""
    while isinstance(value, functools.partial):
        value = value.func
    return value.__code__ if isinstance(value, FunctionType) else type(value)


def _warn(cell: Cell, name: str, value: Any) -> None:
    named = value if isinstance(value, FunctionType) else type(value)
    warnings.warn(
        "each object that a cell receives as a static argument makes a separate node"
        " type, which is compiled separately and never batched with the others, and"
        f" cell {cell.name!r} received {MANY} different objects {named.__qualname__} as"
        f" {name!r} ({user_line()}), probably because the model makes one in each call;"
        " make such objects once, outside the model, and pass the values that differ as"
        " arguments",
        ManyTypesWarning,
        stacklevel=2,
    )


def _warn_of_numbers(cell: Cell, name: str, values: Collection[Any]) -> None:
    shown = ", ".join(map(str, sorted(values)[:4]))
    warnings.warn(
        "each value of a static argument makes a separate node type, which is compiled"
        f" separately and never batched with the others, and cell {cell.name!r}"
        f" received {len(values)} different numbers as {name!r} ({shown}, ...;"
        f" {user_line()}); leave numbers that the cell computes with out of static=, so"
        " that they are ordinary inputs; round sizes to a few values, and pad to them",
        ManyTypesWarning,
        stacklevel=2,
    )
