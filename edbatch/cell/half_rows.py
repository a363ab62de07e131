"""Rows of bfloat16 as integers, inside loops on CPUs.

On CPUs XLA computes bfloat16 in float32. To write a few rows of an array it therefore
converts the whole array to float32 and back, in every iteration of a loop. Rows of
integers are written in place. So loops carry the bits of bfloat16 arrays, as `Bits`,
and a loop's body gets `HalfRows` in their place, which it reads and writes with
`edbatch.cell.rows`.

Gain (docs/results.md, "Gradients: where the time goes"): value and gradient of trees at
hidden size 128 on one core take 1.3 times as long as in float32, instead of 11 times.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

_Chunk = TypeVar("_Chunk")
_State = TypeVar("_State")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Bits:
    """The bits of a bfloat16 array, as carried by a loop.

    Attributes:
        array: ``[N, ...] uint16``.
    """

    array: Array


@dataclass(frozen=True)
class HalfRows:
    """The bits of a bfloat16 array, as seen by a loop's body. A leaf, not a pytree.

    Attributes:
        array: ``[N, ...] uint16``.
    """

    array: Array


def as_bits(rows: Array) -> Array:
    """Returns the bits of bfloat16 rows, ``uint16``."""
    return lax.bitcast_convert_type(rows, jnp.uint16)


def of_bits(bits: Array) -> Array:
    """Inverse of `as_bits`."""
    return lax.bitcast_convert_type(bits, jnp.bfloat16)


def carried(state: _State) -> _State:
    """Returns a state for a loop to carry: `Bits` in place of bfloat16 arrays."""
    found: _State = jax.tree.map(
        lambda each: Bits(as_bits(each)) if each.dtype == jnp.bfloat16 else each, state
    )
    return found


def uncarried(state: _State) -> _State:
    """Inverse of `carried`."""
    return _mapped(Bits, of_bits, state)


def on_bits(
    body: Callable[[_Chunk, _State], _State],
) -> Callable[[_Chunk, _State], _State]:
    """Returns a loop's body for a state from `carried`.

    Args:
        body: From a chunk and a state, with `HalfRows` in it, to the next state.

    Returns:
        The same body for states with `Bits`.
    """

    def run(chunk: _Chunk, state: _State) -> _State:
        rows = _mapped(Bits, HalfRows, state)
        return _mapped(HalfRows, Bits, body(chunk, rows))

    return run


def _mapped(
    kind: type[Bits | HalfRows], function: Callable[[Array], Any], state: _State
) -> _State:
    """Replaces the arrays of one kind by a function's results for them."""
    found: _State = jax.tree.map(
        lambda each: function(each.array) if isinstance(each, kind) else each,
        state,
        is_leaf=lambda each: isinstance(each, kind),
    )
    return found
