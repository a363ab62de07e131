"""Checks of the types and values of options that users pass.

Each ``check_`` function raises the error type given by its caller, with a message of
one sentence. NumPy scalars count as numbers; `True` does not.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from edbatch.errors import EdbatchError, nearest, shown

Called = TypeVar("Called", bound=Callable[..., Any])

_LONGEST_PATH = 4096  # characters that operating systems accept
_TEXT = (
    "usually a string from a file or a command line, or the value of another argument"
)


def is_real(value: object) -> bool:
    """Returns whether a value is a number, including infinity and NaN.

    Example:
        >>> is_real(math.nan), is_real(np.float32(2)), is_real(True)
        (True, True, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Returns whether a value is a finite number.

    Example:
        >>> is_number(np.float32(2)), is_number("2"), is_number(True)
        (True, False, False)
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False


def is_whole(value: object) -> bool:
    """Returns whether a value is a whole number.

    Example:
        >>> is_whole(np.int64(2)), is_whole(2.0), is_whole(True)
        (True, False, False)
    """
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_positive(value: object) -> bool:
    """Returns whether a value is a number above zero, including infinity.

    Example:
        >>> is_positive(math.inf), is_positive(0), is_positive("1")
        (True, False, False)
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return value == value and not value <= 0  # NaN is not equal to itself


def check_number(
    error: type[EdbatchError],
    name: str,
    value: object,
    least: float = -math.inf,
    *,
    whole: bool = False,
) -> None:
    """Checks that an option is a number.

    Args:
        error: The error type to raise.
        name: The option, as the subject of a sentence.
        value: Its value.
        least: The smallest allowed value.
        whole: Whether it must be a whole number.

    Raises:
        EdbatchError: The value is not such a number; raised as `error`.

    Example:
        >>> check_number(EdbatchError, "width", 3, 1, whole=True)
    """
    right = is_whole(value) if whole else is_number(value)
    if not (right and isinstance(value, Real) and not value < least):
        kind = "a whole number" if whole else "a finite number"
        limit = "" if least == -math.inf else f", {least} or more,"
        found = f"{_typed(value)}; {_TEXT}"
        if right or is_real(value):
            found = f"{shown(value)}; give another"
        raise error(f"{name} is {kind}{limit} but this is {found}")


def check_flag(error: type[EdbatchError], name: str, value: object) -> None:
    """Checks that an option is `True` or `False`; see `check_number`."""
    if not isinstance(value, bool | np.bool_):
        raise error(f"{name} is True or False but this is {_typed(value)}; {_TEXT}")


def check_word(
    error: type[EdbatchError], name: str, value: object, words: Sequence[str]
) -> None:
    """Checks that an option is one of a few words.

    Args:
        error: The error type to raise.
        name: The option, as the subject of a sentence.
        value: Its value.
        words: The allowed words, the default first.

    Raises:
        EdbatchError: The value is not one of the words; raised as `error`. For `True`
            and `False`, which some options used to take, the message names the
            equivalent word.

    Example:
        >>> check_word(EdbatchError, "reuse", "never", ("never", "always"))
    """
    if isinstance(value, str) and value in words:
        return
    known = ", ".join(map(repr, words))
    fix = nearest(str(value), words)
    if isinstance(value, bool | np.bool_):
        instead = ("always", "auto") if value else ("never", "auto")
        fix = next((f"write {each!r}" for each in instead if each in words), fix)
    raise error(f"{name} is one of {known} but this is {shown(value)}; {fix}")


def renamed(error: type[EdbatchError], **sentences: str) -> Callable[[Called], Called]:
    """Makes calls with the old name of an option raise an error with the new name.

    Args:
        error: The error type to raise.
        **sentences: By old name, what to write instead.

    Returns:
        A decorator for functions and classes.

    Example:
        >>> @renamed(EdbatchError, wide="write width=3")
        ... def draw(width):
        ...     return width
        >>> draw(wide=3)
        Traceback (most recent call last):
        edbatch.errors.EdbatchError: the option 'wide' has moved; write width=3
    """

    def check(given: Mapping[str, object]) -> None:
        for name in given:
            if name in sentences:
                raise error(f"the option {name!r} has moved; {sentences[name]}")

    def decorate(function: Called) -> Called:
        own: Any = function
        target = own.__init__ if isinstance(function, type) else own

        @functools.wraps(target)
        def checked(*args: Any, **kwargs: Any) -> Any:
            check(kwargs)
            return target(*args, **kwargs)

        if not isinstance(function, type):
            return cast(Called, checked)
        own.__init__ = checked
        return function

    return decorate


def check_type(
    error: type[EdbatchError],
    name: str,
    value: object,
    kinds: type | tuple[type, ...],
    what: str,
) -> None:
    """Checks the type of an option.

    Args:
        error: The error type to raise.
        name: The option, as the subject of a sentence.
        value: Its value.
        kinds: The allowed types.
        what: Describes the allowed types, and how to make one.

    Raises:
        EdbatchError: The value has another type; raised as `error`.
    """
    if not isinstance(value, kinds):
        raise error(f"{name} is {what}, but this is {_typed(value)}; {_TEXT}")


def as_path(error: type[EdbatchError], name: str, value: object) -> Path:
    """Returns the value of an option as a path.

    Args:
        error: The error type to raise.
        name: The option, as the subject of a sentence.
        value: Its value.

    Returns:
        The path.

    Raises:
        EdbatchError: The value is neither a string nor a path, or is empty, or too
            long for a path; raised as `error`.
    """
    if isinstance(value, str | PathLike):
        path = fspath(value)
        if path == "":  # `Path` would take it for the current folder
            raise error(f"{name} is the path of a file but this is empty; name one")
        if isinstance(path, str) and len(path) <= _LONGEST_PATH:
            return Path(path)
    raise error(f"{name} is the path of a file but this is {_typed(value)}; {_TEXT}")


def list_of(
    error: type[EdbatchError], name: str, value: Any, one: str = "an instance"
) -> list[Any]:
    """Returns the elements of an iterable argument as a list.

    Args:
        error: The error type to raise.
        name: The argument, as the subject of a sentence.
        value: Its value.
        one: Describes an element.

    Returns:
        Its elements.

    Raises:
        EdbatchError: The value is a string or a dict, or not iterable; raised as
            `error`.

    Example:
        >>> list_of(EdbatchError, "a minibatch", range(3))
        [0, 1, 2]
    """
    # A zero-dimensional array has a method __iter__, too.
    one_number = getattr(value, "ndim", None) == 0
    is_list = isinstance(value, Iterable) and not one_number
    if is_list and not isinstance(value, str | bytes | Mapping):
        return list(value)
    hint = (
        "write list(it.values()) for what it holds, or [it]"
        if isinstance(value, Mapping)
        else f"usually {one} by itself, or the result of a function that returns"
        " nothing; write [it]"
    )
    raise error(
        f"{name} must be a list or another iterable of which each element is {one}, but"
        f" this is {_typed(value)}; {hint}"
    )


def _typed(value: object) -> str:
    return f"{shown(value)}, of type {type(value).__name__}"
