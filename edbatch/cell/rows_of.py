"""Maps a function of one batch row over many rows, in a call that loops share.

Loops of one type, and types of one form (`same_form`), run the same cell on the same
number of rows. JAX traces and lowers a jitted function once for all calls with
arguments of the same shapes. XLA inlines these calls, so the compiled program is the
same.
"""

from collections.abc import Callable
from typing import Any

import jax


def rows_of(run: Callable[..., Any]) -> Callable[..., Any]:
    """Maps a function of one batch row over many rows.

    Args:
        run: Function of packed arrays, operands, external inputs and masks.

    Returns:
        A function of the number of rows and the same arguments; all of them except the
        packed arrays have an axis of rows.
    """

    def rows(width: int, packed: Any, *inputs: Any) -> Any:
        mapped = jax.vmap(run, in_axes=(None, 0, 0, 0), axis_size=width)
        return mapped(packed, *inputs)

    return jax.jit(rows, static_argnums=0)
