"""Sums and gathers over the devices of a mesh, in few collective operations.

On a CPU the devices synchronize for every array of a collective operation, even if XLA
has combined several operations into one with many operands: summing 24 small parameters
of a tree-LSTM took 1.8 ms, as one vector 0.2 ms (two devices on two cores; ``python
experiments/scaling.py`` times whole steps). Frameworks for data-parallel training call
such a vector a bucket (Li et al., PyTorch Distributed, VLDB 2020, section 3.2.2).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

# A larger array is sent on its own: copying it costs more than synchronizing once more.
# Complex arrays are an exception, see `buckets`.
MOST_BYTES = 1 << 20


class _Parts(NamedTuple):
    """Shapes and dtype of arrays joined into a vector; complex numbers are pairs."""

    shapes: tuple[tuple[int, ...], ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, arrays: Sequence[Any]) -> "_Parts":
        return cls(tuple(each.shape for each in arrays), arrays[0].dtype)

    @property
    def is_complex(self) -> bool:
        return bool(jnp.issubdtype(self.dtype, jnp.complexfloating))

    @property
    def zeros(self) -> Array:
        """The vector of zeros."""
        sizes = sum(np.prod(shape, dtype=np.int64) for shape in self.shapes)
        if self.is_complex:
            return jnp.zeros(2 * int(sizes), np.finfo(self.dtype).dtype)
        return jnp.zeros(int(sizes), self.dtype)


def buckets(leaves: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    """Groups small arrays of floating point numbers by dtype.

    Args:
        leaves: Arrays, or objects with a shape and a dtype.

    Returns:
        Numbers of the leaves that share a vector; leaves that share none are left out.
        Complex leaves that share none get a vector of their own: on a CPU, XLA aborts
        the process if it sums complex zeros that it knows to be zero, such as the
        gradient of an unused parameter.
    """
    found: dict[np.dtype[Any], list[int]] = {}
    alone: list[tuple[int, ...]] = []
    for k, leaf in enumerate(leaves):
        small = leaf.size * leaf.dtype.itemsize <= MOST_BYTES
        if small and jnp.issubdtype(leaf.dtype, jnp.inexact):
            found.setdefault(leaf.dtype, []).append(k)
        elif jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            alone.append((k,))
    shared = [
        tuple(own)
        for dtype, own in found.items()
        if len(own) > 1 or jnp.issubdtype(dtype, jnp.complexfloating)
    ]
    return (*shared, *alone)


def detach(leaves: Sequence[Array], bucket: Sequence[int]) -> Array:
    """Returns zeros whose cotangent is that of some leaves, as one vector.

    Call it outside of the function that runs on each device, and `attach` inside: the
    cotangents of the leaves are then summed as one array.

    Args:
        leaves: The parameters.
        bucket: Numbers of the leaves.

    Returns:
        As many zeros as these leaves have elements; twice as many for complex leaves.
    """
    chosen = [leaves[k] for k in bucket]
    parts = _Parts.of(chosen)

    @jax.custom_vjp
    def zeros(*own: Array) -> Array:
        return parts.zeros

    def forward(*own: Array) -> tuple[Array, None]:
        return zeros(*own), None

    zeros.defvjp(forward, lambda _, cotangent: _split(parts, cotangent))
    return zeros(*chosen)


def attach(leaves: Sequence[Array], zeros: Array, bucket: Sequence[int]) -> list[Array]:
    """Routes the cotangents of some leaves to the zeros that `detach` returned.

    Args:
        leaves: The parameters, on a device.
        zeros: The zeros of this bucket.
        bucket: As for `detach`.

    Returns:
        All leaves.
    """
    chosen = [leaves[k] for k in bucket]

    @jax.custom_vjp
    def same(zeros: Array, own: list[Array]) -> list[Array]:
        return own

    def backward(_: None, cotangents: list[Array]) -> tuple[Array, None]:
        return _join(cotangents), None

    same.defvjp(lambda zeros, own: (own, None), backward)
    constants = [lax.stop_gradient(leaf) for leaf in chosen]
    found = dict(zip(bucket, same(zeros, constants), strict=True))
    return [found.get(k, leaf) for k, leaf in enumerate(leaves)]


def gather(arrays: Sequence[Array], axis: str) -> tuple[Array, ...]:
    """Gathers the arrays of all devices, for results that are the same on each.

    Args:
        arrays: The device's own arrays, ``[n, ...]`` each.
        axis: The axis of the mesh.

    Returns:
        The arrays of all devices, ``[D * n, ...]``. Cotangents have to be the same on
        all devices, too: each device takes its own part of them, and nothing is sent.
    """
    joined = buckets(arrays)
    found: dict[int, Array] = {}
    for bucket in joined:
        own = [arrays[k] for k in bucket]
        found |= zip(bucket, _gather_joined(axis, own), strict=True)
    for k, each in enumerate(arrays):
        if k in found:
            continue
        if jnp.issubdtype(each.dtype, jnp.inexact):
            (found[k],) = _gather_joined(axis, [each])
        else:
            found[k] = lax.all_gather(each, axis, tiled=True)
    return tuple(found[k] for k in range(len(arrays)))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gather_joined(axis: str, own: list[Array]) -> list[Array]:
    """Gathers arrays of one dtype as one array."""
    if len(own) == 1:
        return [lax.all_gather(own[0], axis, tiled=True)]
    rows = lax.all_gather(_join(own), axis)  # [D, elements]
    found = jax.vmap(partial(_split, _Parts.of(own)))(rows)
    return [lax.collapse(part, 0, 2) for part in found]


def _gather_forward(axis: str, own: list[Array]) -> tuple[list[Array], list[int]]:
    return _gather_joined(axis, own), [each.shape[0] for each in own]


def _gather_backward(
    axis: str, lengths: list[int], cotangents: list[Array]
) -> tuple[list[Array]]:
    place, count = lax.axis_index(axis), lax.axis_size(axis)

    def own(length: int, whole: Array) -> Array:
        # Each device has an equal share of the cotangent of a replicated array.
        return count * lax.dynamic_slice_in_dim(whole, place * length, length)

    return (list(map(own, lengths, cotangents)),)


_gather_joined.defvjp(_gather_forward, _gather_backward)


def _join(arrays: Sequence[Array]) -> Array:
    """Returns arrays as one vector of real numbers."""
    joined = jnp.concatenate([each.ravel() for each in arrays])
    if jnp.issubdtype(joined.dtype, jnp.complexfloating):
        return jnp.concatenate([joined.real, joined.imag])
    return joined


def _split(parts: _Parts, vector: Array) -> tuple[Array, ...]:
    """Cuts a vector into arrays; the inverse of `_join`."""
    if parts.is_complex:
        vector = lax.complex(*jnp.split(vector, 2))
    found = []
    start = 0
    for shape in parts.shapes:
        end = start + int(np.prod(shape, dtype=np.int64))
        found.append(vector[start:end].reshape(shape))
        start = end
    return tuple(found)
