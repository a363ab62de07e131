"""Gradients of large tables, added up over devices as rows and not as whole arrays.

A minibatch looks up some rows of a table such as an embedding. Each device sends the
numbers and cotangents of its rows to all others, and each adds them to zeros of its
own: what is sent is as large as what was looked up, and not as large as the table. The
gradient is dense as ever. Horovod does the same with ``tf.IndexedSlices``
(``sparse_as_dense=False``).

Gain: a gradient of tree-lstm on two CPU devices was 1.53 and 1.34 times as fast as on
one at hidden 64 and 128, with whole arrays 1.42 and 1.22 (docs/results.md, "Two CPU
devices").

It works by the probes of `edbatch.gradient.tables`: their cotangents are the values.
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

# Of parameters, a plan, a key, tables and probes; the results and the rows looked up.
Run = Callable[[Any, ShardedPlan, Any, tuple[Table, ...], Probes], tuple[Any, Probes]]

# All devices' lookups are at most this part of a table's rows: rows travel with their
# numbers, and every device adds up those of all.
_MOST_LOOKUPS = 0.5


def summed_as_rows(params: Any, plan: ShardedPlan) -> tuple[Table, ...]:
    """Finds the tables whose gradient is added up as rows.

    Args:
        params: The model's parameters.
        plan: The plan.

    Returns:
        Floating parameters of more than `collectives.MOST_BYTES` bytes that cells read
        by whole rows only, and fewer of them than half of what the table has.
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
    """Runs a sharded plan, whose gradient by some tables is added up as rows.

    Args:
        run: Runs it and tells which rows were looked up.
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
        pull: From cotangents of results to those of `moved` and of probes.
        moved: Which leaves of the arguments one differentiates by, beside tables; by
            number, () each, so that it is part of the structure.
        looked_up: For each table that one differentiates by, by number, the numbers of
            the rows that were looked up, ``[D, S] int32``.
    """

    arguments: tuple[Any, ShardedPlan, Any]
    pull: Callable[[Any], tuple[list[Array], list[Array]]]
    moved: dict[int, tuple[()]]
    looked_up: dict[int, Array]


def _forward(
    run: Run, tables: tuple[Table, ...], *arguments: Any
) -> tuple[Any, _Residuals]:
    # The parameters come first, so a table's leaf is the same one of all arguments.
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
    """A cotangent as an array where it is known to be zero."""
    if not isinstance(bar, SymbolicZero):
        return bar
    if bar.dtype == jax.dtypes.float0:
        return np.zeros(bar.shape, jax.dtypes.float0)
    return jnp.zeros(bar.shape, bar.dtype)


def _add_up(
    plan: ShardedPlan, shape: Sequence[int], rows: Array, values: Array
) -> Array:
    """The sum of rows of all devices, on each of them.

    Args:
        plan: The plan, which knows the devices.
        shape: The table's.
        rows: Numbers of rows, ``[D, S] int32``; one past the end where there is none.
        values: ``[D, S, ...]``.
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
