"""Tapes: arrays that weight-gradient sites record, with one row per batch row."""

from collections.abc import Iterable, Sequence

import jax.numpy as jnp
from jax import Array

from edbatch.cell.jaxpr import Var, dtype_of, shape_of

Tapes = list[list[Array]]  # per site, arrays with one row per batch row

TAPE_BLOCK = 128  # the number of rows of a tape is a multiple of this


def new_tapes(rows: int, sites: Iterable[Sequence[Var]]) -> Tapes:
    """Returns tapes, all zero.

    Args:
        rows: Number of batch rows.
        sites: The variables that each site records.

    Returns:
        One array per variable; its number of rows is a multiple of `TAPE_BLOCK`.
    """
    rows = tape_rows(rows)
    return [
        [jnp.zeros((rows, *shape_of(each)), dtype_of(each)) for each in site]
        for site in sites
    ]


def tape_rows(rows: int) -> int:
    """Returns the number of rows of a tape for a number of batch rows."""
    return -(-rows // TAPE_BLOCK) * TAPE_BLOCK
