"""Arenas: the arrays that hold all values of a minibatch, one per array kind.

The caller of an executor owns them: the executor takes them and returns them. Inside a
compiled program they are updated in place; `compiled_copies` finds copies of them.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from edbatch.executor.program import ProgramShape

Arenas = dict[int, Array]  # array kind -> [rows, ...]


def new_arenas(shape: ProgramShape) -> Arenas:
    """Allocates arenas; only row 0, the zero row, is initialized.

    Args:
        shape: The program.

    Returns:
        Arenas by array kind, ``[rows, ...]``.
    """
    arenas = {}
    for kind, rows in shape.arena_rows:
        aval = shape.types.avals[kind]
        arena = lax.empty((rows, *aval.shape), aval.dtype)
        arenas[kind] = arena.at[0].set(jnp.zeros(aval.shape, aval.dtype))
    return arenas


def compiled_copies(
    compiled: jax.stages.Compiled, shape: ProgramShape, *, entry: bool = True
) -> list[str]:
    """Lists the copies of whole arenas in compiled HLO.

    Args:
        compiled: A compiled function that runs the program.
        shape: The program.
        entry: Also list copies outside all loops, which happen once per call.

    Returns:
        The HLO lines that copy an arena; empty for a good program.
    """
    sizes = [
        f"[{','.join(map(str, (rows, *shape.types.avals[kind].shape)))}]"
        for kind, rows in shape.arena_rows
    ]
    found = []
    in_entry = False
    for line in (compiled.as_text() or "").splitlines():
        if line and not line[0].isspace():
            in_entry = line.startswith("ENTRY")
        result, is_copy, _ = line.partition(" copy(")
        if is_copy and (entry or not in_entry) and any(x in result for x in sizes):
            found.append(line.strip())
    return found
