"""A function for one batch row, run on many, in a call that loops have in common.

Loops of one type, and types of one form (`same_form`), run the same cell on the same
number of rows. JAX traces and lowers a jitted function once for all its calls with
arguments of one shape; XLA puts its body in their place, so the compiled program is the
same.
"""

from collections.abc import Callable
from typing import Any

import jax


def rows_of(run: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function of many batch rows from one of one row.

    Args:
        run: Of packed arrays, operands, external inputs and masks.

    Returns:
        A function of the number of rows and the same arguments, all but the packed
        arrays with an axis of rows.
    """

    def rows(width: int, packed: Any, *inputs: Any) -> Any:
        mapped = jax.vmap(run, in_axes=(None, 0, 0, 0), axis_size=width)
        return mapped(packed, *inputs)

    return jax.jit(rows, static_argnums=0)
