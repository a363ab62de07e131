"""Gradients of the program: the same loops, backwards.

The forward pass keeps the arenas. The backward pass walks the stream from its end:
each chunk reads its inputs again, reads its outputs' cotangents as one slice of a
cotangent arena, differentiates the cell on these rows (recomputing it) and adds the
operands' cotangents to the rows that it read. For the parameters it writes tapes (see
`taped_cell`), of which one contraction at the end makes cotangents; JAX takes these
back through what cells make of parameters alone.

Lanes of padding have a zero cotangent, and what is differentiated by rules of their own
gets nothing from them: such a rule may make something of a zero. Outputs that neither a
cell nor the loss reads, by their array kind, have no cotangent at all, as in JAX: the
slope of a norm is infinite at zero.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero

from edbatch.errors import PlanError
from edbatch.execution.cell_batch import (
    Arenas,
    Chunk,
    record_length,
    slice_rows,
    write_outputs,
    write_rows,
)
from edbatch.execution.cells import Packed
from edbatch.execution.cotangents import (
    add_groups,
    as_cotangent,
    fence_floats,
    is_float,
    is_float0,
    read_cotangent,
    real_rows,
    repeat_last,
    zero_cotangent,
)
from edbatch.execution.loop import Loop
from edbatch.execution.program import (
    ProgramShape,
    execute,
    new_arenas,
    read_inputs,
    run_loops,
)
from edbatch.execution.taped_cell import TapedCell, Tapes


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def differentiable_execute(
    shape: ProgramShape,
    results: frozenset[int],
    params: Any,
    pools: Arenas,
    stream: Array,
    trips: Array,
    num_steps: Array,
) -> Arenas:
    """As `execute`, with a gradient for parameters and floating external inputs.

    Args:
        shape: The program.
        results: Array kinds of the arenas that the caller reads.
        params: The model's parameters.
        pools: External inputs by array kind.
        stream: Records of all chunks.
        trips: Turns of each loop in each step.
        num_steps: How many steps there are.

    Returns:
        These arenas, by array kind.
    """
    arenas = execute(shape, params, pools, stream, trips, num_steps)
    return {kind: arenas[kind] for kind in results}


def _forward(
    shape: ProgramShape, results: frozenset[int], *arguments: Any
) -> tuple[Arenas, Any]:
    if shape.reuses_rows:
        raise PlanError(
            "a gradient needs the values that a plan with reuse=True overwrites; plan"
            " with eb.Planner(reuse=False) for training"
        )
    params, pools, *plan = jax.tree.map(lambda each: each.value, arguments)
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
    own = {kind: end.arenas[kind] for kind in results}
    return own, (params, pools, plan, end)


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
        record = slice_rows(stream, carry.at, length)
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


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _differentiate_once(shape: ProgramShape, residuals: Any, cotangents: Arenas) -> Any:
    bars = _differentiate(shape, residuals, cotangents)
    return jax.tree.map(lambda bar: None if is_float0(bar) else bar, bars)


@_differentiate_once.defjvp
def _differentiate_twice(shape: ProgramShape, primals: Any, tangents: Any) -> Any:
    raise PlanError(
        "a batched function has first derivatives only, by jax.grad, jax.value_and_grad"
        " or jax.vjp, but this asks for the derivative of its gradient; for a Hessian,"
        " differentiate the model itself, instance by instance"
    )


def _backward(
    shape: ProgramShape, _: frozenset[int], residuals: Any, cotangents: Arenas
) -> Any:
    known = {
        kind: bar
        for kind, bar in cotangents.items()
        if not isinstance(bar, SymbolicZero)
    }
    bars = _differentiate_once(shape, residuals, known)
    params, pools, plan, _ = residuals

    def restore(primal: Array, bar: Array | None) -> Any:
        return np.zeros(primal.shape, jax.dtypes.float0) if bar is None else bar

    params_bar, pools_bar = jax.tree.map(restore, (params, pools), bars)
    return params_bar, pools_bar, *(restore(each, None) for each in plan)


def _differentiate(shape: ProgramShape, residuals: Any, cotangents: Arenas) -> Any:
    """Returns the cotangents of parameters and pools."""
    params, pools, plan, run = residuals
    stream, trips, num_steps = plan
    packed, unpack = jax.vjp(shape.pack, params)
    cells = {type_id: shape.taped_cell(type_id) for type_id in packed}
    rows = dict(shape.type_rows)
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
        pools_bar={kind: zero_cotangent(pool) for kind, pool in pools.items()},
        arenas_bar=_first_cotangents(shape, run.arenas, cotangents),
    )
    arenas = run.arenas
    turned = {type_id: cell.turn(packed[type_id]) for type_id, cell in cells.items()}
    bodies = [
        _backward_body(loop, cells, packed, turned, shape, pools, arenas, stream)
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
            (end.reads[type_id], end.gives[type_id], run.lanes[type_id]),
        )
        for type_id, cell in cells.items()
    }
    [params_bar] = unpack(packed_bar)
    pools_bar = {
        kind: as_cotangent(end.pools_bar[kind], pool) for kind, pool in pools.items()
    }
    return params_bar, pools_bar


differentiable_execute.defvjp(_forward, _backward, symbolic_zeros=True)


def _first_cotangents(
    shape: ProgramShape, arenas: Arenas, cotangents: Arenas
) -> Arenas:
    """The cotangents of floating arenas that somebody reads, before the first chunk."""
    types = [shape.types.types[each.type_id] for each in shape.loops]
    read = {*cotangents, *(kind for each in types for kind in each.operand_kinds)}
    return {
        kind: cotangents[kind] if kind in cotangents else jnp.zeros_like(arenas[kind])
        for kind in sorted(read)
        if is_float(arenas[kind])
    }


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
    all_turned: dict[int, list[Array | None]],
    shape: ProgramShape,
    pools: Arenas,
    arenas: Arenas,
    stream: Array,
) -> Callable[[Any, _Carry], _Carry]:
    type_id, width = loop.type_id, loop.width
    node_type, cell = shape.types.types[type_id], cells[type_id]
    packed, turned = all_packed[type_id], all_turned[type_id]
    length = record_length(node_type, loop)
    axes = (0, None, 0, 0, None, None, 0)
    lanes = jax.vmap(cell.again, in_axes=axes, axis_size=width)

    def body(_: Any, carry: _Carry) -> _Carry:
        at, lane = carry.at - length, carry.lanes[type_id] - width
        chunk = Chunk(node_type, loop, slice_rows(stream, at, length))
        operands, externals, masks = read_inputs(chunk, arenas, pools)
        operands = repeat_last(chunk, operands)
        given = [
            [real_rows(chunk, tape, lane) for tape in site]
            for site in carry.gives[type_id]
        ]

        kinds = node_type.output_kinds
        read = [k for k, kind in enumerate(kinds) if kind in carry.arenas_bar]

        def run(direct: Any, operands: Any, externals: Any, deltas: Any) -> Any:
            inputs = (operands, externals, masks)
            outputs, reads = lanes(
                chunk.is_real(1), direct, inputs, deltas, packed, turned, given
            )
            return [outputs[k] for k in read], reads

        direct = [packed[k] for k in cell.direct]
        _, pull, reads = jax.vjp(
            run,
            direct,
            operands,
            externals,
            jax.tree.map(jnp.zeros_like, given),
            has_aux=True,
        )
        bars = pull(
            [
                read_cotangent(
                    carry.arenas_bar[kinds[k]],
                    chunk.output_rows[k],
                    chunk,
                )
                for k in read
            ]
        )
        (direct_bar, operands_bar, externals_bar, gives_bar), reads = fence_floats(
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
            arenas_bar=add_groups(
                carry.arenas_bar,
                node_type.operand_kinds,
                template.operands,
                chunk.operands,
                operands_bar,
            ),
            pools_bar=add_groups(
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
    return jax.tree.map(lambda tape, own: write_rows(tape, lane, own), tapes, rows)


def _collect(
    cell: TapedCell,
    packed: Packed,
    sums: list[Array],
    tapes: tuple[Tapes, Tapes, Array],
) -> Packed:
    """Returns the cotangents of packed arrays, from tapes and sums."""
    taped = cell.contract(packed, *tapes)
    found = [
        taped[k] if k in taped else as_cotangent(zero_cotangent(each), each)
        for k, each in enumerate(packed)
    ]
    for k, bar in zip(cell.direct, sums, strict=True):
        found[k] = found[k] + bar
    return tuple(found)
