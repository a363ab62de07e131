"""Runs a sharded plan: the same program on every device of a mesh.

Each device runs its own plan and gathers its own results; then every device gets the
results of all others, in the order of the user's instances. JAX differentiates this: a
parameter is the same on all devices, so its cotangent is the sum of the devices'
cotangents; for a large table, this sum is computed as rows (`row_sums`).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec as P

from edbatch.gradient.asked_tables import Probes
from edbatch.gradient.tables import Table, find_tables, new_probes
from edbatch.plan.plan import Plan
from edbatch.plan.run import compute_results_and_lookups
from edbatch.plan.table_run import assembled_zeros
from edbatch.sharding.collectives import attach, buckets, detach, gather
from edbatch.sharding.plan import ShardedPlan
from edbatch.sharding.row_sums import run_with_row_sums, summed_as_rows


def run_sharded(params: Any, plan: ShardedPlan, rng: Any = None) -> Any:
    """Runs a sharded plan and collects the model's output for each instance.

    Args:
        params: The model's parameters, of the shapes that it was recorded with.
        plan: The plan.
        rng: The key that the keys of nodes are derived from, if any; the same on every
            device.

    Returns:
        The model's pytree with a leading axis over instances, in the user's order, the
        same on every device.

    Raises:
        EdbatchError: As for `run_plan`.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> batched = eb.batch(double, params=2.0)
        >>> import jax
        >>> import jax.numpy as jnp
        >>> plan = batched.sharded().plan([1.0, 5.0], pad_to=2)
        >>> jax.jit(run_sharded)(jnp.float32(2), plan).tolist()
        [2.0, 10.0]
    """
    tables = summed_as_rows(params, plan)
    if not tables:
        return run_sharded_and_look_up(params, plan, rng)[0]
    return run_with_row_sums(_jitted_run, tables, params, plan, rng)


def run_sharded_and_look_up(
    params: Any,
    plan: ShardedPlan,
    rng: Any = None,
    tables: tuple[Table, ...] = (),
    probes: Probes = (),
) -> tuple[Any, Probes]:
    """Like `run_sharded`, but also returns which rows of tables were looked up.

    Args:
        params: The model's parameters.
        plan: The plan.
        rng: As for `run_sharded`.
        tables: Tables whose gradient is wanted as rows and values.
        probes: Their probes, ``[D, S, ...]``; see `edbatch.gradient.tables`.

    Returns:
        The results, and the row numbers looked up, ``[D, S] int32`` for each table.

    Raises:
        EdbatchError: As for `run_plan`.
    """
    shape = plan.shape
    leaves, structure = jax.tree.flatten(params)
    looked_up_leaves = {table.leaf for table in tables}
    shared = tuple(
        bucket for bucket in buckets(leaves) if looked_up_leaves.isdisjoint(bucket)
    )

    def run_shard(
        leaves: list[Any],
        zeros: tuple[Array, ...],
        rng: Any,
        shards: Plan,
        rows: tuple[Array, ...],
        lengths: tuple[Array, ...],
        probes: Probes,
    ) -> tuple[Any, Probes]:
        for own_zeros, bucket in zip(zeros, shared, strict=True):
            leaves = attach(leaves, own_zeros, bucket)
        params = jax.tree.unflatten(structure, leaves)
        own, probes = jax.tree.map(lambda each: each[0], (shards, probes))
        found, looked_up = compute_results_and_lookups(params, own, rng, tables, probes)
        stacks = gather(found, shape.axis)
        results = shape.result.assemble(tuple(map(_take, stacks, rows)), lengths)
        return results, tuple(each[None] for each in looked_up)

    zeros = tuple(detach(leaves, bucket) for bucket in shared)
    # The program's loops carry values that are the same on all devices at first (an
    # empty arena) and differ later, which the check of varying axes does not accept.
    found: tuple[Any, Probes] = jax.shard_map(
        run_shard,
        mesh=shape.mesh,
        in_specs=(P(), P(), P(), P(shape.axis), P(), P(), P(shape.axis)),
        out_specs=(P(), P(shape.axis)),
        check_vma=False,
    )(leaves, zeros, rng, plan.shards, plan.rows, plan.lengths, probes)
    return found


# Outside of jit, JAX does not support shard_map of functions with symbolic zeros.
_jitted_run = jax.jit(run_sharded_and_look_up, static_argnums=3)


class ShardedTableRun(NamedTuple):
    """The run of a sharded plan, as a `TableRun` of `edbatch.gradient.asked_tables`.

    Attributes:
        plan: The plan.
        rng: As for `run_sharded`.
    """

    plan: ShardedPlan
    rng: Any

    def tables(self, leaves: Sequence[int]) -> tuple[Table, ...]:
        """Finds the lookups in some leaves of the parameters."""
        return find_tables(self.plan.shards.shape.program, leaves)

    def new_probes(self, tables: tuple[Table, ...], params: Any) -> Probes:
        """Returns zeros, one row per lookup of each device, for each table."""
        own = new_probes(self.plan.shards.shape.program, tables, params)
        count = self.plan.shape.count
        return tuple(jnp.zeros((count, *each.shape), each.dtype) for each in own)

    def results(self) -> Any:
        """Returns zeros of the same shapes as the results of `run`."""
        plan, types = self.plan, self.plan.shards.shape.program.types
        return assembled_zeros(plan.shape.result, types, plan.rows, plan.lengths)

    def run(
        self, params: Any, tables: tuple[Table, ...], probes: Probes
    ) -> tuple[Any, Probes]:
        """Returns the model's results, and the numbers of the rows looked up."""
        found: tuple[Any, Probes]
        found = _jitted_run(params, self.plan, self.rng, tables, probes)
        return found


def _take(stack: Array, rows: Array) -> Array:
    """Reads rows of a stack, numbered from 1; zeros where there is no such row."""
    return stack.at[rows - 1].get(
        mode="fill", fill_value=0, wrap_negative_indices=False
    )
