"""Running a sharded plan: the same program on every device of a mesh.

Each device runs its own plan and gathers its own results; then every device gets those
of all others, in the order of the user's instances. JAX differentiates this: a
parameter is the same on all devices, so its cotangent is the sum of theirs.
"""

from typing import Any

import jax
from jax import Array, lax
from jax.sharding import PartitionSpec as P

from edbatch.plan.plan import Plan
from edbatch.plan.run import compute_results
from edbatch.sharding.plan import ShardedPlan


def run_sharded(params: Any, plan: ShardedPlan, rng: Any = None) -> Any:
    """Runs a sharded plan and collects what the model returned for each instance.

    Args:
        params: The model's parameters, of the shapes that it was recorded with.
        plan: The plan.
        rng: The key that the keys of nodes are derived from, if any; on every device
            the same.

    Returns:
        The model's pytree with a leading axis over instances, in the user's order, the
        same on every device.

    Raises:
        EdbatchError: As `run_plan`.
    """
    shape = plan.shape

    def run_shard(
        params: Any,
        rng: Any,
        shards: Plan,
        rows: tuple[Array, ...],
        lengths: tuple[Array, ...],
    ) -> Any:
        own = jax.tree.map(lambda each: each[0], shards)
        found = compute_results(params, own, rng)
        stacks = lax.all_gather(found, shape.axis, tiled=True)
        return shape.result.assemble(tuple(map(_take, stacks, rows)), lengths)

    # The program's loops carry what is alike on all devices at first (an empty arena)
    # and differs later, which the check of varying axes does not take.
    return jax.shard_map(
        run_shard,
        mesh=shape.mesh,
        in_specs=(P(), P(), P(shape.axis), P(), P()),
        out_specs=P(),
        check_vma=False,
    )(params, rng, plan.shards, plan.rows, plan.lengths)


def _take(stack: Array, rows: Array) -> Array:
    """Reads rows of a stack, counted from 1; zeros where there is none."""
    return stack.at[rows - 1].get(
        mode="fill", fill_value=0, wrap_negative_indices=False
    )
