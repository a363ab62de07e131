"""External inputs: which values may reach a cell.

They are numbers and the arrays of NumPy and JAX, in dtypes that JAX has. What would
lose its meaning on the way, such as a mask, is refused.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from edbatch.graph.constants import PYTHON_NUMBERS, as_number

ABSENT: Any = object()  # an external input that a padded list lacks
# Numbers that recording takes as they are.
NUMBERS = frozenset(
    (
        *(bool, int, float, complex, np.bool_, np.float16, np.float32, np.float64),
        *(np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32),
    )  # NumPy drops high bits of np.uint64
)

_HINTS = {
    "O": "make an array of numbers of it",
    "M": "pass numbers, such as the days since a first one",
    "m": "pass numbers, such as array / np.timedelta64(1, 's')",
    "V": "pass each of its fields as an array of its own",
    "U": "number the words, or declare the argument with @eb.cell(static=...)",
    "c": "convert it by .astype(np.complex64)",
    "S": "number the words, or declare the argument with @eb.cell(static=...)",
}


class NotAnInputError(TypeError):
    """A value cannot be an external input.

    Attributes:
        what: What it is.
        fix: What to pass in its place; empty if there is nothing like it.
    """

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(f"{what}; {fix}" if fix else what)
        self.what = what
        self.fix = fix


def as_input(value: Any) -> Any:
    """Checks a value that reaches a cell.

    Args:
        value: Anything but a handle, a parameter, a key or a tracer.

    Returns:
        A number, or an array of NumPy or JAX; itself wherever it is one.

    Raises:
        NotAnInputError: It is neither, or its dtype is none of JAX's, or it has a
            meaning that arrays of JAX do not have.

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
    """Makes an array of one of a subclass, where that means the same."""
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
        value: As `as_input` gives it.

    Returns:
        The dtype that JAX would give it.
    """
    dtype = getattr(value, "dtype", type(value))
    if isinstance(dtype, np.dtype):
        dtype = dtype.newbyteorder("=")
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype))
