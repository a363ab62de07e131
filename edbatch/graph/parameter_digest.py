"""Hash of the parameters' structure, to check batches recorded in other processes."""

import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import jax
import numpy as np

from edbatch.graph.reference import reference

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.dtype, np.generic)
_Known = dict[tuple[int, int], tuple[str, Any]]  # (id, depth) -> (text, object)
_LONGEST = 1000  # characters
_DEEPEST = 20  # nesting of static values; deeper or circular ones count by class only


def parameter_digest(spec: Any) -> str:
    """Hashes a structure of parameters, to the same value in all processes.

    The hash covers names, shapes and dtypes of arrays. Of everything else, such as
    static fields, it covers the parts that have a name or a value: numbers, strings,
    enums, functions of a module, ``functools.partial`` of these, and tuples, lists,
    dicts (in any order of their keys), sets and dataclasses of all of them. Of other
    objects, such as a lambda, it covers the class.

    Args:
        spec: The structure, with ``jax.ShapeDtypeStruct`` leaves.

    Returns:
        64 hexadecimal digits.

    Example:
        >>> one = {"w": jax.ShapeDtypeStruct((2, 3), "float32")}
        >>> parameter_digest(one) == parameter_digest({"v": one["w"]})
        False
    """
    leaves, treedef = jax.tree_util.tree_flatten_with_path(spec)
    arrays = [
        ([_step_text(step) for step in path], each.shape, str(each.dtype))
        for path, each in leaves
    ]
    text = repr((arrays, list(_nodes(treedef, {}))))
    return hashlib.sha256(text.encode()).hexdigest()


def _nodes(treedef: Any, known: _Known) -> Iterator[str]:
    """Yields the static data of each node, except for Python's containers."""
    data = treedef.node_data()
    if data is not None and not issubclass(data[0], Mapping | list | tuple):
        yield _text(data, _DEEPEST, known)
    for each in treedef.children():
        yield from _nodes(each, known)


def _text(value: Any, depth: int, known: _Known) -> str:
    """Describes a value; shared parts are described once."""
    place = id(value), depth
    if place not in known:
        known[place] = _described(value, depth, known), value  # reserves the id
    return known[place][0]


def _described(value: Any, depth: int, known: _Known) -> str:
    kind = type(value)

    def texts(parts: Iterable[Any]) -> list[str]:
        return [_text(each, depth - 1, known) for each in parts]

    def joined(parts: Iterable[Any]) -> str:
        return _short(", ".join(texts(parts)))

    if isinstance(value, Enum):
        return f"{kind.__qualname__}.{value.name}"
    if isinstance(value, _PLAIN):
        return f"{kind.__name__} {value!r}"
    if depth:
        if isinstance(value, tuple | list):
            return f"{kind.__qualname__}({joined(value)})"
        if isinstance(value, set | frozenset):
            return f"{kind.__qualname__}({_short(', '.join(sorted(texts(value))))})"
        if isinstance(value, Mapping):
            items = ", ".join(sorted(texts(value.items())))
            return f"{kind.__qualname__}({_short(items)})"
        if isinstance(value, functools.partial):
            parts = value.func, value.args, value.keywords
            return f"{kind.__qualname__}({joined(parts)})"
        if is_dataclass(kind):
            own = (getattr(value, each.name, None) for each in fields(value))
            return f"{kind.__qualname__}({joined(own)})"
    return str(_name(value) or f"{kind.__module__}.{kind.__qualname__}")


def _short(text: str) -> str:
    """Returns the text, or its hash if it is long: shared parts multiply the length."""
    if len(text) <= _LONGEST:
        return text
    return hashlib.sha256(text.encode()).hexdigest()


def _name(value: Any) -> tuple[str, str] | None:
    try:
        return reference(value)
    except Exception:  # raised by the object's own `__getattr__`
        return None


def _step_text(step: Any) -> str:
    for name in ("key", "idx", "name"):
        value = getattr(step, name, None)
        if isinstance(value, str | int):
            return repr(value)
    return type(step).__name__
