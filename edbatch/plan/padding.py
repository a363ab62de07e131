"""Pads results to a number of rows, so a program serves several minibatch sizes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from edbatch.arguments import check_number
from edbatch.errors import PlanError
from edbatch.graph.ragged import Ragged


def checked_rows(pad_to: int | None, instances: int) -> int | None:
    """Checks the number of rows that a user requested.

    Args:
        pad_to: The number of rows; None for as many as instances.
        instances: Number of instances in the minibatch.

    Returns:
        The number of rows, or None.

    Raises:
        PlanError: The number of rows is not a whole number, or is smaller than the
            number of instances.
    """
    if pad_to is None:
        return None
    check_number(PlanError, "pad_to of a plan", pad_to, whole=True)
    if pad_to < instances:
        raise PlanError(
            f"pad_to must be at least the number of instances, {instances}, but is"
            f" {pad_to}; pad to the largest minibatch, or split this one"
        )
    return int(pad_to)


def instance_mask(rows: int, instances: Any) -> Any:
    """Returns a mask that is True for rows of instances and False for padding rows.

    Args:
        rows: Number of rows of the result, N.
        instances: Number of instances, a scalar; may be traced.

    Returns:
        ``[N] bool``, an array of NumPy or JAX like ``instances``.
    """
    numbers = np if isinstance(instances, np.ndarray | np.generic) else jnp
    return numbers.arange(rows) < instances


def first_rows(result: Any, instances: int) -> Any:
    """Drops the padding rows.

    Args:
        result: Result of `edbatch.Batched.apply`, with a leading axis of N rows.
        instances: Number of instances, B.

    Returns:
        The same pytree with B rows. Arrays on a CPU are waited for and cut by NumPy,
        because XLA would compile a program for every B.
    """

    def of_leaf(each: Any) -> Any:
        rows = len(each.lengths if isinstance(each, Ragged) else each)
        if rows == instances:
            return each
        if isinstance(each, Ragged):
            segment_ids = _numbers_up_to(each.segment_ids, instances)
            return Ragged(each.values, segment_ids, _first(each.lengths, instances))
        return _first(each, instances)

    return jax.tree.map(of_leaf, result, is_leaf=lambda each: isinstance(each, Ragged))


def _first(array: Any, count: int) -> Any:
    return (
        _like(array, np.asarray(array)[:count]) if _is_on_cpu(array) else array[:count]
    )


def _numbers_up_to(array: Any, most: int) -> Any:
    if isinstance(array, np.ndarray):
        return np.minimum(array, np.int32(most))
    if _is_on_cpu(array):
        return _like(array, np.minimum(np.asarray(array), np.int32(most)))
    return jnp.minimum(array, most)


def _like(array: jax.Array, values: np.ndarray) -> jax.Array:
    """Puts values on an array's device; the copy frees the memory of the padding."""
    return jax.device_put(values.copy(), array.sharding if array.committed else None)


def _is_on_cpu(array: Any) -> bool:
    """Whether it is an array on a CPU, which NumPy reads without a transfer."""
    if not isinstance(array, jax.Array) or isinstance(array, jax.core.Tracer):
        return False  # NumPy arrays occur in plans that a trace closes over
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return False
    devices = array.devices()
    return len(devices) == 1 and next(iter(devices)).platform == "cpu"
