"""Gradients of the program: the same loops, backwards.

The forward pass keeps the arenas. The backward pass walks the stream from its end. Each
chunk reads its inputs again, reads the cotangents of each output as one slice of a
cotangent arena, differentiates the cell on these rows (recomputing it) and adds the
operands' cotangents to the rows from which the operands were read. For the parameters
it writes tapes (see `edbatch.cell.weight_gradient`). One contraction over the tapes at
the end gives the cotangents of the packed parameters, from which JAX computes those of
the parameters.

A chunk's rows are differentiated together, but a row must contribute exactly what its
node contributes in the model of one instance. Padding rows must contribute nothing,
whatever values they read. Zero times a value or derivative that is not finite is not
zero, so the contributions of padding rows are masked, and not only their cotangents.

JAX distinguishes cotangents that are zero because nothing reads an output (symbolic
zeros) and does not propagate them. That matters where a derivative is infinite, as that
of a norm at zero. If cells have such derivatives, the program keeps a mask next to each
cotangent arena. It marks the rows that a cotangent has *reached*; all other rows are
treated as padding.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from edbatch.cell.backward import TapedCell
from edbatch.cell.program import Packed
from edbatch.cell.rows import keep_rows, slice_rows, write_rows, zero_unless
from edbatch.cell.stacks import Stacks
from edbatch.cell.summation import sum_dtype, zeros_for_sum
from edbatch.cell.tapes import Tapes
from edbatch.cell.wide_casts import packed_without_casts
from edbatch.errors import EdbatchError
from edbatch.executor.arenas import Arenas
from edbatch.executor.chunk import Chunk, fence, read_inputs
from edbatch.executor.loop_name import type_name
from edbatch.executor.loops import walk
from edbatch.executor.program import ProgramShape
from edbatch.executor.touched import Touched, chosen
from edbatch.gradient.activity import active_kinds, put, read_from, take
from edbatch.gradient.cotangents import (
    add_groups,
    as_cotangent,
    is_float,
    zero_cotangent,
)
from edbatch.gradient.forward import TapedRun, write_tapes
from edbatch.gradient.reached import (
    Group,
    Results,
    differentiate_groups,
    divide_outputs,
    first_reached,
    has_poles,
    mark_reached,
)
from edbatch.gradient.tables import Table, cotangents_of_tables, lookups_of_types
from edbatch.graph.cell_fault import is_of_user, without_derivative
from edbatch.graph.node_type import NodeType
from edbatch.stream.loop import Loop
from edbatch.stream.stream import Stream


def differentiate(
    program: ProgramShape,
    params: Any,
    pools: Arenas,
    stream: Stream,
    run: TapedRun,
    results: Results,
    active_pools: set[int],
    tables: Sequence[Table] = (),
) -> tuple[Any, dict[int, Array | None], tuple[Array, ...]]:
    """Finds the cotangents of parameters and external inputs.

    Args:
        program: The program.
        params: The model's parameters.
        pools: External inputs by array kind.
        stream: The stream.
        run: Arenas and tapes of the forward pass.
        results: Array kind, rows and cotangent of each result that has a cotangent.
        active_pools: Array kinds of the differentiated external inputs.
        tables: Tables whose cotangents are not summed.

    Returns:
        The cotangents of `params` and of `pools`, with None for integers and zeros for
        `tables`; then the cotangents of `tables`, listed as in `cotangents_of_tables`.
    """
    program = program.with_options(differentiated=True)
    prepared, unpack = _prepare(program, params)
    cells = {type_id: program.taped_cell(type_id) for type_id in prepared}
    active_values = active_kinds(program, cells, active_pools)
    results = [each for each in results if each[0] in active_values]
    start = _first_state(
        program, cells, prepared, pools, run, results, active_pools, active_values
    )
    transposed = {
        type_id: _transpose_weights(program, type_id, cell, prepared[type_id])
        for type_id, cell in cells.items()
    }

    def body_of(loop: Loop) -> Callable[[Chunk, _State], _State]:
        type_id = loop.type_id
        node_type, cell = program.types.types[type_id], cells[type_id]

        def pull_of(chunk: Chunk) -> _Pull:
            own = program.own(type_id, prepared[type_id], chunk.member)
            weights = transposed[type_id]
            if isinstance(weights, Stacks):
                assert chunk.member is not None, "chunks of a family name a member"
                weights = weights.take(chunk.member)
            return _pull_back(node_type, loop, cell, own, weights, start)

        stacked = program.stacked(type_id, cell.direct)
        return _body(node_type, loop, cell, stacked, pull_of, pools, run.arenas)

    _, end = walk(program, stream, body_of, start, end=run.end)
    prepared_bar = _collect_all(program, cells, prepared, run, end, tables)
    [params_bar] = unpack(prepared_bar)
    params_bar = jax.tree.map(
        lambda own, bar: bar if is_float(own) else None, params, params_bar
    )
    unmoved = {
        kind: jnp.zeros_like(pool) if is_float(pool) else None
        for kind, pool in pools.items()
        if kind not in end.pools_bar
    }
    tables_bar = cotangents_of_tables(tables, end.site_outputs, params)
    moved = {kind: bar.astype(pools[kind].dtype) for kind, bar in end.pools_bar.items()}
    return params_bar, moved | unmoved, tables_bar


def _prepare(
    program: ProgramShape, params: Any
) -> tuple[dict[int, Packed], Callable[[Any], tuple[Any]]]:
    """Packs the parameters; also returns the pullback from packed arrays to parameters.

    The pullback takes cotangents in the dtype in which they were summed. It does not
    round them if the packed array is a cast of a parameter.
    """
    prepared, unpack = jax.vjp(program.pack, params)
    like = prepared
    halves = [x for x in jax.tree.leaves(prepared) if sum_dtype(x.dtype) != x.dtype]
    if halves:
        like, unpack = jax.vjp(packed_without_casts(program.pack), params)

    def pull(bars: Any) -> tuple[Any]:
        def rounded(bar: Any, own: Array) -> Any:
            return bar if bar.dtype == jax.dtypes.float0 else bar.astype(own.dtype)

        found: tuple[Any] = unpack(jax.tree.map(rounded, bars, like))
        return found

    return prepared, pull


def _first_state(
    program: ProgramShape,
    cells: dict[int, TapedCell],
    prepared: dict[int, Packed],
    pools: Arenas,
    run: TapedRun,
    results: Results,
    active_pools: set[int],
    active_values: set[int],
) -> "_State":
    """The state before the first chunk: cotangents of results; all others are zero."""
    rows = dict(program.type_rows)
    state = _State(
        next_rows=run.next_rows,
        sums={
            type_id: [zeros_for_sum(prepared[type_id][k]) for k in cell.direct]
            for type_id, cell in cells.items()
        },
        site_inputs={
            type_id: cell.new_inputs(rows[type_id]) for type_id, cell in cells.items()
        },
        site_outputs=run.site_outputs,
        live_rows={
            type_id: _new_live_rows(program, type_id, cell, rows[type_id])
            for type_id, cell in cells.items()
        },
        pools_bar={
            kind: zeros_for_sum(pool)
            for kind, pool in pools.items()
            if kind in active_pools and is_float(pool)
        },
        arenas_bar=_first_cotangents(program, run.arenas, active_values, results),
        reached={},
    )
    if has_poles(program, cells):
        reached = first_reached(state.arenas_bar, results)
        return state._replace(reached=reached)
    return state


def _collect_all(
    program: ProgramShape,
    cells: dict[int, TapedCell],
    prepared: dict[int, Packed],
    run: TapedRun,
    end: "_State",
    tables: Sequence[Table],
) -> dict[int, Packed]:
    """The cotangents of packed arrays by type; lookups in `tables` contribute zero."""
    switches = program.options.target.control == "switch"
    lookups = lookups_of_types(tables)
    found = {}
    for type_id, cell in cells.items():
        used = None if switches else run.next_rows[type_id]
        left_out = tuple(each.site for each in lookups.get(type_id, ()))
        with jax.named_scope(f"{type_name(program.types.types[type_id])}[weights]"):
            found[type_id] = _collect(
                program, type_id, cell, prepared[type_id], end, used, left_out
            )
    return found


def _first_cotangents(
    program: ProgramShape, arenas: Arenas, active: set[int], results: Results
) -> Arenas:
    """The cotangents before the first chunk, for active values that are read."""
    types = [program.types.types[each.type_id] for each in program.loops]
    read = {kind for kind, _, _ in results}
    read.update(kind for each in types for kind in each.operand_kinds)
    bars = {kind: zeros_for_sum(arenas[kind]) for kind in sorted(read & active)}
    for kind, rows, bar in results:
        bars[kind] = (
            bars[kind]
            .at[rows]
            .add(
                bar.astype(bars[kind].dtype),
                mode="promise_in_bounds",
                wrap_negative_indices=False,
            )
        )
    return bars


class _State(NamedTuple):
    """State of the backward pass, which goes through the stream from its end.

    Attributes:
        next_rows: Number of tape rows that are still to be differentiated, by type.
        sums: Cotangents of packed arrays that are summed chunk by chunk, by type.
        site_inputs: Inputs of each site that depend on the batch row, by type.
        site_outputs: Outputs of each site; in finished rows, their cotangents.
        live_rows: Which rows of the tapes contribute, by type; for a family, the member
            whose parameters they read. None if no site needs to know.
        pools_bar: Cotangents of external inputs.
        arenas_bar: Cotangents of values; float32 for half-precision values, since many
            nodes may add to one.
        reached: Rows that a cotangent has reached, ``[rows] bool`` by array kind; empty
            if no derivative is infinite.
    """

    next_rows: dict[int, Array]
    sums: dict[int, list[Array]]
    site_inputs: dict[int, Tapes]
    site_outputs: dict[int, Tapes]
    live_rows: dict[int, Array | None]
    pools_bar: Arenas
    arenas_bar: Arenas
    reached: Arenas

    def part(self, touched: Touched) -> "_State":
        """Returns the entries that some loops touch."""
        types = touched.types
        return _State(
            next_rows=chosen(self.next_rows, types),
            sums=chosen(self.sums, types),
            site_inputs=chosen(self.site_inputs, types),
            site_outputs=chosen(self.site_outputs, types),
            live_rows=chosen(self.live_rows, types),
            pools_bar=chosen(self.pools_bar, touched.externals),
            arenas_bar=chosen(self.arenas_bar, touched.values),
            reached=chosen(self.reached, touched.values),
        )


_Pull = Callable[[Group, Any, Any], tuple[Any, Tapes]]


def _pull_back(
    node_type: NodeType,
    loop: Loop,
    cell: TapedCell,
    packed: Packed,
    transposed: list[Array | None],
    start: _State,
) -> _Pull:
    """Returns a function that differentiates a group of a chunk's outputs.

    Its arguments are the group, the chunk's inputs and the outputs of sites. It returns
    the cotangents of directly read arrays, operands, external inputs and outputs of
    sites, and then the inputs of sites.
    """
    template = node_type.template
    operands = read_from(node_type.operand_kinds, template.operands, start.arenas_bar)
    externals = read_from(node_type.external_kinds, template.externals, start.pools_bar)
    call = cell.called(_pull_rows)

    def pull_back(group: Group, inputs: Any, known_outputs: Any) -> tuple[Any, Tapes]:
        what = _Pulled(loop.width, group.outputs, tuple(operands), tuple(externals))
        arrays = group.live, group.bars, inputs, known_outputs
        own = node_type.key.cell, node_type.cell.function
        found: tuple[Any, Tapes]
        try:
            found = call(what, packed, transposed, *arrays)
        except (EdbatchError, FloatingPointError):  # the latter: jax_debug_nans
            raise
        except Exception as error:
            is_refused = isinstance(error, ValueError | TypeError | NotImplementedError)
            if not (is_refused or is_of_user(error)):
                raise
            raise without_derivative(*own, error) from error
        return found

    return pull_back


class _Pulled(NamedTuple):
    """Static arguments of one VJP.

    Attributes:
        width: Number of rows.
        outputs: Positions of the outputs.
        operands: Which operands are differentiated.
        externals: Which external inputs are differentiated.
    """

    width: int
    outputs: tuple[int, ...]
    operands: tuple[bool, ...]
    externals: tuple[bool, ...]


def _pull_rows(
    cell: TapedCell,
    what: _Pulled,
    packed: Packed,
    transposed: list[Array | None],
    live: Array,
    bars: list[Array],
    inputs: Any,
    known_outputs: Any,
) -> tuple[Any, Tapes]:
    """Differentiates some outputs of a chunk; see `_pull_back`."""
    width = what.width
    direct_axes = [0 if each else None for each in cell.by_row]
    axes = (0, direct_axes, 0, 0, None, None, 0)
    recompute = jax.vmap(cell.recompute, in_axes=axes, axis_size=width)
    operands, externals, masks = inputs

    def run(direct: Any, some: Any, others: Any, deltas: Any) -> Any:
        own = (put(some, operands), put(others, externals), masks)
        outputs, site_inputs = recompute(
            live, direct, own, deltas, packed, transposed, known_outputs
        )
        return [outputs[k] for k in what.outputs], site_inputs

    zeros = jax.tree.map(jnp.zeros_like, known_outputs)
    direct = [
        jnp.broadcast_to(packed[k], (width, *packed[k].shape)) if by_row else packed[k]
        for k, by_row in zip(cell.direct, cell.by_row, strict=True)
    ]
    some = take(operands, what.operands), take(externals, what.externals)
    _, pull, site_inputs = jax.vjp(run, direct, *some, zeros, has_aux=True)
    direct_bar, *more = pull(zero_unless(live, bars))
    direct_bar = [
        bar.sum(0, dtype=sum_dtype(bar.dtype)) if by_row else bar
        for bar, by_row in zip(direct_bar, cell.by_row, strict=True)
    ]
    return (direct_bar, *zero_unless(live, more)), zero_unless(live, site_inputs)


def _body(
    node_type: NodeType,
    loop: Loop,
    cell: TapedCell,
    stacked: list[bool],
    pull_of: Callable[[Chunk], _Pull],
    pools: Arenas,
    arenas: Arenas,
) -> Callable[[Chunk, _State], _State]:
    """Returns a loop's body, which adds cotangents of a chunk's inputs to a state."""
    type_id, width, template = loop.type_id, loop.width, node_type.template

    def body(chunk: Chunk, state: _State) -> _State:
        row = state.next_rows[type_id] - width
        inputs = read_inputs(chunk, arenas, pools, repeat=True)
        known_outputs = jax.tree.map(
            lambda tape: slice_rows(tape, row, width), state.site_outputs[type_id]
        )
        known_outputs = keep_rows(chunk.is_real(1), chunk.size - 1, known_outputs)
        groups = divide_outputs(cell, chunk, arenas, state.arenas_bar, state.reached)
        pull_back = pull_of(chunk)
        if state.reached:
            bars, site_inputs, live = differentiate_groups(
                pull_back, cell, groups, inputs, known_outputs
            )
        else:
            bars, site_inputs = pull_back(groups[0], inputs, known_outputs)
            live = groups[0].live
        (direct_bar, operands_bar, externals_bar, site_outputs_bar), site_inputs = (
            fence((bars, site_inputs), chunk.output_rows[0], chunk.target)
        )
        sums = Stacks(state.sums[type_id], stacked).add(chunk.member, direct_bar)
        site_inputs = write_tapes(state.site_inputs[type_id], row, site_inputs)
        site_outputs = write_tapes(state.site_outputs[type_id], row, site_outputs_bar)
        live_rows = state.live_rows[type_id]
        if node_type.family is not None and chunk.member is not None:
            live = jnp.where(live, chunk.member, node_type.family.size)
        live_rows = None if live_rows is None else write_rows(live_rows, row, live)
        return _State(
            next_rows=state.next_rows | {type_id: row},
            sums=state.sums | {type_id: sums},
            site_inputs=state.site_inputs | {type_id: site_inputs},
            site_outputs=state.site_outputs | {type_id: site_outputs},
            live_rows=state.live_rows | {type_id: live_rows},
            arenas_bar=add_groups(
                state.arenas_bar,
                node_type.operand_kinds,
                template.operands,
                chunk.operands,
                operands_bar,
            ),
            pools_bar=add_groups(
                state.pools_bar,
                node_type.external_kinds,
                template.externals,
                chunk.externals,
                externals_bar,
            ),
            reached=mark_reached(cell, chunk, state.reached),
        )

    return body


def _contract(
    cell: TapedCell,
    left_out: tuple[int, ...],
    packed: Packed,
    site_inputs: Tapes,
    site_outputs_bar: Tapes,
    live_rows: Array | None,
    used: Array | None,
) -> dict[int, Array]:
    tapes = site_inputs, site_outputs_bar
    return cell.contract(packed, *tapes, live_rows, used, left_out)


def _new_live_rows(
    program: ProgramShape, type_id: int, cell: TapedCell, rows: int
) -> Array | None:
    """The tape of the rows of a type that contribute; initially none do."""
    family = program.types.types[type_id].family
    if family is not None:
        return cell.new_owners(rows, family.size)
    return cell.new_mask(rows)


def _transpose_weights(
    program: ProgramShape, type_id: int, cell: TapedCell, packed: Packed
) -> list[Array | None] | Stacks:
    """The transposed weights of a type; of all members for a family."""
    members = program.members(type_id)
    if members is not None:
        return members.map(cell.transpose_weights, packed)
    return cell.transpose_weights(packed)


def _collect(
    program: ProgramShape,
    type_id: int,
    cell: TapedCell,
    packed: Packed,
    end: _State,
    used: Array | None,
    left_out: tuple[int, ...],
) -> Packed:
    """Returns the cotangents of packed arrays, from tapes and sums."""
    tapes = end.site_inputs[type_id], end.site_outputs[type_id]
    live_rows = end.live_rows[type_id]
    members = program.members(type_id)
    if members is not None:
        assert live_rows is not None, "rows of a family have owners"
        own = Stacks(list(packed), list(members.stacked))
        family = program.types.types[type_id].family
        assert family is not None, "its parameters are a member's"
        taped = cell.contract_members(own, *tapes, live_rows, family.size)
    else:
        taped = cell.called(_contract)(left_out, packed, *tapes, live_rows, used)
    found = [
        taped[k] if k in taped else as_cotangent(zero_cotangent(each), each)
        for k, each in enumerate(packed)
    ]
    for k, bar in zip(cell.direct, end.sums[type_id], strict=True):
        found[k] = found[k].astype(bar.dtype) + bar
    return tuple(found)
