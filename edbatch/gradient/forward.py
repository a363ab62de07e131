"""The forward pass of a gradient: the executor's loops, which also write tapes."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from edbatch.cell.backward import TapedCell
from edbatch.cell.program import Packed
from edbatch.cell.rows import write_rows
from edbatch.cell.table_lookup import TableLookup
from edbatch.cell.tapes import Tapes
from edbatch.executor.arenas import Arenas
from edbatch.executor.base import Prepared
from edbatch.executor.chunk import Chunk, read_inputs, write_outputs
from edbatch.executor.loops import walk
from edbatch.executor.program import ProgramShape
from edbatch.executor.touched import Touched, chosen
from edbatch.stream.loop import Loop
from edbatch.stream.stream import Stream

LookupsOfTypes = dict[int, tuple[TableLookup, ...]]


class TapedRun(NamedTuple):
    """Residuals of a forward pass.

    Attributes:
        end: Where the last record ends.
        next_rows: Number of tape rows in use, by type.
        arenas: Values.
        site_outputs: Outputs of each weight-gradient site, by type.
        looked_up: Row indices looked up in tables, by type: ``[rows, K]`` for each of
            `LookupsOfTypes`; in rows without a node, the index after the last row.
    """

    end: Array
    next_rows: dict[int, Array]
    arenas: Arenas
    site_outputs: dict[int, Tapes]
    looked_up: dict[int, list[Array]]


class _State(NamedTuple):
    next_rows: dict[int, Array]
    arenas: Arenas
    site_outputs: dict[int, Tapes]
    looked_up: dict[int, list[Array]]

    def part(self, touched: Touched) -> "_State":
        """Returns the entries that some loops touch."""
        return _State(
            chosen(self.next_rows, touched.types),
            chosen(self.arenas, touched.values),
            chosen(self.site_outputs, touched.types),
            chosen(self.looked_up, touched.types),
        )


def run_with_tapes(
    program: ProgramShape,
    prepared: Prepared,
    cells: dict[int, TapedCell],
    arenas: Arenas,
    pools: Arenas,
    stream: Stream,
    lookups: LookupsOfTypes | None = None,
) -> TapedRun:
    """Runs a stream as `Executor.run` does, and keeps the outputs of sites.

    Args:
        program: The program.
        prepared: Packed parameters, by type.
        cells: The cells, by type.
        arenas: Values by array kind.
        pools: External inputs by array kind.
        stream: The stream.
        lookups: Lookups whose row indices are recorded, by type.

    Returns:
        Values and tapes.
    """
    rows = dict(program.type_rows)
    lookups = dict.fromkeys(cells, ()) | (lookups or {})
    start = _State(
        next_rows=dict.fromkeys(cells, jnp.int32(0)),
        arenas=arenas,
        site_outputs={
            type_id: cell.new_outputs(rows[type_id]) for type_id, cell in cells.items()
        },
        looked_up={
            type_id: [each.new_tape(rows[type_id]) for each in own]
            for type_id, own in lookups.items()
        },
    )

    def body_of(loop: Loop) -> Callable[[Chunk, _State], _State]:
        type_id, width = loop.type_id, loop.width
        run = cells[type_id].called(_forward_rows)

        def body(chunk: Chunk, state: _State) -> _State:
            repeat = program.repeats_rows(type_id)
            inputs = read_inputs(chunk, state.arenas, pools, repeat=repeat)
            own = program.own(type_id, prepared[type_id], chunk.member)
            found = run((width, lookups[type_id]), own, *inputs)
            outputs, site_outputs, looked_up = found
            row = state.next_rows[type_id]
            tapes = write_tapes(state.site_outputs[type_id], row, site_outputs)
            real = chunk.is_real(2)
            numbers = [
                jnp.where(real, own, each.shape[0])
                for each, own in zip(lookups[type_id], looked_up, strict=True)
            ]
            rows = write_tapes(state.looked_up[type_id], row, numbers)
            return _State(
                next_rows=state.next_rows | {type_id: row + width},
                arenas=write_outputs(state.arenas, chunk, outputs),
                site_outputs=state.site_outputs | {type_id: tapes},
                looked_up=state.looked_up | {type_id: rows},
            )

        return body

    end, state = walk(program, stream, body_of, start)
    return TapedRun(end, *state)


def _forward_rows(
    cell: TapedCell,
    what: tuple[int, tuple[TableLookup, ...]],
    packed: Packed,
    *inputs: Any,
) -> tuple[list[Array], Tapes, list[Array]]:
    width, lookups = what
    forward = partial(cell.forward, read=[each.site for each in lookups])
    run = jax.vmap(forward, in_axes=(None, 0, 0, 0), axis_size=width)
    outputs, site_outputs, read = run(packed, *inputs)
    looked_up = [each.rows(own) for each, own in zip(lookups, read, strict=True)]
    return outputs, site_outputs, looked_up


def write_tapes(tapes: Any, row: Array, rows: Any) -> Any:
    """Writes consecutive rows on tapes.

    Args:
        tapes: The tapes, any pytree.
        row: The first row to write, a scalar.
        rows: The rows, ``[W, ...]`` per tape.

    Returns:
        The updated tapes.
    """
    return jax.tree.map(lambda tape, own: write_rows(tape, row, own), tapes, rows)
