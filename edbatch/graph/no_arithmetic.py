"""Operators that raise, for stand-ins that have no value while a model is recorded."""

from typing import Any, NoReturn, TypeVar

Class = TypeVar("Class", bound=type)

_OPERATORS = """
add radd sub rsub mul rmul matmul rmatmul truediv rtruediv floordiv rfloordiv mod rmod
divmod pow rpow lshift rshift and rand or ror xor rxor neg pos abs invert lt le gt ge
float int complex index round
"""


def no_arithmetic(stand_in: Class) -> Class:
    """Gives a class operators that call its ``_reject`` with what was tried.

    Args:
        stand_in: The class; its ``_reject(operation)`` raises.

    Returns:
        The class.

    Example:
        >>> @no_arithmetic
        ... class Nothing:
        ...     def _reject(self, operation):
        ...         raise TypeError(operation)
        >>> Nothing() + 1
        Traceback (most recent call last):
        TypeError: arithmetic (add)
    """
    for name in _OPERATORS.split():
        setattr(stand_in, f"__{name}__", _forbidden(name))
    return stand_in


def _forbidden(name: str) -> Any:
    def operation(self: Any, *args: Any) -> NoReturn:
        self._reject(f"arithmetic ({name})")
        raise AssertionError("_reject raises")

    return operation
