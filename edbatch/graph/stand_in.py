"""Stand-ins for arrays and parameters, without values while a model is recorded."""

from typing import Any, NoReturn, TypeVar

from edbatch.errors import RecordingError

_OPERATORS = """
add radd sub rsub mul rmul matmul rmatmul truediv rtruediv floordiv rfloordiv mod rmod
divmod pow rpow lshift rshift and rand or ror xor rxor neg pos abs invert lt le gt ge
float int complex index round
"""
# How messages of Python and JAX refer to stand-ins: by their class and its module.
_TRACES = ("'Handle'", "Handle(", "graph.handle.", "ParameterPath")


Class = TypeVar("Class", bound=type)

_CLASSES: set[type] = set()  # classes of stand-ins


def stand_in(cls: Class) -> Class:
    """Gives a class operators that call its ``_reject`` with the attempted operation.

    Copying returns the object itself, because an object without a value cannot change.
    This is not a base class, which would make each handle slower to create.

    Args:
        cls: The class; its ``_reject(operation)`` raises.

    Returns:
        The class.

    Example:
        >>> @stand_in
        ... class Nothing:
        ...     def _reject(self, operation):
        ...         raise TypeError(operation)
        >>> Nothing() + 1
        Traceback (most recent call last):
        TypeError: arithmetic (add)
    """
    members = {f"__{name}__": _forbidden(name) for name in _OPERATORS.split()}
    members |= {"__copy__": _itself, "__deepcopy__": _itself}
    for name, member in members.items():
        setattr(cls, name, member)
    _CLASSES.add(cls)
    return cls


def is_stand_in(value: object) -> bool:
    """Tells whether an object has no value while a model is recorded.

    Example:
        >>> is_stand_in(1.0)
        False
    """
    return type(value) in _CLASSES


def _itself(self: Any, memo: Any = None) -> Any:
    return self


def _forbidden(name: str) -> Any:
    def operation(self: Any, *args: Any) -> NoReturn:
        self._reject(f"arithmetic ({name})")
        raise AssertionError("_reject raises")

    return operation


def is_about_stand_in(error: Exception) -> bool:
    """Tells whether an error is about a stand-in that was used as an array.

    Args:
        error: An error raised by user code.

    Returns:
        Whether edbatch, JAX or Python complains about a handle or a parameter.
    """
    if isinstance(error, RecordingError):
        return True
    text = str(error)
    is_complaint = isinstance(error, TypeError | ValueError)
    return is_complaint and any(each in text for each in _TRACES)
