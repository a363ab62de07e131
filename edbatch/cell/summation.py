"""Sums over many rows, which are as exact as float32 at least."""

from typing import Any

import jax.numpy as jnp
from jax import Array


def zeros_for_sum(array: Array) -> Array:
    """Returns where to sum up arrays like one: zeros of its shape.

    What half a precision would round away with each chunk of rows stays in the sum,
    which is rounded once, at its end.

    Args:
        array: One of the terms, or what they are cotangents of.

    Returns:
        Zeros; float32 in place of bfloat16 and float16.
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
