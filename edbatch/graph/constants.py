"""Constants in calls: Python's numbers, and when two static arguments are the same.

Python treats 2, 2.0 and True as equal, and also 0.0 and -0.0, but a cell may compute
different results for them. NaN, which is not equal to itself, is one constant.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from types import BuiltinFunctionType, FunctionType
from typing import Any

import jax
import numpy as np

PYTHON_NUMBERS = (bool, int, float, complex)
_LONG = 10**40  # larger integers are not printed: Python refuses thousands of digits
_INEXACT = (float, complex, np.inexact)
_NUMBERS = (*PYTHON_NUMBERS, np.number, np.bool_)
_NO_NUMBERS = (str, type, type(None), FunctionType, BuiltinFunctionType)
_MARKS: dict[Any, str] = dict.fromkeys(_NO_NUMBERS, "") | {int: "int", bool: "bool"}
_SEQUENCES, _SETS = (tuple, list), (set, frozenset)


def as_number(value: Any) -> Any:
    """Converts a number of a subclass, such as an ``IntEnum`` member, to a plain one.

    Args:
        value: A ``bool``, ``int``, ``float`` or ``complex``.

    Returns:
        The number, with exactly one of these types.

    Example:
        >>> from http import HTTPStatus
        >>> as_number(HTTPStatus.OK)
        200
    """
    base = next(each for each in PYTHON_NUMBERS if isinstance(value, each))
    return value if type(value) is base else base(value)


def does_not_fit(what: str, value: int, dtype: np.dtype) -> str:
    """Returns the message that JAX has no dtype for an integer, with the fix.

    Args:
        what: The beginning of the message, such as "cell 'embed' received".
        value: The number.
        dtype: The integer dtype that JAX converts it to.

    Returns:
        The message.
    """
    bits = 8 * dtype.itemsize
    fix = "; pass a float, or the number in several parts"
    if bits < 64:
        fix = (
            " here; enable jax_enable_x64, or make the numbers smaller outside of cells"
            " (hashes by %, ids by numbering what there is)"
        )
    shown = f"{value}" if -_LONG < value < _LONG else "an integer of very many digits"
    return (
        f"{what} {shown}, which does not fit {dtype}: JAX has integers of {bits} bits"
        f" at most{fix}"
    )


def constant_key(value: Any, around: tuple[Any, ...] = ()) -> Hashable:
    """Hash key that distinguishes 2, 2.0 and True, and treats NaN as equal to itself.

    Args:
        value: A static argument, hashable. Tuples, frozen sets and dataclasses are
            compared by their elements; other objects, and dataclasses with elements
            that have no hash, by their own ``==``.
        around: The dataclasses that contain the value.

    Returns:
        A dictionary key; unhashable if the argument is.

    Example:
        >>> 2 == 2.0, constant_key(2) == constant_key(2.0)
        (True, False)
    """
    kind = type(value)
    if isinstance(value, tuple):
        return kind, tuple(constant_key(each, around) for each in value)
    if isinstance(value, frozenset):
        return kind, frozenset(constant_key(each, around) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = _fields_key(value, around)
        return (kind, value) if fields is None else (kind, value, fields)
    if isinstance(value, _INEXACT):
        return kind, repr(value)
    return kind, value


def _fields_key(value: Any, around: tuple[Any, ...]) -> Hashable:
    """Returns the keys of a dataclass's fields; None if only its ``==`` can decide."""
    if any(each is value for each in around):
        return None  # it refers to itself
    names = [each.name for each in dataclasses.fields(value) if each.compare]
    inside = (*around, value)
    try:
        keys = tuple(constant_key(getattr(value, name), inside) for name in names)
        hash(keys)
    except (AttributeError, TypeError):  # a field is not set, or has no hash
        return None
    return keys


class Constant:
    """A static argument that is compared by its `constant_key`.

    Args:
        value: The argument's value.
        key: Its key.
    """

    __slots__ = ("key", "value")

    def __init__(self, value: Any, key: Hashable) -> None:
        self.value = value
        self.key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def with_constants(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that takes `Constant` objects instead of their values.

    Args:
        function: The function.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        named = {name: _value_of(each) for name, each in kwargs.items()}
        return function(*map(_value_of, args), **named)

    return call


def _value_of(argument: Any) -> Any:
    return argument.value if isinstance(argument, Constant) else argument


def structure_key(treedef: jax.tree_util.PyTreeDef) -> Hashable:
    """Hash key of a structure that distinguishes 2, 2.0 and True in static fields.

    Args:
        treedef: The structure of a pytree.

    Returns:
        A dictionary key; the structure itself if it has neither static fields nor dict
        keys that are not strings.

    Example:
        >>> treedef = jax.tree.structure((1, [2]))
        >>> structure_key(treedef) is treedef
        True
    """
    fields = []
    for of_node in _static_data(treedef):
        with suppress(TypeError):  # without a hash: compared by ==, as JAX does
            key = constant_key(of_node)
            hash(key)
            fields.append(key)
    return (treedef, *fields) if fields else treedef


def number_marks(treedef: jax.tree_util.PyTreeDef) -> tuple[str, ...]:
    """Describes the numbers in a structure beyond what ``==`` of structures compares.

    It serves parameters and outputs as `structure_key` serves arguments of cells: with
    the structure, it distinguishes 2, 2.0 and True. But it is shorter, faster to
    compute, and consists of strings, which can be pickled.

    Args:
        treedef: The structure of a pytree.

    Returns:
        A string for each number in a static field or a dict key; empty if there are no
        such numbers.

    Example:
        >>> one, other = (jax.tree.structure({key: 0.5}) for key in (1, True))
        >>> one == other, number_marks(one), number_marks(other)
        (True, ('int',), ('bool',))
    """
    marks: list[str] = []
    for of_node in _static_data(treedef):
        _mark_numbers(of_node, marks, ())
    return tuple(marks)


def _static_data(treedef: jax.tree_util.PyTreeDef) -> Iterator[Any]:
    """Yields the static fields of each node, and dict keys unless all are strings."""
    waiting = [treedef]
    while waiting:
        each = waiting.pop()
        found = each.node_data()
        if found is None:
            continue
        of_node = found[1]
        if found[0] is dict:  # its keys, in order
            named = all(isinstance(key, str) for key in of_node)
            of_node = None if named else tuple(of_node)
        if of_node is not None:
            yield of_node
        if each.num_nodes > each.num_leaves + 1:  # otherwise all children are leaves
            waiting.extend(each.children())


def _mark_numbers(value: Any, marks: list[str], around: tuple[Any, ...]) -> None:
    kind = type(value)
    if kind in _SEQUENCES or isinstance(value, _SEQUENCES):
        for each in value:  # the most frequent types are handled without a call
            if (mark := _MARKS.get(type(each))) is None:
                _mark_numbers(each, marks, around)
            elif mark:
                marks.append(mark)
    elif isinstance(value, _NUMBERS):
        name = kind.__name__  # NumPy's bool has the same name as Python's
        name = name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"
        marks.append(f"{name} {value!r}" if isinstance(value, _INEXACT) else name)
    elif isinstance(value, _SETS):  # equal sets may differ in order
        inside: list[str] = []
        for each in value:
            _mark_numbers(each, inside, around)
        marks.extend(sorted(inside))
    elif hasattr(kind, "__dataclass_fields__"):
        if any(each is value for each in around):
            return  # it refers to itself
        for field in dataclasses.fields(value):
            if field.compare:
                part = getattr(value, field.name, None)
                _mark_numbers(part, marks, (*around, value))
