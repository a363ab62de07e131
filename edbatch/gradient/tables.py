"""Tables whose gradient is wanted as rows and values, not as a dense array.

The cotangent of a table, such as an embedding, is zero except in the rows that were
looked up. The tapes hold the terms of its sum: for each lookup the row index (from the
forward pass) and the cotangent of the row read (from the backward pass). These are
returned in place of their sum.

JAX's gradient of an array is an array of the same shape. So the differentiation rule
returns the cotangents as those of *probes*: arrays of zeros, one row per lookup, that
the program takes but does not read, as if each were added to the result of its lookup
(Flax does this for intermediate values, `flax.linen.Module.perturb`).

Gain: at hidden size 64 a step on two CPU devices is 1.17 instead of 1.01 times as fast
as on one (`experiments/scaling.py --measure rows`), since no table is summed over
devices; `experiments/vocabulary_cost.py` measures what larger tables cost otherwise.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from edbatch.cell.jaxpr import Body, trace
from edbatch.cell.table_lookup import TableLookup
from edbatch.cell.tapes import Tapes
from edbatch.cell.wide_casts import casts_of, is_cast
from edbatch.errors import PlanError
from edbatch.executor.program import ProgramShape
from edbatch.gradient.forward import LookupsOfTypes


class Table(NamedTuple):
    """A parameter in which a program looks up rows.

    Attributes:
        leaf: Its index among the leaves of the parameters.
        lookups: Type and lookup, in the order in which rows and values are listed.
    """

    leaf: int
    lookups: tuple[tuple[int, TableLookup], ...]


def find_tables(program: ProgramShape, leaves: Sequence[int]) -> tuple[Table, ...]:
    """Finds a program's lookups of rows in some parameters.

    Args:
        program: The program.
        leaves: Indices of leaves of the parameters.

    Returns:
        The tables, in the order of `leaves`.

    Raises:
        PlanError: A cell reads one of them other than by whole rows.
    """
    tables = []
    for leaf, found in zip(leaves, _tables_or_readers(program, leaves), strict=True):
        if isinstance(found, int):
            raise _read_otherwise(program, found, leaf)
        tables.append(found)
    return tuple(tables)


def read_by_rows(program: ProgramShape, leaves: Sequence[int]) -> tuple[Table, ...]:
    """Finds which of some parameters a program reads, and reads by whole rows only.

    Args:
        program: The program.
        leaves: Indices of leaves of the parameters.

    Returns:
        The tables that the program reads, in the order of `leaves`.
    """
    found = _tables_or_readers(program, leaves)
    return tuple(x for x in found if isinstance(x, Table) and x.lookups)


def _tables_or_readers(
    program: ProgramShape, leaves: Sequence[int]
) -> tuple[Table | int, ...]:
    """For each leaf, its `Table`, or a type that reads it other than by whole rows."""

    def make() -> tuple[Table | int, ...]:
        own = program.with_options(differentiated=True)
        reads = [
            (type_id, trace(packer.pack, own.types.params_spec)[0])
            for type_id, packer in own.packers().items()
        ]
        return tuple(_table_or_reader(own, reads, leaf) for leaf in leaves)

    key = (_tables_or_readers, program, tuple(leaves))
    return program.types.derived(key, make)


def _table_or_reader(
    program: ProgramShape, reads: Sequence[tuple[int, Body]], leaf: int
) -> Table | int:
    """The `Table` of a leaf, or a type that reads it other than by whole rows."""
    lookups: list[tuple[int, TableLookup]] = []
    for type_id, body in reads:
        own_vars = casts_of(body.inputs[leaf], body.equations)
        changed = any(
            each is var
            for eqn in body.equations
            if not is_cast(eqn)
            for each in eqn.invars
            for var in own_vars
        )
        places = [
            k for k, each in enumerate(body.outputs) if any(each is v for v in own_vars)
        ]
        if not places and not changed:
            continue
        own = None
        if not changed and program.members(type_id) is None:
            own = _lookups(program, type_id, places)
        if own is None:
            return type_id
        lookups += [(type_id, each) for each in own]
    return Table(leaf, tuple(lookups))


def _lookups(
    program: ProgramShape, type_id: int, places: Sequence[int]
) -> list[TableLookup] | None:
    """The lookups of a type in packed arrays; None if it also reads them otherwise."""
    cell, found = program.taped_cell(type_id), []
    for each in places:
        lookups = cell.lookups(each)
        if lookups is None:
            return None
        found += lookups
    return found


def _read_otherwise(program: ProgramShape, type_id: int, leaf: int) -> PlanError:
    types = program.types
    paths, _ = jax.tree.flatten_with_path(types.params_spec)
    name = f"params{jax.tree_util.keystr(paths[leaf][0])}"
    shape = "[" + ", ".join(map(str, paths[leaf][1].shape)) + "]"
    return PlanError(
        f"the gradient of {name}, {shape}, was requested as rows and values, but cell"
        f" {types.types[type_id].key} does not read it by rows only, as table[index]"
        " does, or looks up nearly as many rows as it has, or shares its loop with"
        " cells that read other parameters; leave this table out to get a dense"
        " gradient"
    )


def lookups_of_types(tables: Sequence[Table]) -> LookupsOfTypes:
    """Returns the lookups of some tables, by type."""
    found: LookupsOfTypes = {}
    for table in tables:
        for type_id, lookup in table.lookups:
            found[type_id] = (*found.get(type_id, ()), lookup)
    return found


def new_probes(
    program: ProgramShape, tables: Sequence[Table], params: Any
) -> tuple[Array, ...]:
    """Returns the probe of each table.

    Args:
        program: The program.
        tables: The tables.
        params: The parameters, or their shapes.

    Returns:
        Zeros, ``[S, ...]``: one row of the table's shape for each lookup in the
        program's bucket.
    """
    arrays = jax.tree.leaves(params)
    own = [(lookup_count(program, table), arrays[table.leaf]) for table in tables]
    return tuple(jnp.zeros((count, *each.shape[1:]), each.dtype) for count, each in own)


def lookup_count(program: ProgramShape, table: Table) -> int:
    """Returns the number of rows that a program looks up in a table, in its bucket.

    Args:
        program: The program.
        table: The table.
    """
    rows = dict(program.type_rows)
    return sum(lookup.tape_size(rows[type_id]) for type_id, lookup in table.lookups)


def rows_of_tables(
    tables: Sequence[Table], looked_up: dict[int, list[Array]]
) -> tuple[Array, ...]:
    """Lists the indices of the rows that were looked up.

    Args:
        tables: The tables.
        looked_up: Row indices, as in `TapedRun.looked_up`.

    Returns:
        ``[S] int32`` for each table; the index after the last row for entries without a
        lookup.
    """
    parts = {type_id: iter(own) for type_id, own in looked_up.items()}
    return tuple(
        _joined([next(parts[type_id]).reshape(-1) for type_id, _ in table.lookups])
        for table in tables
    )


def cotangents_of_tables(
    tables: Sequence[Table], site_outputs: dict[int, Tapes], params: Any
) -> tuple[Array, ...]:
    """Lists the cotangents of the rows that were looked up.

    Args:
        tables: The tables.
        site_outputs: Cotangents of the outputs of each site, by type.
        params: The parameters.

    Returns:
        ``[S, ...]`` for each table, in the order of `rows_of_tables`; zeros for entries
        without a lookup.
    """
    arrays = jax.tree.leaves(params)

    def values(table: Table) -> Array:
        row = arrays[table.leaf].shape[1:]
        parts = []
        for type_id, lookup in table.lookups:
            [tape] = site_outputs[type_id][lookup.site]
            # A cell may compute in a dtype other than the table's.
            parts.append(tape.reshape(-1, *row).astype(arrays[table.leaf].dtype))
        return _joined(parts)

    return tuple(map(values, tables))


def _joined(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts)
