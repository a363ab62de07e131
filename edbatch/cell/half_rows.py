"""Rows of bfloat16 as integers, inside the loops of CPUs.

XLA computes bfloat16 in float32 on CPUs, and has it that a write of rows converts the
whole array and back, in every iteration of a loop. Integers are written in place. So
loops carry the bits of such arrays, as `Bits`, and what runs in a loop gets `HalfRows`
in their place, which it reads and writes by `edbatch.cell.rows`.

Gain (docs/results.md, "Gradients: where the time goes"): value and gradient of trees at
hidden 128 on one core takes 1.3 times as long as in float32, and took 11 times.
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
    """The bits of an array of bfloat16, as a loop carries them.

    Attributes:
        array: ``[N, ...] uint16``.
    """

    array: Array


@dataclass(frozen=True)
class HalfRows:
    """The same, as a body gets it. No pytree, but a leaf.

    Attributes:
        array: ``[N, ...] uint16``.
    """

    array: Array


def as_bits(rows: Array) -> Array:
    """Returns the bits of rows of bfloat16, ``uint16``."""
    return lax.bitcast_convert_type(rows, jnp.uint16)


def of_bits(bits: Array) -> Array:
    """Undoes `as_bits`."""
    return lax.bitcast_convert_type(bits, jnp.bfloat16)


def carried(state: _State) -> _State:
    """Returns a state for a loop to carry: `Bits` in place of arrays of bfloat16."""
    found: _State = jax.tree.map(
        lambda each: Bits(as_bits(each)) if each.dtype == jnp.bfloat16 else each, state
    )
    return found


def uncarried(state: _State) -> _State:
    """Undoes `carried`."""
    return _mapped(Bits, of_bits, state)


def on_bits(
    body: Callable[[_Chunk, _State], _State],
) -> Callable[[_Chunk, _State], _State]:
    """Returns a loop's body for a state that `carried` made.

    Args:
        body: From a chunk and a state, with `HalfRows` in it, to the next state.

    Returns:
        The same of states with `Bits` in them.
    """

    def run(chunk: _Chunk, state: _State) -> _State:
        rows = _mapped(Bits, HalfRows, state)
        return _mapped(HalfRows, Bits, body(chunk, rows))

    return run


def _mapped(
    kind: type[Bits | HalfRows], function: Callable[[Array], Any], state: _State
) -> _State:
    """Puts what a function makes of the arrays of one kind in their places."""
    found: _State = jax.tree.map(
        lambda each: function(each.array) if isinstance(each, kind) else each,
        state,
        is_leaf=lambda each: isinstance(each, kind),
    )
    return found
