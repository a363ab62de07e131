"""Results padded to a number of instances, so that programs serve more than one."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from edbatch.arguments import check_number
from edbatch.errors import PlanError
from edbatch.graph.ragged import Ragged


def checked_rows(pad_to: int | None, instances: int) -> int | None:
    """Checks the number of rows that a user asked for.

    Args:
        pad_to: The rows; None for as many as instances.
        instances: Instances in the minibatch.

    Returns:
        The rows.

    Raises:
        PlanError: It is no whole number, or less than there are instances.
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
    """Tells the rows of instances from those of padding.

    Args:
        rows: Rows of the result, N.
        instances: Instances, a scalar; may be traced.

    Returns:
        ``[N] bool``, of NumPy or JAX like ``instances``.
    """
    numbers = np if isinstance(instances, np.ndarray | np.generic) else jnp
    return numbers.arange(rows) < instances


def first_rows(result: Any, instances: int) -> Any:
    """Drops the rows of padding.

    Args:
        result: What `edbatch.Batched.apply` returned, with a leading axis of N rows.
        instances: Instances, B.

    Returns:
        The same pytree with B rows. Where that takes no program, arrays of CPUs are
        waited for: XLA would compile one for every B.
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
    return _like(array, np.asarray(array)[:count]) if _is_near(array) else array[:count]


def _numbers_up_to(array: Any, most: int) -> Any:
    if isinstance(array, np.ndarray):
        return np.minimum(array, np.int32(most))
    if _is_near(array):
        return _like(array, np.minimum(np.asarray(array), np.int32(most)))
    return jnp.minimum(array, most)


def _like(array: jax.Array, values: np.ndarray) -> jax.Array:
    """Puts values where an array is; the copy frees the memory of the padding."""
    return jax.device_put(values.copy(), array.sharding if array.committed else None)


def _is_near(array: Any) -> bool:
    """Whether it is an array of a CPU, which NumPy reads without a transfer."""
    if not isinstance(array, jax.Array) or isinstance(array, jax.core.Tracer):
        return False  # one of NumPy: of a plan that a trace closes over
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return False
    devices = array.devices()
    return len(devices) == 1 and next(iter(devices)).platform == "cpu"
