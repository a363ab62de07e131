"""Gradients of the program: the same loops, backwards.

The forward pass keeps the arenas. The backward pass walks the stream from its end:
each chunk reads its inputs again, reads its outputs' cotangents as one slice of a
cotangent arena, differentiates the cell on these rows (recomputing it) and adds the
operands' cotangents to the rows that it read. For the parameters it writes tapes (see
`taped_cell`), of which one contraction at the end makes cotangents; JAX takes these
back through what cells make of parameters alone.

Lanes of padding have a zero cotangent.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from edbatch.errors import PlanError
from edbatch.execution.cell_batch import (
    Arenas,
    Chunk,
    fence,
    group_rows,
    record_length,
    slice_rows,
    write_outputs,
)
from edbatch.execution.cells import Packed
from edbatch.execution.loop import Loop
from edbatch.execution.program import (
    ProgramShape,
    execute,
    new_arenas,
    read_inputs,
    run_loops,
)
from edbatch.execution.taped_cell import TapedCell, Tapes
from edbatch.graph.node_type import Slots


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def differentiable_execute(
    shape: ProgramShape,
    params: Any,
    pools: Arenas,
    stream: Array,
    trips: Array,
    num_steps: Array,
) -> Arenas:
    """As `execute`, with a gradient for parameters and floating external inputs.

    Args:
        shape: The program.
        params: The model's parameters.
        pools: External inputs by array kind.
        stream: Records of all chunks.
        trips: Turns of each loop in each step.
        num_steps: How many steps there are.

    Returns:
        The arenas, by array kind.
    """
    return execute(shape, params, pools, stream, trips, num_steps)


def _forward(
    shape: ProgramShape, params: Any, pools: Arenas, *plan: Array
) -> tuple[Arenas, Any]:
    if shape.reuses_rows:
        raise PlanError(
            "a gradient needs the values that a plan with reuse=True overwrites; plan"
            " with eb.Planner(reuse=False) for training"
        )
    stream, trips, num_steps = plan
    packed = shape.pack(params)
    cells = {type_id: shape.taped_cell(type_id) for type_id in packed}
    rows = dict(shape.type_rows)
    start = _Run(
        at=jnp.int32(0),
        lanes=dict.fromkeys(cells, jnp.int32(0)),
        arenas=new_arenas(shape),
        gives={
            type_id: cell.new_gives(rows[type_id]) for type_id, cell in cells.items()
        },
    )
    bodies = [
        _forward_body(loop, cells, packed, shape, pools, stream) for loop in shape.loops
    ]

    def step(s: Array, carry: _Run) -> _Run:
        return run_loops(bodies, trips[s], carry)

    end = lax.fori_loop(0, num_steps, step, start)
    return end.arenas, (params, pools, plan, end)


class _Run(NamedTuple):
    """State of the forward pass.

    Attributes:
        at: Place in the stream.
        lanes: Rows of the tapes that are written, by type.
        arenas: Values.
        gives: What each site gave, by type.
    """

    at: Array
    lanes: dict[int, Array]
    arenas: Arenas
    gives: dict[int, Tapes]


def _forward_body(
    loop: Loop,
    cells: dict[int, TapedCell],
    all_packed: dict[int, Packed],
    shape: ProgramShape,
    pools: Arenas,
    stream: Array,
) -> Callable[[Any, _Run], _Run]:
    type_id, width = loop.type_id, loop.width
    node_type, cell = shape.types.types[type_id], cells[type_id]
    packed = all_packed[type_id]
    length = record_length(node_type, loop)
    lanes = jax.vmap(cell.forward, in_axes=(None, 0, 0, 0), axis_size=width)

    def body(_: Any, carry: _Run) -> _Run:
        record = lax.dynamic_slice(stream, (carry.at,), (length,))
        chunk = Chunk(node_type, loop, record)
        outputs, gives = lanes(packed, *read_inputs(chunk, carry.arenas, pools))
        lane = carry.lanes[type_id]
        tapes = _write(carry.gives[type_id], lane, gives)
        return _Run(
            at=carry.at + length,
            lanes=carry.lanes | {type_id: lane + width},
            arenas=write_outputs(carry.arenas, node_type, chunk, outputs),
            gives=carry.gives | {type_id: tapes},
        )

    return body


def _backward(shape: ProgramShape, residuals: Any, cotangents: Arenas) -> Any:
    params, pools, plan, run = residuals
    stream, trips, num_steps = plan
    packed, unpack = jax.vjp(shape.pack, params)
    cells = {type_id: shape.taped_cell(type_id) for type_id in packed}
    rows = dict(shape.type_rows)
    floats = {k: each for k, each in cotangents.items() if _is_float(run.arenas[k])}
    start = _Carry(
        at=run.at,
        lanes=run.lanes,
        sums={
            type_id: [jnp.zeros_like(packed[type_id][k]) for k in cell.direct]
            for type_id, cell in cells.items()
        },
        reads={
            type_id: cell.new_reads(rows[type_id]) for type_id, cell in cells.items()
        },
        gives=run.gives,
        pools_bar={kind: _zero(pool) for kind, pool in pools.items()},
        arenas_bar=floats,
    )
    arenas = run.arenas
    bodies = [
        _backward_body(loop, cells, packed, shape, pools, arenas, stream)
        for loop in shape.loops
    ]

    def step(s: Array, carry: _Carry) -> _Carry:
        return run_loops(bodies, trips[num_steps - 1 - s], carry, reverse=True)

    end = lax.fori_loop(0, num_steps, step, start)
    packed_bar = {
        type_id: _collect(
            cell,
            packed[type_id],
            end.sums[type_id],
            (end.reads[type_id], end.gives[type_id]),
        )
        for type_id, cell in cells.items()
    }
    return (
        *unpack(packed_bar),
        {kind: _finish(end.pools_bar[kind], pool) for kind, pool in pools.items()},
        *(np.zeros(each.shape, jax.dtypes.float0) for each in plan),
    )


differentiable_execute.defvjp(_forward, _backward)


class _Carry(NamedTuple):
    """State of the backward pass, which goes through the stream from its end.

    Attributes:
        at: Place in the stream.
        lanes: Rows of the tapes that are still to do, by type.
        sums: Cotangents of packed arrays that are summed chunk by chunk, by type.
        reads: What each site reads of the lane, by type.
        gives: What each site gave; its cotangents, in the rows that are done.
        pools_bar: Cotangents of external inputs.
        arenas_bar: Cotangents of values.
    """

    at: Array
    lanes: dict[int, Array]
    sums: dict[int, list[Array]]
    reads: dict[int, Tapes]
    gives: dict[int, Tapes]
    pools_bar: Arenas
    arenas_bar: Arenas


def _backward_body(
    loop: Loop,
    cells: dict[int, TapedCell],
    all_packed: dict[int, Packed],
    shape: ProgramShape,
    pools: Arenas,
    arenas: Arenas,
    stream: Array,
) -> Callable[[Any, _Carry], _Carry]:
    type_id, width = loop.type_id, loop.width
    node_type, cell = shape.types.types[type_id], cells[type_id]
    packed = all_packed[type_id]
    length = record_length(node_type, loop)
    lanes = jax.vmap(cell.again, in_axes=(None, 0, 0, None, 0), axis_size=width)

    def body(_: Any, carry: _Carry) -> _Carry:
        at, lane = carry.at - length, carry.lanes[type_id] - width
        chunk = Chunk(node_type, loop, lax.dynamic_slice(stream, (at,), (length,)))
        operands, externals, masks = read_inputs(chunk, arenas, pools)
        operands = _repeat_last(chunk, operands)
        given = [
            [_real_rows(chunk, tape, lane) for tape in site]
            for site in carry.gives[type_id]
        ]

        def run(direct: Any, operands: Any, externals: Any, deltas: Any) -> Any:
            return lanes(direct, (operands, externals, masks), deltas, packed, given)

        direct = [packed[k] for k in cell.direct]
        outputs, pull, reads = jax.vjp(
            run,
            direct,
            operands,
            externals,
            jax.tree.map(jnp.zeros_like, given),
            has_aux=True,
        )
        bars = pull(
            [
                _read_cotangent(carry.arenas_bar, kind, row, output, chunk)
                for kind, row, output in zip(
                    node_type.output_kinds, chunk.output_rows, outputs, strict=True
                )
            ]
        )
        (direct_bar, operands_bar, externals_bar, gives_bar), reads = _fence_floats(
            (bars, reads), chunk.output_rows[0]
        )
        template = node_type.template
        sums = [a + b for a, b in zip(carry.sums[type_id], direct_bar, strict=True)]
        return _Carry(
            at=at,
            lanes=carry.lanes | {type_id: lane},
            sums=carry.sums | {type_id: sums},
            reads=carry.reads | {type_id: _write(carry.reads[type_id], lane, reads)},
            gives=carry.gives
            | {type_id: _write(carry.gives[type_id], lane, gives_bar)},
            arenas_bar=_add_groups(
                carry.arenas_bar,
                node_type.operand_kinds,
                template.operands,
                chunk.operands,
                operands_bar,
            ),
            pools_bar=_add_groups(
                carry.pools_bar,
                node_type.external_kinds,
                template.externals,
                chunk.externals,
                externals_bar,
            ),
        )

    return body


def _write(tapes: Tapes, lane: Array, rows: Tapes) -> Tapes:
    """Writes rows of consecutive lanes on tapes."""

    def write(tape: Array, rows: Array) -> Array:
        start = (lane,) + (jnp.int32(0),) * (rows.ndim - 1)
        return lax.dynamic_update_slice(tape, rows, start)

    return jax.tree.map(write, tapes, rows)


def _real_rows(chunk: Chunk, tape: Array, lane: Array) -> Array:
    """Reads a chunk's rows of a tape; in padding lanes, the last node's."""
    rows = slice_rows(tape, lane, chunk.width)
    last = lax.dynamic_index_in_dim(rows, chunk.size - 1)
    return jnp.where(chunk.is_real(rows.ndim), rows, last)


def _collect(
    cell: TapedCell, packed: Packed, sums: list[Array], tapes: tuple[Tapes, Tapes]
) -> Packed:
    """Returns the cotangents of packed arrays, from tapes and sums."""
    if cell.sites:
        found = list(cell.contract(packed, *tapes))
    else:
        found = [_finish(_zero(each), each) for each in packed]
    for k, bar in zip(cell.direct, sums, strict=True):
        found[k] = found[k] + bar
    return tuple(found)


def _fence_floats(bars: Any, row: Array) -> Any:
    """As `fence`, for a pytree of cotangents, of which some may be float0."""
    leaves, treedef = jax.tree.flatten(bars)
    real = [k for k, leaf in enumerate(leaves) if leaf.dtype != jax.dtypes.float0]
    if not real:
        return bars
    for k, leaf in zip(real, fence([leaves[k] for k in real], row), strict=True):
        leaves[k] = leaf
    return jax.tree.unflatten(treedef, leaves)


def _repeat_last(chunk: Chunk, operands: list[Array]) -> list[Array]:
    """Gives padding lanes of slices what those of gathers have: the last node's rows.

    Whatever follows a slice may be infinite, and zero times infinity is not zero.
    """
    clean = []
    for group, array in zip(chunk.node_type.template.operands, operands, strict=True):
        if group_rows(group, chunk.operands).ndim == 0:
            last = lax.dynamic_index_in_dim(array, chunk.size - 1)
            array = jnp.where(chunk.is_real(array.ndim), array, last)
        clean.append(array)
    return clean


def _read_cotangent(
    arenas_bar: Arenas, kind: int, row: Array, output: Array, chunk: Chunk
) -> Any:
    """Reads an output's cotangent; zero in padding lanes, whose rows may be others'."""
    if kind not in arenas_bar:
        return np.zeros(output.shape, jax.dtypes.float0)
    bar = slice_rows(arenas_bar[kind], row, chunk.width)
    return jnp.where(chunk.is_real(bar.ndim), bar, 0)


def _add_groups(
    arenas_bar: Arenas,
    kinds: tuple[int, ...],
    groups: tuple[Slots, ...],
    rows: Sequence[Array],
    bars: list[Any],
) -> Arenas:
    """Adds cotangents to the rows that each group of slots was read from."""
    arenas_bar = dict(arenas_bar)
    for group, bar in zip(groups, bars, strict=True):
        kind = kinds[group.slots[0]]
        if bar.dtype == jax.dtypes.float0 or not _is_float(arenas_bar.get(kind)):
            continue
        where = group_rows(group, rows)
        own = arenas_bar[kind]
        if where.ndim == 0:
            start = (where,) + (jnp.int32(0),) * (bar.ndim - 1)
            bar = bar + slice_rows(own, where, bar.shape[0])
            arenas_bar[kind] = lax.dynamic_update_slice(own, bar, start)
        else:
            arenas_bar[kind] = own.at[where].add(bar, mode="promise_in_bounds")
    return arenas_bar


def _is_float(array: Any) -> bool:
    return array is not None and jnp.issubdtype(array.dtype, jnp.inexact)


def _zero(array: Array) -> Array:
    """A cotangent of zero; a placeholder for what has no cotangent."""
    return jnp.zeros_like(array) if _is_float(array) else jnp.zeros((), jnp.float32)


def _finish(bar: Array, primal: Array) -> Any:
    return bar if _is_float(primal) else np.zeros(primal.shape, jax.dtypes.float0)
