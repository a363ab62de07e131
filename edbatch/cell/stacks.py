"""Arrays of all members of a family, stacked."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from edbatch.cell.deferred_rows import DeferredRows
from edbatch.cell.rows import add_all, add_rows

_CONCATENATED = 128  # arrays; XLA is slow for many more at once


class Stacks(NamedTuple):
    """Arrays of all members of a family.

    Attributes:
        arrays: The arrays; some may be None.
        stacked: Which arrays have an entry per member, ``[G, ...]``; the others are
            shared.
    """

    arrays: Sequence[Any]
    stacked: Sequence[bool]

    def take(self, member: Array) -> list[Any]:
        """Returns the arrays of one member, given by its index, a scalar."""
        return [
            take_member(array, member) if is_stacked and array is not None else array
            for array, is_stacked in zip(self.arrays, self.stacked, strict=True)
        ]

    def add(self, member: Array | None, more: Sequence[Array]) -> list[Array]:
        """Returns the arrays after adding to those of one member, in place.

        Args:
            member: The member, a scalar; None if no array is stacked.
            more: The term to add to each array.
        """
        return [
            add_all(array, _as_term(array, own))
            if not is_stacked or member is None
            else add_to_member(array, member, own)
            for array, is_stacked, own in zip(
                self.arrays, self.stacked, more, strict=True
            )
        ]


def take_member(array: Array, member: Array) -> Array:
    """Reads one entry of a stack, which must be in bounds.

    Args:
        array: ``[G, ...]``.
        member: The entry, a scalar.

    Returns:
        ``[...]``.
    """
    start = (member,) + (jnp.int32(0),) * (array.ndim - 1)
    part = lax.dynamic_slice(
        array, start, (1, *array.shape[1:]), allow_negative_indices=False
    )
    return part.reshape(array.shape[1:])


def add_to_member(array: Array, member: Array, more: Array) -> Array:
    """Adds to one entry of a stack; in place inside a loop.

    Args:
        array: ``[G, ...]``.
        member: The entry, a scalar.
        more: The array to add, ``[...]``.

    Returns:
        ``[G, ...]``.
    """
    more = _as_term(array, more)
    if isinstance(array, DeferredRows):
        return add_rows(array, member, more[None])
    own = (take_member(array, member) + more)[None]
    start = (member,) + (jnp.int32(0),) * (array.ndim - 1)
    return lax.dynamic_update_slice(array, own, start, allow_negative_indices=False)


def _as_term(array: Any, more: Array) -> Array:
    """Casts a term to the dtype of the sum, which may be wider."""
    holder = array.array if isinstance(array, DeferredRows) else array
    return more.astype(holder.dtype)


def stack(arrays: Sequence[Array]) -> Array:
    """Stacks arrays, in several steps if there are many.

    Args:
        arrays: Arrays of one shape.

    Returns:
        ``[G, ...]``.
    """
    parts = [
        jnp.stack(arrays[k : k + _CONCATENATED])
        for k in range(0, len(arrays), _CONCATENATED)
    ]
    while len(parts) > 1:
        parts = [
            jnp.concatenate(parts[k : k + _CONCATENATED])
            for k in range(0, len(parts), _CONCATENATED)
        ]
    return parts[0]
