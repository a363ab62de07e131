"""Reading, writing and masking rows of arrays, in the forms that XLA runs fastest.

Functions that read or write rows accept `DeferredRows` and `HalfRows` in place of
arrays.
"""

from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array, lax

from edbatch.cell.deferred_rows import DeferredRows
from edbatch.cell.half_rows import HalfRows, as_bits, of_bits


def take_rows(arena: Array, rows: Array) -> Array:
    """Gathers rows that must be in bounds; ``rows.shape + arena.shape[1:]``."""
    if isinstance(arena, DeferredRows):
        whole, base = arena.readable()
        return take_rows(whole, rows + base)
    if isinstance(arena, HalfRows):
        return of_bits(take_rows(arena.array, rows))
    # Without this promise JAX checks every index for being negative.
    return arena.at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False)


def slice_rows(arena: Array, first: Array, width: int) -> Array:
    """Reads consecutive rows that must be in bounds; ``[width, ...]``."""
    if isinstance(arena, DeferredRows):
        whole, base = arena.readable()
        return slice_rows(whole, first + base, width)
    if isinstance(arena, HalfRows):
        return of_bits(slice_rows(arena.array, first, width))
    start = (first,) + (jnp.zeros_like(first),) * (arena.ndim - 1)
    shape = (width, *arena.shape[1:])
    return lax.dynamic_slice(arena, start, shape, allow_negative_indices=False)


def keep_rows(kept: Array, other: Array, arrays: Any) -> Any:
    """Replaces all rows that are not kept by one other row.

    Args:
        kept: Which rows are kept; ``[W] bool``.
        other: Index of the row that replaces all others.
        arrays: A pytree of ``[W, ...]`` arrays.

    Returns:
        Arrays of the same shapes.
    """

    def keep(array: Array) -> Array:
        return choose_rows(kept, array, slice_rows(array, other, 1))

    return jax.tree.map(keep, arrays)


def first_true(marks: Array) -> Array:
    """Returns the index of the first true mark, ``int32``; 0 if none is true."""
    return lax.argmax(marks, 0, jnp.int32)


def zero_unless(kept: Array, arrays: Any) -> Any:
    """Replaces all rows that are not kept by zeros.

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
    """Takes the chosen rows of one array and the other rows of another array.

    Args:
        chosen: Which rows to take from the first; ``[W] bool``.
        array: The first, ``[W, ...]``.
        other: The second, ``[W, ...]`` or ``[1, ...]``.

    Returns:
        ``[W, ...]``.
    """
    return jnp.where(chosen.reshape(-1, *(1,) * (array.ndim - 1)), array, other)


def write_rows(arena: Array, first: Array, rows: Array) -> Array:
    """Writes consecutive rows that must be in bounds; in place inside a loop."""
    if isinstance(arena, DeferredRows):
        return cast(Any, arena.written("set", first, rows))
    if isinstance(arena, HalfRows):
        return cast(Any, HalfRows(write_rows(arena.array, first, as_bits(rows))))
    start = (first,) + (jnp.int32(0),) * (arena.ndim - 1)
    return lax.dynamic_update_slice(arena, rows, start, allow_negative_indices=False)


def add_rows(arena: Array, rows: Array, more: Array) -> Array:
    """Adds to rows that must be in bounds.

    Args:
        arena: ``[N, ...]``.
        rows: Row indices, of any shape, possibly repeated; or a scalar, the first of
            consecutive rows.
        more: The rows to add, ``rows.shape + arena.shape[1:]``; ``[R, ...]`` for R
            consecutive rows. Of the arena's dtype or of lower precision.

    Returns:
        The updated arena.
    """
    if isinstance(arena, DeferredRows):
        more = more.astype(arena.array.dtype)
        return cast(Any, arena.written("add", rows, more))
    assert not isinstance(arena, HalfRows), "sums are of float32 at least"
    more = more.astype(arena.dtype)
    if rows.ndim == 0:
        return write_rows(arena, rows, more + slice_rows(arena, rows, len(more)))
    return arena.at[rows].add(
        more, mode="promise_in_bounds", wrap_negative_indices=False
    )


def mark_rows(arena: Array, rows: Array, marks: Array) -> Array:
    """Sets the marks of rows that must be in bounds, where `marks` is true.

    Args:
        arena: ``[N] bool``.
        rows: As for `add_rows`.
        marks: ``[R] bool``, or an array that broadcasts to the shape of ``rows``.

    Returns:
        The updated arena.
    """
    if isinstance(arena, DeferredRows):
        if rows.ndim > 0:
            marks = jnp.broadcast_to(marks, rows.shape)
        return cast(Any, arena.written("max", rows, marks))
    if rows.ndim == 0:
        return write_rows(arena, rows, slice_rows(arena, rows, len(marks)) | marks)
    return arena.at[rows].max(
        marks, mode="promise_in_bounds", wrap_negative_indices=False
    )


def add_all(array: Array, more: Array) -> Array:
    """Adds an array to another, element by element."""
    if isinstance(array, DeferredRows):
        return cast(Any, array.written("add", None, more))
    return array + more
