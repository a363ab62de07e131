"""Lookups of a table's rows, as weight-gradient sites."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from edbatch.cell.jaxpr import JaxprEqn, Var, read_lookup, shape_of
from edbatch.cell.tapes import tape_rows


class TableLookup(NamedTuple):
    """A site that looks up rows of a parameter.

    Attributes:
        site: The site's position.
        numbers: Index of the site's input that holds the row indices.
        shape: The table's shape.
        clips: As `edbatch.cell.jaxpr.Lookup.clips`.
        per_row: The number of rows that it looks up per batch row.
    """

    site: int
    numbers: int
    shape: tuple[int, ...]
    clips: bool
    per_row: int

    def tape_size(self, rows: int) -> int:
        """Returns the number of lookups that a tape has room for.

        Args:
            rows: Number of batch rows.
        """
        return tape_rows(rows) * self.per_row

    def new_tape(self, rows: int) -> Array:
        """Returns a tape for row indices, initially the index after the last row.

        Args:
            rows: Number of batch rows.
        """
        shape = (tape_rows(rows), self.per_row)
        return jnp.full(shape, self.shape[0], jnp.int32)

    def rows(self, inputs: Sequence[Array]) -> Array:
        """Returns the indices of the rows that it looks up.

        Args:
            inputs: The inputs of the site, in ``W`` batch rows.

        Returns:
            ``[W, per_row] int32``; the index after the last row for indices that read
            no row.
        """
        numbers, most = inputs[self.numbers], self.shape[0]
        numbers = numbers.reshape(-1, self.per_row)
        numbers = numbers.astype(jnp.promote_types(numbers.dtype, jnp.int32))
        if self.clips:
            return jnp.clip(numbers, 0, most - 1).astype(jnp.int32)
        inside = (numbers >= 0) & (numbers < most)
        return jnp.where(inside, numbers, most).astype(jnp.int32)


def table_lookup(
    site: int, eqn: JaxprEqn, tables: Sequence[Var], inputs: Sequence[Var]
) -> TableLookup | None:
    """Reads a site as a lookup.

    Args:
        site: The site's position.
        eqn: The site's equation.
        tables: The table and its casts.
        inputs: The site's inputs.

    Returns:
        The lookup; None if the site reads the table in another way, or the same rows
        for all nodes.
    """
    lookup = read_lookup(eqn)
    if lookup is None or lookup.numbers not in inputs:
        return None
    if not any(lookup.table is each for each in tables):
        return None
    return TableLookup(
        site=site,
        numbers=[each is lookup.numbers for each in inputs].index(True),
        shape=shape_of(lookup.table),
        clips=lookup.clips,
        per_row=math.prod(shape_of(lookup.numbers)),
    )
