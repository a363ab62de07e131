"""The forward pass of a gradient: the executor's loops, which also write tapes."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from edbatch.cell.backward import TapedCell
from edbatch.cell.rows import write_rows
from edbatch.cell.weight_gradient import Tapes
from edbatch.executor.arenas import Arenas
from edbatch.executor.base import Prepared
from edbatch.executor.chunk import Chunk, read_inputs, write_outputs
from edbatch.executor.loops import walk
from edbatch.executor.program import ProgramShape
from edbatch.stream.loop import Loop
from edbatch.stream.stream import Stream


class TapedRun(NamedTuple):
    """What a forward pass leaves for the backward pass.

    Attributes:
        end: Where the last record ends.
        lanes: Rows of the tapes that are written, by type.
        arenas: Values.
        gives: Outputs of each weight-gradient site, by type.
    """

    end: Array
    lanes: dict[int, Array]
    arenas: Arenas
    gives: dict[int, Tapes]


class _State(NamedTuple):
    lanes: dict[int, Array]
    arenas: Arenas
    gives: dict[int, Tapes]


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
        prepared: What cells make of parameters alone.
        cells: The cells, by type.
        arenas: Values by array kind.
        pools: External inputs by array kind.
        stream: The stream.

    Returns:
        Values and tapes.
    """
    rows = dict(program.type_rows)
    start = _State(
        lanes=dict.fromkeys(cells, jnp.int32(0)),
        arenas=arenas,
        gives={
            type_id: cell.new_outputs(rows[type_id]) for type_id, cell in cells.items()
        },
    )

    def body_of(loop: Loop) -> Callable[[Chunk, _State], _State]:
        type_id, width = loop.type_id, loop.width
        forward = cells[type_id].forward
        run = jax.vmap(forward, in_axes=(None, 0, 0, 0), axis_size=width)

        def body(chunk: Chunk, state: _State) -> _State:
            inputs = read_inputs(chunk, state.arenas, pools)
            outputs, gives = run(prepared[type_id], *inputs)
            lane = state.lanes[type_id]
            tapes = write_tapes(state.gives[type_id], lane, gives)
            return _State(
                lanes=state.lanes | {type_id: lane + width},
                arenas=write_outputs(state.arenas, chunk, outputs),
                gives=state.gives | {type_id: tapes},
            )

        return body

    end, state = walk(program, stream, body_of, start)
    return TapedRun(end, *state)


def write_tapes(tapes: Tapes, lane: Array, rows: Tapes) -> Tapes:
    """Writes consecutive rows on tapes.

    Args:
        tapes: The tapes.
        lane: The first row to write, a scalar.
        rows: The rows, ``[W, ...]`` per tape.

    Returns:
        The tapes.
    """
    return jax.tree.map(lambda tape, own: write_rows(tape, lane, own), tapes, rows)
