"""The forward pass of a gradient: the executor's loops, which also write tapes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from edbatch.cell.backward import TapedCell
from edbatch.cell.program import Packed
from edbatch.cell.rows import write_rows
from edbatch.cell.weight_gradient import Tapes
from edbatch.executor.arenas import Arenas
from edbatch.executor.base import Prepared
from edbatch.executor.chunk import Chunk, read_inputs, write_outputs
from edbatch.executor.loops import walk
from edbatch.executor.program import ProgramShape
from edbatch.executor.touched import Touched, chosen
from edbatch.stream.loop import Loop
from edbatch.stream.stream import Stream


class TapedRun(NamedTuple):
    """Residuals of a forward pass.

    Attributes:
        end: Where the last record ends.
        next_rows: Rows of the tapes in use, by type.
        arenas: Values.
        site_outputs: Outputs of each weight-gradient site, by type.
    """

    end: Array
    next_rows: dict[int, Array]
    arenas: Arenas
    site_outputs: dict[int, Tapes]


class _State(NamedTuple):
    next_rows: dict[int, Array]
    arenas: Arenas
    site_outputs: dict[int, Tapes]

    def part(self, touched: Touched) -> "_State":
        """Returns what loops touch."""
        return _State(
            chosen(self.next_rows, touched.types),
            chosen(self.arenas, touched.values),
            chosen(self.site_outputs, touched.types),
        )


def run_with_tapes(
    program: ProgramShape,
    prepared: Prepared,
    cells: dict[int, TapedCell],
    arenas: Arenas,
    pools: Arenas,
    stream: Stream,
) -> TapedRun:
    """Runs a stream as `Executor.run` does, and keeps the outputs of sites.

    Args:
        program: The program.
        prepared: Packed parameters, by type.
        cells: The cells, by type.
        arenas: Values by array kind.
        pools: External inputs by array kind.
        stream: The stream.

    Returns:
        Values and tapes.
    """
    rows = dict(program.type_rows)
    start = _State(
        next_rows=dict.fromkeys(cells, jnp.int32(0)),
        arenas=arenas,
        site_outputs={
            type_id: cell.new_outputs(rows[type_id]) for type_id, cell in cells.items()
        },
    )

    def body_of(loop: Loop) -> Callable[[Chunk, _State], _State]:
        type_id, width = loop.type_id, loop.width
        run = cells[type_id].called(_forward_rows)

        def body(chunk: Chunk, state: _State) -> _State:
            repeat = program.repeats_rows(type_id)
            inputs = read_inputs(chunk, state.arenas, pools, repeat=repeat)
            own = program.own(type_id, prepared[type_id], chunk.member)
            outputs, site_outputs = run(width, own, *inputs)
            row = state.next_rows[type_id]
            tapes = write_tapes(state.site_outputs[type_id], row, site_outputs)
            return _State(
                next_rows=state.next_rows | {type_id: row + width},
                arenas=write_outputs(state.arenas, chunk, outputs),
                site_outputs=state.site_outputs | {type_id: tapes},
            )

        return body

    end, state = walk(program, stream, body_of, start)
    return TapedRun(end, *state)


def _forward_rows(
    cell: TapedCell, width: int, packed: Packed, *inputs: Any
) -> tuple[list[Array], Tapes]:
    run = jax.vmap(cell.forward, in_axes=(None, 0, 0, 0), axis_size=width)
    return run(packed, *inputs)


def write_tapes(tapes: Tapes, row: Array, rows: Tapes) -> Tapes:
    """Writes consecutive rows on tapes.

    Args:
        tapes: The tapes.
        row: The first row to write, a scalar.
        rows: The rows, ``[W, ...]`` per tape.

    Returns:
        The tapes.
    """
    return jax.tree.map(lambda tape, own: write_rows(tape, row, own), tapes, rows)
