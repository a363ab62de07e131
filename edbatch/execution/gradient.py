"""Gradients of the program: the same loops, backwards.

The forward pass keeps the arenas. The backward pass walks the stream from its end:
each chunk reads its inputs again, reads its outputs' cotangents as one slice of a
cotangent arena, differentiates the cell on these rows (recomputing it) and adds the
operands' cotangents to the rows that it read. Parameters' cotangents are summed
chunk by chunk, for those arrays only that a cell really uses.

Lanes of padding have a zero cotangent.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from edbatch.execution.cell_batch import (
    Arenas,
    Chunk,
    fence,
    group_rows,
    record_length,
    run_cell,
    slice_rows,
)
from edbatch.execution.loop import Loop
from edbatch.execution.program import (
    ProgramShape,
    execute,
    read_inputs,
    run_loops,
)
from edbatch.graph.node_type import NodeType, Slots, input_specs


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
    arenas = execute(shape, params, pools, *plan)
    return arenas, (params, pools, arenas, plan)


def _backward(shape: ProgramShape, residuals: Any, cotangents: Arenas) -> Any:
    params, pools, arenas, plan = residuals
    stream, trips, num_steps = plan
    end = _stream_length(shape, trips, num_steps)
    leaves, treedef = jax.tree.flatten(params)
    carry = (
        end,
        [_zero(leaf) for leaf in leaves],
        {kind: _zero(pool) for kind, pool in pools.items()},
        {kind: each for kind, each in cotangents.items() if _is_float(arenas[kind])},
    )

    bodies = [
        _backward_body(shape, loop, leaves, treedef, pools, arenas, stream)
        for loop in shape.loops
    ]

    def step(s: Array, carry: Any) -> Any:
        return run_loops(bodies, trips[num_steps - 1 - s], carry, reverse=True)

    _, params_bar, pools_bar, _ = lax.fori_loop(0, num_steps, step, carry)
    return (
        jax.tree.unflatten(treedef, list(map(_finish, params_bar, leaves))),
        {kind: _finish(pools_bar[kind], pool) for kind, pool in pools.items()},
        *(np.zeros(each.shape, jax.dtypes.float0) for each in plan),
    )


differentiable_execute.defvjp(_forward, _backward)


def _backward_body(
    shape: ProgramShape,
    loop: Loop,
    leaves: list[Array],
    treedef: Any,
    pools: Arenas,
    arenas: Arenas,
    stream: Array,
) -> Callable[[Any, Any], Any]:
    node_type = shape.types.types[loop.type_id]
    width = loop.width
    length = record_length(node_type, loop)
    used = _used_parameters(node_type, shape, treedef, len(leaves))

    def body(_: Any, carry: Any) -> Any:
        at, params_bar, pools_bar, arenas_bar = carry
        at = at - length
        chunk = Chunk(node_type, loop, lax.dynamic_slice(stream, (at,), (length,)))
        operands, externals, masks = read_inputs(chunk, arenas, pools)
        operands = _repeat_last(chunk, operands)

        def cell(
            some: list[Array], operands: list[Array], externals: list[Array]
        ) -> list[Array]:
            everything = list(leaves)
            for k, leaf in zip(used, some, strict=True):
                everything[k] = leaf
            params = jax.tree.unflatten(treedef, everything)
            return run_cell(node_type, width, params, operands, externals, masks)

        outputs, pull = jax.vjp(cell, [leaves[k] for k in used], operands, externals)
        outputs_bar = [
            _read_cotangent(arenas_bar, kind, row, output, chunk)
            for kind, row, output in zip(
                node_type.output_kinds, chunk.output_rows, outputs, strict=True
            )
        ]
        bars = pull(outputs_bar)
        some_bar, operands_bar, externals_bar = _fence_floats(
            bars, chunk.output_rows[0]
        )
        params_bar = list(params_bar)
        for k, bar in zip(used, some_bar, strict=True):
            params_bar[k] = params_bar[k] + bar
        template = node_type.template
        arenas_bar = _add_groups(
            arenas_bar,
            node_type.operand_kinds,
            template.operands,
            chunk.operands,
            operands_bar,
        )
        pools_bar = _add_groups(
            pools_bar,
            node_type.external_kinds,
            template.externals,
            chunk.externals,
            externals_bar,
        )
        return at, params_bar, pools_bar, arenas_bar

    return body


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


def _used_parameters(
    node_type: NodeType, shape: ProgramShape, treedef: Any, count: int
) -> list[int]:
    """Lists the floating parameter arrays that a type's cell reads, by position."""
    types = shape.types
    specs = jax.tree.leaves(types.params_spec)

    inputs = input_specs(
        node_type.template,
        node_type.operand_kinds,
        node_type.external_kinds,
        types.avals,
        lanes=(1,),
    )

    def cell(leaves: list[Array], *inputs: Any) -> list[Array]:
        return run_cell(node_type, 1, jax.tree.unflatten(treedef, leaves), *inputs)

    jaxpr = jax.make_jaxpr(cell)(specs, *inputs).jaxpr
    read = {id(v) for eqn in jaxpr.eqns for v in eqn.invars}
    read |= {id(v) for v in jaxpr.outvars}
    return [
        k
        for k in range(count)
        if id(jaxpr.invars[k]) in read and jnp.issubdtype(specs[k].dtype, jnp.floating)
    ]


def _stream_length(shape: ProgramShape, trips: Array, num_steps: Array) -> Array:
    types = shape.types.types
    lengths = np.array(
        [record_length(types[loop.type_id], loop) for loop in shape.loops], np.int32
    )
    live = jnp.arange(trips.shape[0]) < num_steps
    return jnp.sum(jnp.where(live[:, None], trips, 0) * lengths[None], dtype=jnp.int32)


def _is_float(array: Any) -> bool:
    return array is not None and jnp.issubdtype(array.dtype, jnp.inexact)


def _zero(array: Array) -> Array:
    """A cotangent of zero; a placeholder for what has no cotangent."""
    return jnp.zeros_like(array) if _is_float(array) else jnp.zeros((), jnp.float32)


def _finish(bar: Array, primal: Array) -> Any:
    return bar if _is_float(primal) else np.zeros(primal.shape, jax.dtypes.float0)
