"""The loss whose gradient the benchmark measures."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


def half_squares(outputs: Any) -> Array:
    """Sums the squares of all outputs, so that every one of them has a cotangent.

    Args:
        outputs: A pytree; its integers do not count, and zeros of padding add nothing.

    Returns:
        Half the sum, a float32 scalar.

    Example:
        >>> float(half_squares({"state": jnp.array([1.0, 2.0]), "label": 7}))
        2.5
    """
    arrays = map(jnp.asarray, jax.tree.leaves(outputs))
    squares = [
        jnp.sum(jnp.square(each))
        for each in arrays
        if jnp.issubdtype(each.dtype, jnp.inexact)
    ]
    return 0.5 * sum(squares, jnp.float32(0))


def max_relative_error(found: Any, expected: Any) -> float:
    """Compares gradients, array by array.

    Returns:
        The largest difference in an array relative to its largest number; infinite
        where something is not a number.

    Example:
        >>> max_relative_error({"w": np.array([1.0, 4.0])}, {"w": np.array([2.0, 4.0])})
        0.25
    """
    worst = 0.0
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        left, right = np.asarray(a, np.float64), np.asarray(b, np.float64)
        largest = np.abs(right).max(initial=0.0)
        gap = np.abs(left - right).max(initial=0.0)
        if gap > 0:
            worst = max(worst, float(gap / largest) if largest > 0 else np.inf)
        if np.isnan(gap):
            return float("inf")
    return worst
