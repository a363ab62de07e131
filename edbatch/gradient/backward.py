"""Gradients of the program: the same loops, backwards.

The forward pass keeps the arenas. The backward pass walks the stream from its end:
each chunk reads its inputs again, reads its outputs' cotangents as one slice of a
cotangent arena, differentiates the cell on these rows (recomputing it) and adds the
operands' cotangents to the rows that it read. For the parameters it writes tapes (see
`taped_cell`), of which one contraction at the end makes cotangents; JAX takes these
back through what cells make of parameters alone.

A chunk's rows are differentiated together, but a row must contribute only what its node
does in the model of one instance. Rows of padding contribute nothing, whatever the rows
hold that they were read from: zero times a value or a slope that is not finite is not
zero, so their contributions are masked and not only their cotangents.

JAX also knows cotangents that are zero because nothing reads an output (symbolic
zeros), which are not propagated: the slope of a norm is infinite at zero. Where cells
have such slopes, the program keeps a mask beside each arena of cotangents of the rows
that one has *reached*, and the rows that none has reached are treated as padding.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero

from edbatch.cell.backward import TapedCell
from edbatch.cell.program import Packed
from edbatch.cell.rows import keep_rows, slice_rows, take_rows, write_rows, zero_unless
from edbatch.cell.weight_gradient import Tapes
from edbatch.errors import PlanError
from edbatch.executor.chunk import Arenas, read_chunk, write_outputs
from edbatch.executor.program import (
    ProgramShape,
    execute,
    new_arenas,
    read_inputs,
    run_loops,
)
from edbatch.gradient.cotangents import (
    add_groups,
    as_cotangent,
    fence_floats,
    is_float,
    is_float0,
    repeat_last,
    zero_cotangent,
)
from edbatch.gradient.moving import moving_arenas, put, read_from, take
from edbatch.gradient.reached import (
    Group,
    Results,
    differentiate_groups,
    divide_outputs,
    first_reached,
    has_poles,
    mark_reached,
)
from edbatch.stream.format import record_format
from edbatch.stream.loop import Loop


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def differentiable_execute(
    shape: ProgramShape,
    kinds: tuple[int, ...],
    params: Any,
    pools: Arenas,
    stream: Array,
    trips: Array,
    num_steps: Array,
    rows: tuple[Array, ...],
) -> tuple[Array, ...]:
    """Runs a minibatch and reads results, with a gradient.

    One may differentiate by parameters and floating external inputs.

    Args:
        shape: The program.
        kinds: Array kind of each result.
        params: The model's parameters.
        pools: External inputs by array kind.
        stream: Records of all chunks.
        trips: Turns of each loop in each step.
        num_steps: How many steps there are.
        rows: Rows of each result, ``[n] int32``.

    Returns:
        The results, ``[n, ...]`` each. They are read here and not by the caller, so
        that it is known which of them have no cotangent.
    """
    arenas = execute(shape, params, pools, stream, trips, num_steps)
    return _read_results(kinds, arenas, rows)


def _read_results(
    kinds: tuple[int, ...], arenas: Arenas, rows: tuple[Array, ...]
) -> tuple[Array, ...]:
    return tuple(
        take_rows(arenas[kind], own) for kind, own in zip(kinds, rows, strict=True)
    )


def _forward(
    shape: ProgramShape, kinds: tuple[int, ...], *arguments: Any
) -> tuple[tuple[Array, ...], Any]:
    if shape.reuses_rows:
        raise PlanError(
            "a gradient needs the values that a plan with reuse=True overwrites; plan"
            " with eb.Planner(reuse=False) for training"
        )
    params, pools, *plan = jax.tree.map(lambda each: each.value, arguments)
    # Which pools somebody differentiates by is part of the structure: None or ().
    moving = {
        kind: () if each.perturbed else None for kind, each in arguments[1].items()
    }
    stream, trips, num_steps, result_rows = plan
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
    results = _read_results(kinds, end.arenas, result_rows)
    return results, (params, pools, plan, end, moving)


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
    length = record_format(node_type, loop).length
    lanes = jax.vmap(cell.forward, in_axes=(None, 0, 0, 0), axis_size=width)

    def body(_: Any, carry: _Run) -> _Run:
        chunk = read_chunk(node_type, loop, stream, carry.at)
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


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _differentiate_once(
    shape: ProgramShape,
    kinds: tuple[int, ...],
    residuals: Any,
    cotangents: list[Array | None],
) -> Any:
    bars = _differentiate(shape, kinds, residuals, cotangents)
    return jax.tree.map(lambda bar: None if is_float0(bar) else bar, bars)


@_differentiate_once.defjvp
def _differentiate_twice(
    shape: ProgramShape, kinds: tuple[int, ...], primals: Any, tangents: Any
) -> Any:
    raise PlanError(
        "a batched function has first derivatives only, by jax.grad, jax.value_and_grad"
        " or jax.vjp, but this asks for the derivative of its gradient; for a Hessian,"
        " differentiate the model itself, instance by instance"
    )


def _backward(
    shape: ProgramShape, kinds: tuple[int, ...], residuals: Any, cotangents: Any
) -> Any:
    known = [None if isinstance(bar, SymbolicZero) else bar for bar in cotangents]
    bars = _differentiate_once(shape, kinds, residuals, known)
    params, pools, plan, *_ = residuals

    def restore(primal: Array, bar: Array | None) -> Any:
        return np.zeros(primal.shape, jax.dtypes.float0) if bar is None else bar

    params_bar, pools_bar = jax.tree.map(restore, (params, pools), bars)
    rest = jax.tree.map(lambda each: restore(each, None), tuple(plan))
    return params_bar, pools_bar, *rest


def _differentiate(
    shape: ProgramShape,
    kinds: tuple[int, ...],
    residuals: Any,
    cotangents: list[Array | None],
) -> Any:
    """Returns the cotangents of parameters and pools."""
    params, pools, plan, run, moving = residuals
    stream, trips, num_steps, result_rows = plan
    packed, unpack = jax.vjp(shape.pack, params)
    cells = {type_id: shape.taped_cell(type_id) for type_id in packed}
    moving_pools = {kind for kind, mark in moving.items() if mark is not None}
    moving_values = moving_arenas(shape, cells, moving_pools)
    results = [
        (kind, own, bar)
        for kind, own, bar in zip(kinds, result_rows, cotangents, strict=True)
        if bar is not None and kind in moving_values
    ]
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
        lives={
            type_id: cell.new_lives(rows[type_id]) for type_id, cell in cells.items()
        },
        pools_bar={
            kind: jnp.zeros_like(pool)
            for kind, pool in pools.items()
            if kind in moving_pools and is_float(pool)
        },
        arenas_bar=_first_cotangents(shape, run.arenas, moving_values, results),
        reached={},
    )
    if has_poles(shape, cells):
        start = start._replace(reached=first_reached(start.arenas_bar, results))
    arenas = run.arenas
    turned = {type_id: cell.turn(packed[type_id]) for type_id, cell in cells.items()}
    bodies = [
        _backward_body(
            *(loop, cells, packed, turned, shape, pools, arenas, stream),
            moving_values=start.arenas_bar,
            moving_pools=start.pools_bar,
        )
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
            end.reads[type_id],
            end.gives[type_id],
            end.lives[type_id],
            run.lanes[type_id],
        )
        for type_id, cell in cells.items()
    }
    [params_bar] = unpack(packed_bar)
    pools_bar = {
        kind: end.pools_bar[kind]
        if kind in end.pools_bar
        else as_cotangent(zero_cotangent(pool), pool)
        for kind, pool in pools.items()
    }
    return params_bar, pools_bar


differentiable_execute.defvjp(_forward, _backward, symbolic_zeros=True)


def _first_cotangents(
    shape: ProgramShape, arenas: Arenas, moving: set[int], results: Results
) -> Arenas:
    """The cotangents of values that move and are read, before the first chunk."""
    types = [shape.types.types[each.type_id] for each in shape.loops]
    read = {kind for kind, _, _ in results}
    read.update(kind for each in types for kind in each.operand_kinds)
    bars = {kind: jnp.zeros_like(arenas[kind]) for kind in sorted(read & moving)}
    for kind, rows, bar in results:
        bars[kind] = (
            bars[kind]
            .at[rows]
            .add(bar, mode="promise_in_bounds", wrap_negative_indices=False)
        )
    return bars


class _Carry(NamedTuple):
    """State of the backward pass, which goes through the stream from its end.

    Attributes:
        at: Place in the stream.
        lanes: Rows of the tapes that are still to do, by type.
        sums: Cotangents of packed arrays that are summed chunk by chunk, by type.
        reads: What each site reads of the lane, by type.
        gives: What each site gave; its cotangents, in the rows that are done.
        lives: Which rows of the tapes are live lanes, by type; None where not needed.
        pools_bar: Cotangents of external inputs.
        arenas_bar: Cotangents of values.
        reached: Rows that a cotangent has reached, ``[rows] bool`` by array kind; empty
            where no slope is infinite.
    """

    at: Array
    lanes: dict[int, Array]
    sums: dict[int, list[Array]]
    reads: dict[int, Tapes]
    gives: dict[int, Tapes]
    lives: dict[int, Array | None]
    pools_bar: Arenas
    arenas_bar: Arenas
    reached: Arenas


def _backward_body(
    loop: Loop,
    cells: dict[int, TapedCell],
    all_packed: dict[int, Packed],
    all_turned: dict[int, list[Array | None]],
    shape: ProgramShape,
    pools: Arenas,
    arenas: Arenas,
    stream: Array,
    moving_values: Collection[int],
    moving_pools: Collection[int],
) -> Callable[[Any, _Carry], _Carry]:
    type_id, width = loop.type_id, loop.width
    node_type, cell = shape.types.types[type_id], cells[type_id]
    packed, turned = all_packed[type_id], all_turned[type_id]
    length = record_format(node_type, loop).length
    axes = (0, None, 0, 0, None, None, 0)
    lanes = jax.vmap(cell.again, in_axes=axes, axis_size=width)
    template = node_type.template
    moving_operands = read_from(
        node_type.operand_kinds, template.operands, moving_values
    )
    moving_externals = read_from(
        node_type.external_kinds, template.externals, moving_pools
    )
    direct = [packed[k] for k in cell.direct]

    def differentiate(group: Group, inputs: Any, given: Any) -> tuple[Any, Tapes]:
        """Finds the cotangents of a group's outputs; also what sites read."""
        operands, externals, masks = inputs

        def run(direct: Any, some: Any, others: Any, deltas: Any) -> Any:
            own = (put(some, operands), put(others, externals), masks)
            outputs, reads = lanes(
                group.live, direct, own, deltas, packed, turned, given
            )
            return [outputs[k] for k in group.outputs], reads

        zeros = jax.tree.map(jnp.zeros_like, given)
        some = take(operands, moving_operands), take(externals, moving_externals)
        _, pull, reads = jax.vjp(run, direct, *some, zeros, has_aux=True)
        direct_bar, *bars = pull(zero_unless(group.live, group.bars))
        return (direct_bar, *zero_unless(group.live, bars)), zero_unless(
            group.live, reads
        )

    def body(_: Any, carry: _Carry) -> _Carry:
        at, lane = carry.at - length, carry.lanes[type_id] - width
        chunk = read_chunk(node_type, loop, stream, at)
        operands, externals, masks = read_inputs(chunk, arenas, pools)
        inputs = (repeat_last(chunk, operands), externals, masks)
        given = jax.tree.map(
            lambda tape: slice_rows(tape, lane, width), carry.gives[type_id]
        )
        given = keep_rows(chunk.is_real(1), chunk.size - 1, given)
        groups = divide_outputs(cell, chunk, carry.arenas_bar, carry.reached)
        if carry.reached:
            bars, reads, live = differentiate_groups(
                differentiate, groups, inputs, given
            )
        else:
            bars, reads = differentiate(groups[0], inputs, given)
            live = groups[0].live
        (direct_bar, operands_bar, externals_bar, gives_bar), reads = fence_floats(
            (bars, reads), chunk.output_rows[0]
        )
        sums = [a + b for a, b in zip(carry.sums[type_id], direct_bar, strict=True)]
        lives = carry.lives[type_id]
        return _Carry(
            at=at,
            lanes=carry.lanes | {type_id: lane},
            sums=carry.sums | {type_id: sums},
            reads=carry.reads | {type_id: _write(carry.reads[type_id], lane, reads)},
            gives=carry.gives
            | {type_id: _write(carry.gives[type_id], lane, gives_bar)},
            lives=carry.lives
            | {type_id: None if lives is None else write_rows(lives, lane, live)},
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
            reached=mark_reached(cell, chunk, carry.reached),
        )

    return body


def _write(tapes: Tapes, lane: Array, rows: Tapes) -> Tapes:
    """Writes rows of consecutive lanes on tapes."""
    return jax.tree.map(lambda tape, own: write_rows(tape, lane, own), tapes, rows)


def _collect(
    cell: TapedCell,
    packed: Packed,
    sums: list[Array],
    reads: Tapes,
    gives_bar: Tapes,
    lives: Array | None,
    used: Array,
) -> Packed:
    """Returns the cotangents of packed arrays, from tapes and sums."""
    taped = cell.contract(packed, reads, gives_bar, lives, used)
    found = [
        taped[k] if k in taped else as_cotangent(zero_cotangent(each), each)
        for k, each in enumerate(packed)
    ]
    for k, bar in zip(cell.direct, sums, strict=True):
        found[k] = found[k] + bar
    return tuple(found)
