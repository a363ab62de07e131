"""Random parameters that keep signals near unit size, in float32."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array


def embedding(key: Array, rows: int, size: int) -> Array:
    """Samples a table of vectors with entries of unit variance.

    Args:
        key: A key of `jax.random`.
        rows: Number of vectors.
        size: Their length.

    Returns:
        ``[rows, size] float32``.
    """
    return jax.random.normal(key, (rows, size), jnp.float32)


def affine(key: Array, inputs: int, outputs: int) -> dict[str, Any]:
    """Samples ``x @ W + b`` whose outputs have unit variance if the inputs have.

    Args:
        key: A key of `jax.random`.
        inputs: Length of ``x``.
        outputs: Length of the result.

    Returns:
        ``W``, ``[inputs, outputs] float32``, and ``b``, zero, ``[outputs] float32``.

    Example:
        >>> {name: each.shape for name, each in affine(jax.random.key(0), 3, 2).items()}
        {'W': (3, 2), 'b': (2,)}
    """
    weights = jax.random.normal(key, (inputs, outputs), jnp.float32)
    return {"W": weights * inputs**-0.5, "b": jnp.zeros(outputs, jnp.float32)}
