"""Describes exceptions raised inside a cell, in one line.

The caller of a cell gets an edbatch error, whose first line must be enough: it says
which line raised, and for a missing key the nearest existing one.
"""

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

from edbatch.errors import CellError, nearest, raising_frame, raising_line, shown

_DEEPEST = 5  # nesting depth to which containers are searched for keys


def describe_fault(error: Exception) -> str:
    r"""Describes an exception that a cell's function raised.

    Args:
        error: The exception, with its traceback.

    Returns:
        Its type and message, and the innermost line outside of edbatch and JAX; for a
        missing key of a dict also the nearest existing key.

    Example:
        >>> describe_fault(ValueError("too short\nby one"))
        'ValueError: too short'
    """
    text = f"{type(error).__name__}: {_first_line(error)}"
    frame, _, is_last = raising_frame(error)
    if frame is None:
        return text
    place = raising_line(error)
    if type(error) is not KeyError or not error.args:
        return f"{text} ({place})"
    key = error.args[0]
    text = f"KeyError: there is no key {shown(key)} ({place})"
    # A key that a library looks up in its own dicts says nothing about the user's.
    known = _keys_beside(frame, key) if is_last else set()
    return f"{text}, {nearest(str(key), known)}" if known else text


def _keys_beside(frame: FrameType, key: Any) -> set[str]:
    """Returns the keys of dicts that a frame's code can name and that lack ``key``."""
    names = frame.f_code.co_names
    found = {**frame.f_locals}
    found |= {name: frame.f_globals[name] for name in names if name in frame.f_globals}
    return {
        str(each)
        for value in found.values()
        for mapping in _mappings(value, _DEEPEST)
        if key not in mapping
        for each in mapping
    }


def _mappings(value: Any, depth: int) -> Iterator[Mapping[Any, Any]]:
    if isinstance(value, Mapping):
        yield value
    if depth and isinstance(value, Mapping | list | tuple):
        parts = value.values() if isinstance(value, Mapping) else value
        for each in parts:
            yield from _mappings(each, depth - 1)


def is_of_user(error: Exception) -> bool:
    """Whether user code raised an error, for example in a differentiation rule."""
    return raising_frame(error)[0] is not None


def without_derivative(
    name: str, function: Callable[..., Any], error: Exception
) -> CellError:
    """Creates the error for a cell that JAX cannot differentiate.

    Args:
        name: The cell's name.
        function: The cell's function.
        error: The exception, raised by JAX or by a user's differentiation rule.

    Returns:
        The error, which names the cell and where its function is defined.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    where = ""  # for built-in functions
    if code is not None:
        where = f" ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"
    fix = (
        "use only operations that jax.grad supports in the cell, or wrap the others in"
        " jax.lax.stop_gradient"
    )
    if is_of_user(error):
        fix = "this was raised by a rule of differentiation that the cell calls"
    return CellError(
        f"cell {name!r}{where} cannot be differentiated: {describe_fault(error)}; {fix}"
    )


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else "no message"
