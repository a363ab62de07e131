"""Runs a program as a JAX function with a custom derivative rule."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_derivatives import SymbolicZero

from edbatch.cell.program import Packed
from edbatch.cell.rows import take_rows
from edbatch.cell.type_call import trace_settings
from edbatch.errors import PlanError
from edbatch.executor.arenas import Arenas, new_arenas
from edbatch.executor.choice import executor_of
from edbatch.executor.program import ProgramShape
from edbatch.gradient.backward import differentiate
from edbatch.gradient.forward import TapedRun, run_with_tapes
from edbatch.gradient.stored import StoredRun, differentiate_stored, run_stored
from edbatch.gradient.tables import Table, lookups_of_types, rows_of_tables
from edbatch.graph.type_table import TypeTable
from edbatch.stream.stream import Stream


class Wanted(NamedTuple):
    """Static outputs of a run: result kinds and sparse tables.

    Attributes:
        kinds: Array kind of each result.
        tables: Tables whose gradient is wanted as rows and values.
    """

    kinds: tuple[int, ...]
    tables: tuple[Table, ...] = ()


Results = tuple[tuple[Array, ...], tuple[Array, ...]]
Taped = TapedRun | StoredRun


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def differentiable_execute(
    program: ProgramShape,
    wanted: Wanted,
    params: Any,
    pools: Arenas,
    stream: Stream,
    rows: tuple[Array, ...],
    probes: tuple[Array, ...] = (),
) -> Results:
    """Runs a minibatch and reads its results; differentiable.

    It is differentiable with respect to parameters, floating-point external inputs and
    probes. The parameters' gradient is zero in the wanted tables.

    Args:
        program: The program.
        wanted: The wanted results and tables.
        params: The model's parameters.
        pools: External inputs by array kind.
        stream: The stream.
        rows: Rows of each result, ``[n] int32``.
        probes: Zeros, from `edbatch.gradient.tables.new_probes`.

    Returns:
        The results, ``[n, ...]`` each. They are read here and not by the caller, so
        that the rule knows which of them have no cotangent. Then the row indices looked
        up in each table, ``[S] int32``; the gradient with respect to its probe holds
        the cotangents of the rows read, in the same order.
    """
    run = _taped if wanted.tables else _untaped
    found = _called(run, program)(program, wanted, params, pools, stream, rows)
    results: Results = found[:2]
    return results


def _called(function: Callable[..., Any], program: ProgramShape) -> Any:
    """A jitted function whose calls for one program are traced and lowered once.

    It is cached with the types, so that JAX's caches for it are freed with them.
    """

    def make() -> Any:
        def call(program: ProgramShape, wanted: Wanted, *rest: Any) -> Any:
            return function(program, wanted, *rest)

        return jax.jit(call, static_argnums=(0, 1))

    return program.types.derived((_called, function, trace_settings()), make)


def _untaped(program: ProgramShape, wanted: Wanted, *inputs: Any) -> Results:
    return run_stored(_execute, program, wanted, *inputs)


def _execute(
    program: ProgramShape,
    wanted: Wanted,
    params: Any,
    pools: Arenas,
    stream: Stream,
    rows: tuple[Array, ...],
) -> Results:
    prepared = program.pack(params)
    return _execute_packed(program, wanted, prepared, pools, stream, rows)


def execute_packed(
    program: ProgramShape,
    kinds: tuple[int, ...],
    packed: dict[int, Packed],
    pools: Arenas,
    stream: Stream,
    rows: tuple[Array, ...],
) -> tuple[Array, ...]:
    """As `differentiable_execute`, with packed parameters and without a gradient.

    Args:
        program: The program.
        kinds: Array kind of each result.
        packed: The packed parameters, from `ProgramShape.pack`.
        pools: External inputs by array kind.
        stream: The stream.
        rows: Rows of each result, ``[n] int32``.

    Returns:
        The results, ``[n, ...]`` each.
    """
    inputs = packed, pools, stream, rows
    results: tuple[Array, ...]
    results, _ = run_stored(_execute_packed, program, Wanted(kinds), *inputs)
    return results


def _execute_packed(
    program: ProgramShape,
    wanted: Wanted,
    packed: dict[int, Packed],
    pools: Arenas,
    stream: Stream,
    rows: tuple[Array, ...],
) -> Results:
    executor = executor_of(program.options.target)
    arenas = executor.run(program, packed, new_arenas(program), pools, stream)
    return _read_results(wanted.kinds, arenas, rows), ()


def _read_results(
    kinds: tuple[int, ...], arenas: Arenas, rows: tuple[Array, ...]
) -> tuple[Array, ...]:
    return tuple(
        take_rows(arenas[kind], own) for kind, own in zip(kinds, rows, strict=True)
    )


class _Residuals(NamedTuple):
    """Residuals of the forward pass.

    Attributes:
        params: The model's parameters.
        pools: External inputs.
        stream: The stream.
        rows: Rows of each result.
        probes: Probes of tables.
        run: Values and tapes.
        active: By array kind of external inputs: () if they are differentiated,
            otherwise None. It is part of the pytree structure and holds no arrays.
    """

    params: Any
    pools: Arenas
    stream: Stream
    rows: tuple[Array, ...]
    probes: tuple[Array, ...]
    run: Taped
    active: dict[int, Any]


def execute_with_tapes(
    program: ProgramShape, wanted: Wanted, *inputs: Any
) -> tuple[tuple[Array, ...], tuple[Array, ...], Taped]:
    """Runs the forward pass of a gradient.

    Args:
        program: The program.
        wanted: As for `differentiable_execute`.
        *inputs: Parameters, external inputs, the stream and the rows of results, as for
            `differentiable_execute`.

    Returns:
        The results of `differentiable_execute`, and the residuals for the backward
        pass.

    Raises:
        PlanError: The plan overwrites values.
    """
    if program.options.reuses_rows:
        raise PlanError(
            "a gradient needs the values that a plan with reuse='always' overwrites;"
            " plan with eb.Planner(reuse='never') for training"
        )
    found: tuple[tuple[Array, ...], tuple[Array, ...], Taped]
    found = _called(_taped, program)(program, wanted, *inputs)
    return found


def _forward(
    program: ProgramShape, wanted: Wanted, *arguments: Any
) -> tuple[Results, _Residuals]:
    arrays = jax.tree.map(lambda each: each.value, arguments)
    params, pools, stream, rows, probes = arrays
    inputs = params, pools, stream, rows
    found, looked_up, taped = execute_with_tapes(program, wanted, *inputs)
    active = _active(arguments[1])
    return (found, looked_up), _Residuals(*inputs, probes, taped, active)


def _active(pools: dict[int, Any]) -> dict[int, Any]:
    """By array kind: () if these external inputs are differentiated, otherwise None."""
    return {kind: () if each.perturbed else None for kind, each in pools.items()}


def _taped(program: ProgramShape, wanted: Wanted, *inputs: Any) -> Any:
    return run_stored(_run_with_tapes, program, wanted, *inputs, with_tapes=True)


def _run_with_tapes(
    program: ProgramShape,
    wanted: Wanted,
    params: Any,
    pools: Arenas,
    stream: Stream,
    rows: tuple[Array, ...],
) -> tuple[tuple[Array, ...], tuple[Array, ...], TapedRun]:
    program = program.with_options(differentiated=True)
    prepared = program.pack(params)
    cells = {type_id: program.taped_cell(type_id) for type_id in prepared}
    arenas, lookups = new_arenas(program), lookups_of_types(wanted.tables)
    run = run_with_tapes(program, prepared, cells, arenas, pools, stream, lookups)
    looked_up = rows_of_tables(wanted.tables, run.looked_up)
    return _read_results(wanted.kinds, run.arenas, rows), looked_up, run


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _differentiate_once(
    program: ProgramShape,
    wanted: Wanted,
    residuals: _Residuals,
    cotangents: list[Array | None],
) -> Any:
    """Returns the cotangents of parameters, pools and probes; None for integers."""
    run = _called(_pulled_back, program)
    return run(program, wanted, residuals, cotangents)


def _pulled_back(
    program: ProgramShape,
    wanted: Wanted,
    residuals: _Residuals,
    cotangents: list[Array | None],
) -> Any:
    functions = _differentiate, _run_with_tapes
    return differentiate_stored(*functions, program, wanted, residuals, cotangents)


def _differentiate(
    program: ProgramShape,
    wanted: Wanted,
    residuals: _Residuals,
    cotangents: list[Array | None],
) -> Any:
    params, pools, stream, rows, _, run, active = residuals
    assert isinstance(run, TapedRun), "arrays of a stored run are put back before"
    results = [
        (kind, own, bar)
        for kind, own, bar in zip(wanted.kinds, rows, cotangents, strict=True)
        if bar is not None
    ]
    by = {kind for kind, mark in active.items() if mark is not None}
    return differentiate(
        program, params, pools, stream, run, results, by, wanted.tables
    )


@_differentiate_once.defjvp
def _differentiate_twice(
    program: ProgramShape, wanted: Wanted, primals: Any, tangents: Any
) -> Any:
    raise PlanError(
        "a batched function has first derivatives only, by jax.grad, jax.value_and_grad"
        " or jax.vjp, but this asks for the derivative of its gradient; where only the"
        " gradient's value is meant (first-order MAML), take it at"
        " jax.lax.stop_gradient(params); for a Hessian, differentiate the model itself,"
        " instance by instance"
    )


def _backward(
    program: ProgramShape,
    wanted: Wanted,
    residuals: _Residuals,
    cotangents: Any,
) -> Any:
    known = [None if isinstance(bar, SymbolicZero) else bar for bar in cotangents[0]]
    *bars, probes_bar = _differentiate_once(program, wanted, residuals, known)

    def restore(primal: Array, bar: Array | None) -> Any:
        return np.zeros(primal.shape, jax.dtypes.float0) if bar is None else bar

    primals = residuals.params, residuals.pools
    integers = residuals.stream, residuals.rows
    return (
        *jax.tree.map(restore, primals, tuple(bars)),
        *jax.tree.map(lambda each: restore(each, None), integers),
        probes_bar,
    )


differentiable_execute.defvjp(_forward, _backward, symbolic_zeros=True)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def execute_from_residuals(
    program: ProgramShape,
    wanted: Wanted,
    taped: Taped,
    params: Any,
    pools: Arenas,
    stream: Stream,
    rows: tuple[Array, ...],
) -> tuple[Array, ...]:
    """Computes nothing, but has the derivatives of `differentiable_execute`.

    Args:
        program: The program.
        wanted: As for `differentiable_execute`, without tables.
        taped: The residuals of an earlier forward pass, from `execute_with_tapes`.
        params: The parameters of that pass; differentiable.
        pools: Its external inputs; floating-point ones are differentiable.
        stream: Its stream.
        rows: The rows of its results.

    Returns:
        Zeros in place of the results.
    """
    return zero_results(program.types, wanted.kinds, rows)


def zero_results(
    types: TypeTable, kinds: Sequence[int], rows: Sequence[Array]
) -> tuple[Array, ...]:
    """Returns zeros in the shapes of the results.

    Args:
        types: The model's types.
        kinds: Array kind of each result.
        rows: Rows of each result, ``[n] int32``.

    Returns:
        Zeros, ``[n, ...]`` each.
    """
    avals = [types.avals[kind] for kind in kinds]
    return tuple(
        jnp.zeros((len(own), *aval.shape), aval.dtype)
        for own, aval in zip(rows, avals, strict=True)
    )


def _forward_from_residuals(
    program: ProgramShape, wanted: Wanted, *arguments: Any
) -> tuple[tuple[Array, ...], _Residuals]:
    arrays = jax.tree.map(lambda each: each.value, arguments)
    taped, params, pools, stream, rows = arrays
    active = _active(arguments[2])
    residuals = _Residuals(params, pools, stream, rows, (), taped, active)
    return execute_from_residuals(program, wanted, *arrays), residuals


def _backward_from_residuals(
    program: ProgramShape, wanted: Wanted, residuals: _Residuals, cotangents: Any
) -> Any:
    *bars, _ = _backward(program, wanted, residuals, (cotangents,))
    return None, *bars


execute_from_residuals.defvjp(
    _forward_from_residuals, _backward_from_residuals, symbolic_zeros=True
)
