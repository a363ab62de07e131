"""Sharded plans: one minibatch as data for the devices of a mesh."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from edbatch.errors import PickleError
from edbatch.executor.program import Tier
from edbatch.graph.output_tree import ResultRows, ResultShape
from edbatch.plan.padding import instance_mask
from edbatch.plan.plan import Plan
from edbatch.sharding.report import ShardedReport
from edbatch.target import Option


@dataclass(frozen=True)
class ShardedShape:
    """The static part of a sharded plan, without that of its shards.

    Attributes:
        mesh: The devices.
        axis: The axis of the mesh over which minibatches are split.
        result: Structure of the whole minibatch's result.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> batched = eb.batch(double, params=2.0)
        >>> plan = batched.sharded().plan([1.0, 5.0])
        >>> plan.shape.count == plan.shape.mesh.size
        True
    """

    mesh: Mesh
    axis: str
    result: ResultShape

    def __repr__(self) -> str:
        """Summary in one line."""
        rows = self.result.instances
        return f"<ShardedShape: {self.count} devices, {rows} rows of results>"

    @property
    def count(self) -> int:
        """Number of shards, D."""
        return int(self.mesh.shape[self.axis])

    def here(self) -> set[int]:
        """Returns the numbers of the shards whose devices belong to this process."""
        sharding = NamedSharding(self.mesh, P(self.axis))
        indices = sharding.addressable_devices_indices_map((self.count,)).values()
        return {_shard_of(each) for each in indices}


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, eq=False)
class ShardedPlan:
    """A minibatch split over the ``D`` devices of a mesh. A pytree.

    Attributes:
        shape: The static part.
        shards: The plans of all devices, padded to one bucket; every array has a
            leading axis ``[D, ...]`` that is split over the devices.
        rows: Index of each output row in the all-gathered results, per leaf of the
            model's output; see `edbatch.sharding.order`.
        lengths: Lengths per list of the model's output.
        num_instances: Number of instances in the minibatch; the result has a row for
            each instance, and padding rows up to ``N``.
        report: The plan's costs; not part of the pytree, None after transformations.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> batched = eb.batch(double, params=2.0)
        >>> plan = batched.sharded().plan([1.0, 5.0, 3.0])
        >>> plan.instance_mask.tolist(), plan.report.batches
        ([True, True, True], 1)
    """

    shape: ShardedShape
    shards: Plan
    rows: tuple[Any, ...]
    lengths: tuple[Any, ...]
    num_instances: Any  # []
    report: ShardedReport | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        """Summary in one line."""
        rows = self.shape.result.instances
        return f"<ShardedPlan for {self.shape.count} devices: {rows} rows of results>"

    def in_tier(self, tier: Tier) -> "ShardedPlan":
        """Returns the plan for another tier of programs; see `Plan.in_tier`.

        Args:
            tier: "fine" for the fastest program, "coarse" for one that compiles fast.

        Returns:
            The plan.
        """
        shards = self.shards.in_tier(tier)
        return self if shards is self.shards else replace(self, shards=shards)

    @property
    def trace(self) -> int:
        """The number of the trace that the plan is in; see `Plan.trace`."""
        return self.shards.trace

    def in_trace(self, number: int) -> "ShardedPlan":
        """Returns the plan for another trace; see `Plan.in_trace`.

        Args:
            number: The number of the trace.

        Returns:
            The plan.
        """
        return replace(self, shards=self.shards.in_trace(number))

    def compiler_options(self) -> dict[str, Option]:
        """Returns the options of XLA for the program of its tier."""
        return self.shards.compiler_options()

    def tree_flatten(self) -> tuple[tuple[Any, ...], ShardedShape]:
        """Splits the plan into arrays and the static part."""
        return (self.shards, self.rows, self.lengths, self.num_instances), self.shape

    @property
    def instance_mask(self) -> Any:
        """True for instances, False for padding; ``[N] bool``; see `Plan`."""
        return instance_mask(self.shape.result.instances, self.num_instances)

    def tree_flatten_with_keys(self) -> tuple[tuple[Any, ...], ShardedShape]:
        """Like `tree_flatten`, with the names of the parts."""
        arrays, shape = self.tree_flatten()
        parts = ("shards", "rows", "lengths", "num_instances")
        names = map(jax.tree_util.GetAttrKey, parts)
        return tuple(zip(names, arrays, strict=True)), shape

    def static_sizes(self) -> dict[str, Any]:
        """Returns the sizes and options that a program is compiled for, by name.

        Shapes of arrays are not included.
        """
        return self.shards.static_sizes() | {
            "the number of instances": self.shape.result.instances,
            "the number of devices": self.shape.count,
        }

    def __copy__(self) -> "ShardedPlan":
        """Returns the plan itself, which does not change."""
        return self

    def __deepcopy__(self, memo: Any) -> "ShardedPlan":
        """Returns the plan itself, which does not change."""
        return self

    def __reduce__(self) -> NoReturn:
        """Raises `PickleError`: devices belong to one process."""
        raise PickleError(
            "a sharded plan lies on devices of its own process, so it cannot be"
            " pickled; pickle the recordings, and plan them in the other process"
        )

    @classmethod
    def tree_unflatten(
        cls, shape: ShardedShape, arrays: tuple[Any, ...]
    ) -> "ShardedPlan":
        """Builds a plan from its parts."""
        return cls(shape, *arrays)


def place(
    shape: ShardedShape,
    shards: Sequence[Plan],
    order: ResultRows,
    instances: int,
    report: ShardedReport,
) -> ShardedPlan:
    """Puts plans on the devices of a mesh that belong to this process.

    Args:
        shape: The mesh and the result.
        shards: D plans of one bucket, with arrays on the host.
        order: As returned by `edbatch.sharding.order.order_results`.
        instances: Number of instances in the minibatch.
        report: The plan's costs.

    Returns:
        The sharded plan. The transfers of its arrays are not waited for.
    """
    split = NamedSharding(shape.mesh, P(shape.axis))
    everywhere = NamedSharding(shape.mesh, P())
    leaves, (treedef, *_) = zip(*map(jax.tree.flatten, shards), strict=True)
    arrays = [_distribute(each, split) for each in zip(*leaves, strict=True)]
    rows, lengths, num_instances = jax.tree.map(
        lambda each: jax.make_array_from_callback(
            each.shape, everywhere, lambda index: each[index]
        ),
        (order.rows, order.lengths, np.array(instances, np.int32)),
    )
    shards_there = jax.tree.unflatten(treedef, arrays)
    return ShardedPlan(shape, shards_there, rows, lengths, num_instances, report)


def _distribute(parts: Sequence[np.ndarray], sharding: NamedSharding) -> jax.Array:
    """Stacks arrays along a new axis, one on each device."""
    return jax.make_array_from_callback(
        (len(parts), *parts[0].shape),
        sharding,
        lambda index: parts[_shard_of(index)][None],
    )


def _shard_of(index: tuple[slice, ...] | None) -> int:
    """Returns the number of the shard at a device's index into an array."""
    assert index is not None, "every device has a part"
    return index[0].start or 0
