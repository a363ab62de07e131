"""Reading, writing and masking rows of arrays, as XLA does it fastest."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax


def take_rows(arena: Array, rows: Array) -> Array:
    """Gathers rows that are known to exist; ``rows.shape + arena.shape[1:]``."""
    # Without the promise that none is negative, JAX tests every row for it.
    return arena.at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False)


def slice_rows(arena: Array, first: Array, width: int) -> Array:
    """Reads consecutive rows that are known to exist; ``[width, ...]``."""
    start = (first,) + (jnp.zeros_like(first),) * (arena.ndim - 1)
    shape = (width, *arena.shape[1:])
    return lax.dynamic_slice(arena, start, shape, allow_negative_indices=False)


def keep_rows(kept: Array, other: Array, arrays: Any) -> Any:
    """Puts one row in place of all that are not kept.

    Args:
        kept: Which rows are kept; ``[W] bool``.
        other: Which row stands in place of the others.
        arrays: A pytree of ``[W, ...]`` arrays.

    Returns:
        Arrays of the same shapes.
    """

    def keep(array: Array) -> Array:
        return choose_rows(kept, array, slice_rows(array, other, 1))

    return jax.tree.map(keep, arrays)


def zero_unless(kept: Array, arrays: Any) -> Any:
    """Puts zeros in place of all rows that are not kept.

    Args:
        kept: Which rows are kept; ``[W] bool``.
        arrays: A pytree of ``[W, ...]`` arrays.

    Returns:
        Arrays of the same shapes.
    """

    def clear(array: Array) -> Array:
        return choose_rows(kept, array, jnp.zeros_like(array))

    return jax.tree.map(clear, arrays)


def choose_rows(chosen: Array, array: Array, other: Array) -> Array:
    """Takes rows of one array, and of another one where they are not chosen.

    Args:
        chosen: Which rows to take of the first; ``[W] bool``.
        array: The first, ``[W, ...]``.
        other: The second, ``[W, ...]`` or ``[1, ...]``.

    Returns:
        ``[W, ...]``.
    """
    return jnp.where(chosen.reshape(-1, *(1,) * (array.ndim - 1)), array, other)


def write_rows(arena: Array, first: Array, rows: Array) -> Array:
    """Writes consecutive rows that are known to exist; in place inside a loop."""
    start = (first,) + (jnp.int32(0),) * (arena.ndim - 1)
    return lax.dynamic_update_slice(arena, rows, start, allow_negative_indices=False)
