"""Reading, writing and masking rows of arrays, as XLA does it fastest.

Those that read and write take `DeferredRows` and `HalfRows` in place of an array, too.
"""

from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array, lax

from edbatch.cell.deferred_rows import DeferredRows
from edbatch.cell.half_rows import HalfRows, as_bits, of_bits


def take_rows(arena: Array, rows: Array) -> Array:
    """Gathers rows that are known to exist; ``rows.shape + arena.shape[1:]``."""
    if isinstance(arena, DeferredRows):
        whole, base = arena.readable()
        return take_rows(whole, rows + base)
    if isinstance(arena, HalfRows):
        return of_bits(take_rows(arena.array, rows))
    # Without the promise that none is negative, JAX tests every row for it.
    return arena.at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False)


def slice_rows(arena: Array, first: Array, width: int) -> Array:
    """Reads consecutive rows that are known to exist; ``[width, ...]``."""
    if isinstance(arena, DeferredRows):
        whole, base = arena.readable()
        return slice_rows(whole, first + base, width)
    if isinstance(arena, HalfRows):
        return of_bits(slice_rows(arena.array, first, width))
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


def first_true(marks: Array) -> Array:
    """Returns the place of the first mark that is true, ``int32``; 0 if none is."""
    return lax.argmax(marks, 0, jnp.int32)


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
    if isinstance(arena, DeferredRows):
        return cast(Any, arena.written("set", first, rows))
    if isinstance(arena, HalfRows):
        return cast(Any, HalfRows(write_rows(arena.array, first, as_bits(rows))))
    start = (first,) + (jnp.int32(0),) * (arena.ndim - 1)
    return lax.dynamic_update_slice(arena, rows, start, allow_negative_indices=False)


def add_rows(arena: Array, rows: Array, more: Array) -> Array:
    """Adds to rows that are known to exist.

    Args:
        arena: ``[N, ...]``.
        rows: Which rows, of any shape, some of them perhaps several times; or a scalar,
            the first of consecutive ones.
        more: What to add, ``rows.shape + arena.shape[1:]``; ``[R, ...]`` to R
            consecutive rows. Of the arena's dtype, or of a lower precision.

    Returns:
        The arena.
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
    """Sets marks of rows that are known to exist, where these are true.

    Args:
        arena: ``[N] bool``.
        rows: As for `add_rows`.
        marks: ``[R] bool``, or an array that broadcasts to the shape of ``rows``.

    Returns:
        The arena.
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
    """Adds to all elements of an array."""
    if isinstance(array, DeferredRows):
        return cast(Any, array.written("add", None, more))
    return array + more
