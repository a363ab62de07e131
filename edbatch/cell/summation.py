"""Sums over many rows, with at least the precision of float32."""

from typing import Any

import jax.numpy as jnp
from jax import Array


def zeros_for_sum(array: Array) -> Array:
    """Returns zeros in which to sum arrays like a given one.

    The sum keeps the digits that half precision would round away with each chunk of
    rows. It is rounded once, at the end.

    Args:
        array: One of the terms, or the array whose cotangents are summed.

    Returns:
        Zeros of the same shape; float32 in place of bfloat16 and float16.
    """
    return jnp.zeros(array.shape, sum_dtype(array.dtype))


def sum_dtype(dtype: Any) -> Any:
    """Returns the dtype to sum in.

    Example:
        >>> str(sum_dtype(jnp.dtype("bfloat16"))), str(sum_dtype(jnp.dtype("int32")))
        ('float32', 'int32')
    """
    is_half = jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize < 4
    return jnp.dtype(jnp.float32) if is_half else dtype
