"""Converts arguments and outputs of cells that run unbatched, by the rules of JAX."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from edbatch.errors import CellError, RecordingError, user_line
from edbatch.graph.constants import PYTHON_NUMBERS, as_number, does_not_fit
from edbatch.graph.external_input import NotAnInputError, as_input
from edbatch.graph.stand_in import is_stand_in

_NOT_JAX = (np.ndarray, np.generic, *PYTHON_NUMBERS)


def as_arrays(cell: str, value: Any, *, jax_arrays: bool) -> Any:
    """Converts an argument that a model passes to a cell.

    Args:
        cell: The name of the cell, for messages.
        value: The argument, a pytree.
        jax_arrays: Whether to convert all arrays to JAX arrays, since a batched cell
            computes by JAX's rules only. Otherwise NumPy arrays stay, for functions
            compiled by `jax.jit`.

    Returns:
        The argument with arrays in place of numbers; leaves that are neither numbers
        nor arrays are unchanged.

    Raises:
        CellError: JAX cannot represent an array: it lacks the dtype, or the array has a
            meaning that JAX arrays cannot express.
        RecordingError: A leaf belongs to a recording, or an integer does not fit.
    """
    return jax.tree.map(partial(_as_array, cell, jax_arrays), value)


def as_constants(value: Any) -> Any:
    """Converts an argument that a cell passes to another cell.

    Args:
        value: The argument, a pytree.

    Returns:
        The argument with NumPy arrays in place of numbers, as in batched runs.

    Raises:
        RecordingError: A leaf belongs to a recording, or an integer does not fit.
    """
    return jax.tree.map(_as_constant, value)


def as_outputs(value: Any, *, inside: bool) -> Any:
    """Converts the output of a cell.

    Args:
        value: A pytree.
        inside: Whether another cell has called the cell.

    Returns:
        The same pytree with JAX arrays; inside another cell, constants are unchanged.
    """
    return jax.tree.map(_strong if inside else _as_output, value)


def _as_array(cell: str, jax_arrays: bool, leaf: Any) -> Any:
    if isinstance(leaf, str):  # also NumPy's strings
        return leaf
    if isinstance(leaf, np.ndarray | np.generic):
        try:
            leaf = as_input(leaf)
        except NotAnInputError as error:
            what = f"cell {cell!r}, called at {user_line()}, received"
            raise CellError(f"{what} {error}") from None
    array = _as_constant(leaf, f"cell {cell!r}")
    if not isinstance(array, np.ndarray | np.generic):
        return array
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    if dtype.kind in "iu" and dtype != array.dtype and array.size:
        limits = np.iinfo(dtype)
        for each in (array.min(), array.max()):
            if not limits.min <= each <= limits.max:
                raise RecordingError(_too_wide(f"cell {cell!r}", each, dtype))
    return jnp.asarray(array) if jax_arrays else array


def _as_constant(leaf: Any, cell: str = "a cell") -> Any:
    if is_stand_in(leaf):
        raise RecordingError(
            f"a cell was called ({user_line()}) outside of the recording that"
            f" {leaf!r} belongs to; usually in a thread that the model starts, or after"
            " the batched function has returned; call cells in the model itself, in its"
            " own thread"
        )
    if isinstance(leaf, PYTHON_NUMBERS):
        number = as_number(leaf)
        dtype = jax.dtypes.canonicalize_dtype(type(number))
        try:
            return np.asarray(number, dtype)
        except OverflowError:
            raise RecordingError(_too_wide(cell, number, dtype)) from None
    if isinstance(leaf, np.ndarray) and not leaf.dtype.isnative:
        return leaf.astype(leaf.dtype.newbyteorder("="))  # JAX accepts no other order
    return _strong(leaf)


def _too_wide(cell: str, value: Any, dtype: np.dtype) -> str:
    what = f"{cell}, called at {user_line()}, received"
    return does_not_fit(what, int(value), dtype)


def _as_output(leaf: Any) -> Any:
    return _strong(jnp.asarray(leaf) if isinstance(leaf, _NOT_JAX) else leaf)


def _strong(leaf: Any) -> Any:
    if getattr(leaf, "weak_type", False):
        return jax.lax.convert_element_type(leaf, leaf.dtype)
    return leaf
