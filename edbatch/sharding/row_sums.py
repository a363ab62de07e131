"""Gradients of large tables, summed over devices as rows and not as whole arrays.

A minibatch looks up some rows of a table such as an embedding. Each device sends the
numbers and cotangents of its rows to all others, and each device adds them to its own
array of zeros: the data sent is as large as the rows looked up, not as large as the
table. The gradient is still dense. Horovod does the same with ``tf.IndexedSlices``
(``sparse_as_dense=False``).

Gain: a gradient of tree-lstm on two CPU devices was 1.53 and 1.34 times as fast as on
one at hidden 64 and 128; with whole arrays, 1.42 and 1.22 times (docs/results.md, "Two
CPU devices").

This uses the probes of `edbatch.gradient.tables`: the cotangent of a probe is the
cotangent of the rows looked up.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_derivatives import SymbolicZero
from jax.sharding import PartitionSpec as P

from edbatch.cell.summation import sum_dtype
from edbatch.gradient.asked_tables import Probes
from edbatch.gradient.tables import Table, lookup_count, new_probes, read_by_rows
from edbatch.sharding import collectives
from edbatch.sharding.plan import ShardedPlan

# Maps parameters, a plan, a key, tables and probes to results and the rows looked up.
Run = Callable[[Any, ShardedPlan, Any, tuple[Table, ...], Probes], tuple[Any, Probes]]

# Maximum ratio of the lookups of all devices to the rows of a table: rows are sent with
# their numbers, and every device adds up the rows of all devices.
_MOST_LOOKUPS = 0.5


def summed_as_rows(params: Any, plan: ShardedPlan) -> tuple[Table, ...]:
    """Finds the tables whose gradient is summed as rows.

    Args:
        params: The model's parameters.
        plan: The plan.

    Returns:
        Floating-point parameters of more than `collectives.MOST_BYTES` bytes that cells
        read only by whole rows, with lookups of at most half as many rows as the table
        has.
    """
    large = tuple(
        k
        for k, leaf in enumerate(jax.tree.leaves(params))
        if leaf.size * leaf.dtype.itemsize > collectives.MOST_BYTES
        and leaf.ndim > 1
        and jnp.issubdtype(leaf.dtype, jnp.floating)
    )
    if not large or plan.shape.count == 1:
        return ()
    program, leaves = plan.shards.shape.program, jax.tree.leaves(params)
    return tuple(
        table
        for table in read_by_rows(program, large)
        if plan.shape.count * lookup_count(program, table)
        <= _MOST_LOOKUPS * len(leaves[table.leaf])
    )


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def run_with_row_sums(
    run: Run, tables: tuple[Table, ...], params: Any, plan: ShardedPlan, rng: Any
) -> Any:
    """Runs a sharded plan; its gradient with respect to some tables is summed as rows.

    Args:
        run: Runs the plan; returns its results and which rows were looked up.
        tables: The tables, from `summed_as_rows`.
        params: The model's parameters.
        plan: The plan.
        rng: As for `edbatch.sharding.run_sharded`.

    Returns:
        The model's results.
    """
    return run(params, plan, rng, (), ())[0]


class _Residuals(NamedTuple):
    """Residuals of the forward pass.

    Attributes:
        arguments: Parameters, plan and key.
        pull: Maps cotangents of results to those of the leaves in `moved` and of
            probes.
        moved: Differentiated leaves of the arguments other than tables. The keys are
            their numbers, the values (), so that the numbers are part of the pytree
            structure.
        looked_up: For each differentiated table, by the number of its leaf, the numbers
            of the rows that were looked up, ``[D, S] int32``.
    """

    arguments: tuple[Any, ShardedPlan, Any]
    pull: Callable[[Any], tuple[list[Array], list[Array]]]
    moved: dict[int, tuple[()]]
    looked_up: dict[int, Array]


def _forward(
    run: Run, tables: tuple[Table, ...], *arguments: Any
) -> tuple[Any, _Residuals]:
    # Parameters come first, so a table's leaf has the same number in all arguments.
    marked, tree = jax.tree.flatten(arguments)
    values = [each.value for each in marked]
    differentiable = {k for k, each in enumerate(marked) if each.perturbed}
    own = tuple(table for table in tables if table.leaf in differentiable)
    moved = sorted(differentiable - {table.leaf for table in own})

    def call(changing: list[Array], probes: Probes) -> tuple[Any, Probes]:
        leaves = list(values)
        for k, each in zip(moved, changing, strict=True):
            leaves[k] = each
        params, plan, rng = jax.tree.unflatten(tree, leaves)
        return run(params, plan, rng, own, probes)

    params, plan, rng = jax.tree.unflatten(tree, values)
    program, count = plan.shards.shape.program, plan.shape.count
    probes = tuple(
        jnp.zeros((count, *each.shape), each.dtype)
        for each in new_probes(program, own, params)
    )
    results, pull, rows = jax.vjp(
        call, [values[k] for k in moved], probes, has_aux=True
    )
    looked_up = {table.leaf: each for table, each in zip(own, rows, strict=True)}
    return results, _Residuals(
        (params, plan, rng), pull, dict.fromkeys(moved, ()), looked_up
    )


def _backward(
    run: Run, tables: tuple[Table, ...], residuals: _Residuals, cotangents: Any
) -> tuple[Any, ...]:
    leaves, tree = jax.tree.flatten(residuals.arguments)
    bars, values = residuals.pull(jax.tree.map(_as_array, cotangents))
    found: list[Array | None] = [None] * len(leaves)
    for k, bar in zip(residuals.moved, bars, strict=True):
        found[k] = bar
    plan = residuals.arguments[1]
    own = residuals.looked_up.items()
    for (leaf, rows), each in zip(own, values, strict=True):
        found[leaf] = _add_up(plan, leaves[leaf].shape, rows, each)
    arguments: tuple[Any, ...] = jax.tree.unflatten(tree, found)
    return arguments


run_with_row_sums.defvjp(_forward, _backward, symbolic_zeros=True)


def _as_array(bar: Any) -> Any:
    """Returns a cotangent as an array, even if it is a symbolic zero."""
    if not isinstance(bar, SymbolicZero):
        return bar
    if bar.dtype == jax.dtypes.float0:
        return np.zeros(bar.shape, jax.dtypes.float0)
    return jnp.zeros(bar.shape, bar.dtype)


def _add_up(
    plan: ShardedPlan, shape: Sequence[int], rows: Array, values: Array
) -> Array:
    """Returns the sum of the rows of all devices, on every device.

    Args:
        plan: The plan, which has the mesh.
        shape: Shape of the table.
        rows: Row numbers, ``[D, S] int32``; one past the end where there is no row.
        values: Values of the rows, ``[D, S, ...]``.
    """
    axis = plan.shape.axis

    def add(rows: Array, values: Array) -> Array:
        (all_values,) = collectives.gather([values[0]], axis)
        all_rows = jax.lax.all_gather(rows[0], axis, tiled=True)
        zeros = jnp.zeros(shape, sum_dtype(values.dtype))
        all_values = all_values.astype(zeros.dtype)
        return zeros.at[all_rows].add(all_values, mode="drop").astype(values.dtype)

    found: Array = jax.shard_map(
        add,
        mesh=plan.shape.mesh,
        in_specs=(P(axis), P(axis)),
        out_specs=P(),
        check_vma=False,
    )(rows, values)
    return found
