"""Running a plan: the pure JAX function behind ``batched.apply``."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array

from edbatch.cell.program import Packed
from edbatch.cell.rows import take_rows
from edbatch.executor.arenas import Arenas
from edbatch.executor.program import ProgramShape
from edbatch.gradient.differentiable import (
    Taped,
    Wanted,
    differentiable_execute,
    execute_from_residuals,
    execute_packed,
    execute_with_tapes,
)
from edbatch.gradient.reverse_mode import reverse_only
from edbatch.gradient.tables import Table
from edbatch.graph.output_tree import ResultShape
from edbatch.graph.parameter_structure import check_params
from edbatch.plan.keys import give_keys
from edbatch.plan.plan import Plan


def run_plan(params: Any, plan: Plan, rng: Any = None) -> Any:
    """Runs a plan and collects the model's output for each instance.

    Args:
        params: The model's parameters, of the shapes that it was recorded with.
        plan: The plan.
        rng: The key that the keys of nodes are derived from, if any.

    Returns:
        The model's pytree with a leading axis over instances.

    Raises:
        PlanError: The shapes of the parameters are not those that the model was
            recorded with, or a cell needs a key and there is none.
        CellError: `rng` is not a key.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> batched = eb.batch(double, params=2.0)
        >>> import jax.numpy as jnp
        >>> plan = batched.plan([1.0, 5.0], pad_to=2)
        >>> run_plan(jnp.float32(2), plan).tolist()
        [2.0, 10.0]
    """
    return plan.shape.result.assemble(compute_results(params, plan, rng), plan.lengths)


def run_packed(packed: dict[int, Packed], plan: Plan, rng: Any = None) -> Any:
    """As `run_plan`, but from packed parameters and without a gradient.

    Args:
        packed: The packed parameters, from `ProgramShape.pack`.
        plan: The plan.
        rng: As for `run_plan`.

    Returns:
        As `run_plan`.
    """
    program, pools = give_keys(plan.shape.program, plan.pools, rng)
    kinds, rows = _values_of(plan)
    found = execute_packed(program, kinds, packed, pools, plan.as_stream(), rows)
    return _assembled(plan, found)


def run_forward(params: Any, plan: Plan, rng: Any = None) -> tuple[Any, Taped]:
    """As `run_plan`, but also returns the residuals for `run_from_residuals`.

    Args:
        params: As for `run_plan`.
        plan: As for `run_plan`.
        rng: As for `run_plan`.

    Returns:
        The results, and the residuals that the backward pass reads.

    Raises:
        EdbatchError: As `run_plan`; or the plan overwrites values.
    """
    program, pools = _checked(params, plan, rng)
    kinds, rows = _values_of(plan)
    inputs = params, pools, plan.as_stream(), rows
    found, _, taped = execute_with_tapes(program, Wanted(kinds), *inputs)
    return _assembled(plan, found), taped


def run_from_residuals(taped: Taped, params: Any, plan: Plan, rng: Any = None) -> Any:
    """Returns placeholder results whose derivatives are those of `run_plan`.

    The derivatives are computed from the residuals.

    Args:
        taped: The residuals that `run_forward` returned.
        params: As for `run_forward`.
        plan: As for `run_forward`.
        rng: As for `run_forward`.

    Returns:
        The results of `run_forward`, but with zeros for all values that cells compute.
    """
    program, pools = _checked(params, plan, rng)
    kinds, rows = _values_of(plan)
    inputs = taped, params, pools, plan.as_stream(), rows
    return _assembled(plan, execute_from_residuals(program, Wanted(kinds), *inputs))


def compute_results(params: Any, plan: Plan, rng: Any = None) -> tuple[Array, ...]:
    """Runs a plan and gathers the leaves of its result.

    Args:
        params: The model's parameters.
        plan: The plan.
        rng: As for `run_plan`.

    Returns:
        One ``[n, ...]`` array per leaf of the model's output.

    Raises:
        EdbatchError: As `run_plan`.
    """
    return compute_results_and_lookups(params, plan, rng)[0]


def compute_results_and_lookups(
    params: Any,
    plan: Plan,
    rng: Any = None,
    tables: tuple[Table, ...] = (),
    probes: tuple[Array, ...] = (),
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """As `compute_results`, but also returns which rows of tables were looked up.

    Args:
        params: The model's parameters.
        plan: The plan.
        rng: As for `run_plan`.
        tables: Tables whose gradient is wanted as rows and values.
        probes: Their probes; see `edbatch.gradient.tables`.

    Returns:
        The results, and the row numbers looked up, ``[S] int32`` for each table.

    Raises:
        EdbatchError: As `run_plan`.
    """
    program, pools = _checked(params, plan, rng)
    params, pools, probes = reverse_only((params, pools, probes))
    kinds, rows = _values_of(plan)
    found, looked_up = differentiable_execute(
        program,
        Wanted(kinds, tables),
        params,
        pools,
        plan.as_stream(),
        rows,
        probes,
    )
    return _with_externals(plan, found), looked_up


def _checked(params: Any, plan: Plan, rng: Any) -> tuple[ProgramShape, Arenas]:
    """Checks the parameters of a run; returns its program and external inputs."""
    program = plan.shape.program
    check_params(params, program.types.params_spec)
    return give_keys(program, plan.pools, rng)


def _assembled(plan: Plan, found: tuple[Array, ...]) -> Any:
    return plan.shape.result.assemble(_with_externals(plan, found), plan.lengths)


def _values_of(plan: Plan) -> tuple[tuple[int, ...], tuple[Array, ...]]:
    """Returns the array kinds and rows of the results that cells compute."""
    leaves = zip(plan.shape.result.tree.leaves, plan.rows, strict=True)
    values = [(kind, own) for (source, kind), own in leaves if source == "value"]
    return tuple(kind for kind, _ in values), tuple(own for _, own in values)


def _with_externals(plan: Plan, found: tuple[Array, ...]) -> tuple[Array, ...]:
    """Returns all results: values computed by cells, and external inputs."""
    values = iter(found)
    leaves = zip(plan.shape.result.tree.leaves, plan.rows, strict=True)
    # The pools of a plan that a trace closes over are NumPy arrays.
    return tuple(
        next(values)
        if source == "value"
        else take_rows(jnp.asarray(plan.pools[kind]), own)
        for (source, kind), own in leaves
    )


def take_results(
    shape: ResultShape, rows: Sequence[Array], arenas: Arenas, pools: Arenas
) -> tuple[Array, ...]:
    """Gathers the leaves of a result on the device.

    Args:
        shape: The static part of the result.
        rows: Padded rows per leaf.
        arenas: Values by array kind.
        pools: External inputs by array kind.

    Returns:
        One ``[n, ...]`` array per leaf.
    """
    sources = {"value": arenas, "external": pools}
    return tuple(
        take_rows(sources[source][kind], own)
        for (source, kind), own in zip(shape.tree.leaves, rows, strict=True)
    )
