"""Stand-ins for arrays and parameters: no value while a model is recorded."""

from typing import Any, NoReturn, Self

from edbatch.errors import RecordingError

_OPERATORS = """
add radd sub rsub mul rmul matmul rmatmul truediv rtruediv floordiv rfloordiv mod rmod
divmod pow rpow lshift rshift and rand or ror xor rxor neg pos abs invert lt le gt ge
float int complex index round
"""
# How messages of Python and JAX refer to stand-ins: by their class, and its module.
_TRACES = ("'Handle'", "Handle(", "graph.handle.", "ParameterPath")


class StandIn:
    """Base class whose operators call ``_reject`` with the operation that was tried.

    Copies are the object itself: what has no value cannot change.

    Example:
        >>> class Nothing(StandIn):
        ...     def _reject(self, operation):
        ...         raise TypeError(operation)
        >>> Nothing() + 1
        Traceback (most recent call last):
        TypeError: arithmetic (add)
    """

    __slots__ = ()

    def _reject(self, operation: str) -> NoReturn:
        raise NotImplementedError(operation)

    def __copy__(self) -> Self:
        """Returns the object itself."""
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        """Returns the object itself."""
        return self


def _forbidden(name: str) -> Any:
    def operation(self: StandIn, *args: Any) -> NoReturn:
        self._reject(f"arithmetic ({name})")

    return operation


for _name in _OPERATORS.split():
    setattr(StandIn, f"__{_name}__", _forbidden(_name))


def is_about_stand_in(error: Exception) -> bool:
    """Tells whether an error is about a stand-in that was used as an array.

    Args:
        error: An error that the user's code raised.

    Returns:
        Whether edbatch, or JAX or Python, complains about a handle or a parameter.
    """
    if isinstance(error, RecordingError):
        return True
    text = str(error)
    is_complaint = isinstance(error, TypeError | ValueError)
    return is_complaint and any(each in text for each in _TRACES)
