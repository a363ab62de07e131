"""External inputs: the values that may be passed to a cell.

They are numbers and NumPy or JAX arrays, in dtypes that JAX has. Values that would lose
their meaning when converted, such as a masked array, are rejected.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from edbatch.graph.constants import PYTHON_NUMBERS, as_number

ABSENT: Any = object()  # in place of an external input: the slot pads a list
# Types of numbers that recording uses unchanged.
NUMBERS = frozenset(
    (
        *(bool, int, float, complex, np.bool_, np.float16, np.float32, np.float64),
        *(np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32),
    )  # not np.uint64, whose high bits NumPy would drop
)

_HINTS = {
    "O": "convert it to an array of numbers",
    "M": "pass numbers, such as the days since a reference date",
    "m": "pass numbers, such as array / np.timedelta64(1, 's')",
    "V": "pass each of its fields as an array of its own",
    "U": "number the words, or declare the argument with @eb.cell(static=...)",
    "c": "convert it by .astype(np.complex64)",
    "S": "number the words, or declare the argument with @eb.cell(static=...)",
}


class NotAnInputError(TypeError):
    """A value cannot be an external input.

    Attributes:
        what: A description of the value.
        fix: What to pass instead; empty if there is no replacement.
    """

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(f"{what}; {fix}" if fix else what)
        self.what = what
        self.fix = fix


def as_input(value: Any) -> Any:
    """Checks a value that is passed to a cell.

    Args:
        value: Anything but a handle, a parameter, a key or a tracer.

    Returns:
        A number, or a NumPy or JAX array: the value itself, except that instances of
        subclasses are converted.

    Raises:
        NotAnInputError: The value is neither a number nor an array, or JAX does not
            have its dtype, or it has a meaning that JAX arrays cannot express.

    Example:
        >>> as_input(np.ma.array([1.0, 2.0], mask=[False, True]))
        Traceback (most recent call last):
        ...
        edbatch.graph.external_input.NotAnInputError: a masked array with 1 of 2 ...
    """
    if type(value) in NUMBERS or isinstance(value, jax.Array):
        return value
    if isinstance(value, np.ndarray | np.generic):
        _check_dtype(value)
        return value if type(value) is np.ndarray else _plain_array(value)
    if isinstance(value, PYTHON_NUMBERS):
        return as_number(value)
    if hasattr(value, "__array__"):
        what = f"{type(value).__name__}, which is no array of NumPy or JAX"
        raise NotAnInputError(what, "pass np.asarray(...) of it")
    raise NotAnInputError(type(value).__name__)


def _check_dtype(value: Any) -> None:
    dtype = value.dtype
    if hasattr(jnp, dtype.newbyteorder("=").name):
        return
    what = "an array" if value.ndim else "a scalar"
    hint = _HINTS.get(dtype.kind, "convert it by .astype(np.float32)")
    raise NotAnInputError(f"{what} of dtype {dtype}, which JAX does not have", hint)


def _plain_array(value: Any) -> Any:
    """Converts an array of a subclass to a plain array, if that keeps its meaning."""
    if isinstance(value, np.ma.MaskedArray):
        masked = int(np.ma.getmaskarray(value).sum())
        if masked:
            raise NotAnInputError(
                f"a masked array with {masked} of {value.size} elements masked, but"
                " arrays of JAX have no mask",
                "pass array.filled(...), and np.ma.getmaskarray(array) as an argument"
                " of its own",
            )
        return np.ma.getdata(value)
    if isinstance(value, np.matrix):
        raise NotAnInputError(
            "np.matrix, whose * and ** multiply matrices in NumPy but not in JAX",
            "pass np.asarray(matrix), and use @ in the cell",
        )
    return np.asarray(value) if isinstance(value, np.ndarray) else value


def input_dtype(value: Any) -> np.dtype:
    """Returns the dtype that an external input has in the program.

    Args:
        value: As `as_input` returns it.

    Returns:
        The dtype that JAX would give it.
    """
    dtype = getattr(value, "dtype", type(value))
    if isinstance(dtype, np.dtype):
        dtype = dtype.newbyteorder("=")
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype))
