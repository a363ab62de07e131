"""Batched functions that run on several devices at once; see `Batched.sharded`."""

import copy
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from edbatch.arguments import list_of
from edbatch.batching import Batched, Model
from edbatch.errors import PickleError, PlanError
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.merge import at_places, merge, merge_lengths
from edbatch.graph.parameters import abstract
from edbatch.model_state import ModelState
from edbatch.plan.keys import plan_key
from edbatch.plan.plan import Plan, encode_unpadded, fit_bucket
from edbatch.plan.result import describe_results
from edbatch.policies.guard import Guarded
from edbatch.policies.search.beam_search import Searched
from edbatch.schedule.interrupt import keyboard_interrupts
from edbatch.schedule.policy import Policy
from edbatch.sharding.balance import balance, predict_work
from edbatch.sharding.devices import (
    all_devices,
    automatic,
    check_automatic,
    choose_axis,
)
from edbatch.sharding.order import align, order_results
from edbatch.sharding.plan import (
    INSTANCES,
    Shard,
    ShardedPlan,
    ShardedShape,
    pad_shards,
    place,
)
from edbatch.sharding.report import ShardedReport
from edbatch.sharding.run import run_sharded
from edbatch.stream.buckets import Bucket, BucketStore


class Sharded:
    """A batched function on the devices of a mesh; made by `Batched.sharded`.

    A minibatch is split so that all devices are busy for about as long, and each runs
    its own plan by the same compiled program. Everything else is as without devices:
    results come in the order of the instances, and a gradient with respect to the
    parameters is that of the loss that was written, of the whole minibatch.

    In a job of several processes every process makes the same calls: the same
    instances in the same order, planned one after the other. Each keeps the plans of
    its own devices only.

    Attributes:
        batched: The function for one device.
        mesh: The devices.
        axis: The axis of the mesh over which minibatches are split.

    Example:
        >>> import edbatch as eb
        >>> import jax.numpy as jnp
        >>> @eb.cell
        ... def twice(params, x):
        ...     return params * x
        >>> batched = eb.batch(twice)
        >>> sharded = batched.sharded()  # all devices
        >>> sharded(jnp.float32(2), [1.0, 5.0, 3.0]).tolist()
        [2.0, 10.0, 6.0]
    """

    def __init__(
        self, batched: Batched, mesh: Mesh | None = None, axis: str | None = None
    ) -> None:
        self.batched = batched
        mesh = all_devices() if mesh is None else mesh
        self.axis = choose_axis(mesh, axis)
        self.mesh = automatic(mesh)
        _check_repeatable(batched.policy, mesh)
        self._stores: dict[ModelState, BucketStore] = {}
        self._begin()

    def _begin(self) -> None:
        """Makes what is not copied."""
        self._compiles = 0
        self._run = jax.jit(self._counted_run)

    def __copy__(self) -> "Sharded":
        """Returns a function of its own on the same devices."""
        found = object.__new__(type(self))
        found.__dict__.update(self.__dict__, _stores=dict(self._stores))
        found._begin()
        return found

    def __deepcopy__(self, memo: Any) -> "Sharded":
        """As `copy.copy`, of a copy of the function for one device."""
        found = copy.copy(self)
        found.batched = copy.deepcopy(self.batched, memo)
        return found

    def __reduce__(self) -> NoReturn:
        """Raises: devices are of one process."""
        raise PickleError(
            "a sharded function runs on devices of its own process, so it cannot be"
            " pickled; pickle its .batched, and call .sharded() in the other process"
        )

    def __call__(
        self, params: Any, instances: Sequence[Any], *, rng: Any = None
    ) -> Any:
        """Runs the model on a minibatch.

        Args:
            params: The model's parameters, any pytree.
            instances: Instances, or recordings of them.
            rng: As for `Batched.apply`.

        Returns:
            As `Batched` does.

        Raises:
            EdbatchError: As `plan` and `apply`.
        """
        plan = self.plan(instances, params=params)
        return self.apply(params, plan, rng=rng)

    @property
    def model(self) -> Model:
        """The model for one instance."""
        return self.batched.model

    def bind(self, params: Any) -> "Sharded":
        """Tells the shapes of the parameters; see `Batched.bind`."""
        self.batched.bind(params)
        return self

    def record_all(
        self, instances: Iterable[Any], *, params: Any = None
    ) -> list[DataflowGraph]:
        """Records the instances of a data set; see `Batched.record_all`."""
        return self.batched.record_all(instances, params=params)

    def replicate(self, params: Any) -> Any:
        """Copies parameters to every device, so that no call has to.

        Args:
            params: Parameters, or any pytree of arrays; in a job of several processes
                the same in each.

        Returns:
            The same pytree, on all devices of the mesh.
        """
        return jax.device_put(params, NamedSharding(self.mesh, P()))

    @keyboard_interrupts()
    def plan(self, instances: Iterable[Any], *, params: Any = None) -> ShardedPlan:
        """Splits a minibatch, schedules and lays out each part.

        Args:
            instances: Instances, or recordings of them. There may be fewer than
                devices: some of these have nothing to do then.
            params: As for `Batched.plan`.

        Returns:
            The plan, a pytree for `apply`, which lies on the devices of the mesh.

        Raises:
            EdbatchError: As `Batched.plan`; or the costs given are those of other
                cells.
        """
        instances = list_of(PlanError, "a minibatch", instances)
        return self._plan(self.batched._choose(instances, params), instances)

    def _plan(self, state: ModelState, instances: Sequence[Any]) -> ShardedPlan:
        batched = self.batched
        recordings = batched._record_all(state, instances)
        if not recordings:
            raise PlanError(
                "a minibatch needs at least one instance but is empty; leave empty"
                " minibatches out"
            )
        start = time.perf_counter()
        skeleton, lengths = merge_lengths(recordings)
        ragged = state.see_lists(skeleton, lengths)
        result = describe_results(skeleton, lengths, len(recordings), ragged)
        shape = ShardedShape(self.mesh, self.axis, result)
        work = predict_work(recordings, state.types, batched.costs)
        device = balance(work, shape.count)
        recordings = align(recordings, skeleton)
        shards = [
            self._encode(state, shape, recordings, own)
            for own in (np.flatnonzero(device == d) for d in range(shape.count))
        ]
        bucket = self._fit(state, shards)
        plans = pad_shards(shape, shards, bucket, batched.planner)
        stack_rows = [len(rows) for rows in plans[0].rows]
        sizes = {name: shape.count * size for name, size in bucket.sizes.items()}
        report = ShardedReport(
            tuple(each.plan.report if each else None for each in shards),
            tuple(map(_count_instances, shards)),
            tuple(np.bincount(device, work, shape.count).tolist()),
            1e3 * (time.perf_counter() - start),
        )
        order = order_results(recordings, lengths, device, stack_rows, result, sizes)
        return place(shape, plans, order, report)

    def _encode(
        self,
        state: ModelState,
        shape: ShardedShape,
        recordings: Sequence[DataflowGraph],
        own: np.ndarray,
    ) -> Shard | None:
        """Plans the recordings of one device, if it has any."""
        if not own.size:
            return None
        graph = at_places(merge([recordings[k] for k in own]), own.tolist())
        running, schedule, layout = self.batched._lay_out(state, graph)
        result = replace(shape.result, instances=graph.num_instances)
        plan = encode_unpadded(running, schedule, layout, result, state.forms)
        return Shard(graph, plan)

    def _fit(self, state: ModelState, shards: Sequence[Shard | None]) -> Bucket:
        """Finds a bucket for all devices, apart from those for one device."""
        sizes = self.batched.sizes
        return fit_bucket(
            [each.plan for each in shards if each],
            self._stores.setdefault(state, BucketStore(sizes)),
            {INSTANCES: max(map(_count_instances, shards))},
        )

    def apply(self, params: Any, plan: ShardedPlan, *, rng: Any = None) -> Any:
        """Runs a plan: a pure JAX function, for ``jit``, ``grad`` and the like.

        A gradient with respect to the parameters is that of the loss that was written,
        summed over the devices; nothing has to be averaged.

        Args:
            params: The model's parameters.
            plan: A plan of this function.
            rng: As for `Batched.apply`; keys are those that one device would give.

        Returns:
            As calling the function; the same on all devices.

        Raises:
            PlanError: The plan was made for one device, for another mesh, by another
                model, or for parameters of other shapes; or parameters lie on a mesh
                with explicit axes.
        """
        if isinstance(plan, Plan):
            raise PlanError(
                "apply of a sharded function takes a plan for all devices of its mesh"
                " but received one for a single device; make it with the sharded"
                " function's own .plan(instances), or run it with .batched.apply"
            )
        if not isinstance(plan, ShardedPlan):
            raise PlanError(
                "apply of a sharded function takes a plan made by its .plan(instances)"
                f" but received {type(plan).__name__}; to run instances, call the"
                " sharded function"
            )
        own, other = (self.mesh, self.axis), (plan.shape.mesh, plan.shape.axis)
        if own != other:
            raise PlanError(
                "a plan runs on the mesh that it was made for,"
                f" {_describe_mesh(*other)}, but this function has"
                f" {_describe_mesh(*own)}; make the plan with this function's own"
                " .plan(instances)"
            )
        plan = replace(plan, shards=self.batched._own(plan.shards))
        check_automatic(params)
        try:
            return self._run(params, plan, plan_key(plan.shards, rng))
        except TypeError:
            abstract(params)  # says which parameters are none
            raise

    def _counted_run(self, params: Any, plan: ShardedPlan, rng: Any) -> Any:
        self._compiles += 1  # runs while tracing only, once per compilation
        return run_sharded(params, plan, rng)

    @property
    def compiles(self) -> int:
        """How many programs were compiled so far; each serves all devices."""
        return self._compiles


def _count_instances(shard: Shard | None) -> int:
    return shard.graph.num_instances if shard else 0


def _check_repeatable(policy: Policy, mesh: Mesh) -> None:
    own = policy.policy if isinstance(policy, Guarded) else policy
    timed = isinstance(own, Searched) and own.width is None
    if timed and len({each.process_index for each in mesh.devices.flat}) > 1:
        raise PlanError(
            "each process of a mesh plans for itself and all have to come to the same"
            " plans, but a search within milliseconds finds what the machine has time"
            " for; leave search_ms out, or search by Searched(policy, width=8)"
        )


def _describe_mesh(mesh: Mesh, axis: str) -> str:
    devices = ", ".join(map(str, mesh.devices.flat))
    return f"axis {axis!r} of {dict(mesh.shape)} on [{devices}]"
