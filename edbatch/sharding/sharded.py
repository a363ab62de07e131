"""Batched functions that run on several devices at once; see `Batched.sharded`."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, NoReturn

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from edbatch.cell.jaxpr import is_staging
from edbatch.compilation.settings import compiling_ahead
from edbatch.compilation.signature import name_of
from edbatch.compilation.tiered_function import TieredFunction
from edbatch.compilation.warm_up import plan_all, warm_up
from edbatch.compilation.worker import Pending
from edbatch.errors import PickleError, PlanError, raising_line
from edbatch.explain.explain import explain_graph
from edbatch.explain.sharded import ShardedExplanation
from edbatch.gradient.asked_tables import asked_of
from edbatch.graph.recorder import AsksForValueError
from edbatch.host_side import HostSide
from edbatch.plan.keys import keyed
from edbatch.plan.padding import checked_rows, first_rows
from edbatch.plan.plan import Plan
from edbatch.planning import ANY
from edbatch.policies.guard import BestOfHeuristics
from edbatch.policies.search.beam_search import BeamSearch
from edbatch.recording import check_not_empty, minibatch_of, record_each
from edbatch.schedule.interrupt import keyboard_interrupts
from edbatch.schedule.policy import Policy
from edbatch.sharding.devices import (
    all_devices,
    automatic,
    check_automatic,
    choose_axis,
)
from edbatch.sharding.mesh_run import ShardedTableRun, run_sharded
from edbatch.sharding.plan import ShardedPlan
from edbatch.sharding.planning import decide_together, plan_shards, split_minibatch
from edbatch.target import Target, choose_target


class Sharded(HostSide):
    """A batched function on the devices of a mesh; made by `Batched.sharded`.

    A minibatch is split so that all devices are busy for about the same time, and each
    runs its own plan with the same compiled program. Everything else is as on one
    device: results come in the order of the instances, and a gradient with respect to
    the parameters is that of the loss as written, over the whole minibatch.

    In a job of several processes, every process makes the same calls: the same
    instances in the same order, planned one after the other. Each keeps only the plans
    of its own devices.

    Attributes:
        batched: The function for one device, whose states this one shares.
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
        self, batched: HostSide, mesh: Mesh | None = None, axis: str | None = None
    ) -> None:
        super().__init__(batched.states)
        self.batched = batched
        mesh = all_devices() if mesh is None else mesh
        self.axis = choose_axis(mesh, axis)
        self.mesh = automatic(mesh)
        _check_repeatable(batched.policy, mesh)
        self._begin()

    def __repr__(self) -> str:
        """Summary in one line."""
        devices = self.mesh.shape[self.axis]
        return f"<Sharded {name_of(self.model)} on {devices} devices>"

    def _begin(self) -> None:
        """Sets up the state that copies do not share."""
        self._compiles = 0
        name = f"{name_of(self.model)} on {self.mesh.shape[self.axis]} devices"
        self._run = TieredFunction(self._counted_run, name=name)

    def __copy__(self) -> "Sharded":
        """Returns an independent function on the same devices."""
        return Sharded(self.batched, self.mesh, self.axis)

    def __deepcopy__(self, memo: Any) -> "Sharded":
        """Like `copy.copy`, with a copy of the function for one device."""
        return Sharded(copy.deepcopy(self.batched, memo), self.mesh, self.axis)

    def __reduce__(self) -> NoReturn:
        """Raises `PickleError`: devices belong to one process."""
        raise PickleError(
            "a sharded function runs on devices of its own process, so it cannot be"
            " pickled; pickle its .batched, and call .sharded() in the other process"
        )

    def _target(self, params: Any) -> Target:
        """The mesh's `Target`."""
        return choose_target(mesh=self.mesh)

    def __call__(
        self, params: Any, instances: Sequence[Any], *, rng: Any = None
    ) -> Any:
        """Runs the model on a minibatch.

        Args:
            params: The model's parameters, any pytree.
            instances: Instances, or recordings of them.
            rng: As for `Batched.apply`.

        Returns:
            As for `Batched`.

        Raises:
            EdbatchError: As for `plan` and `apply`.
        """
        instances = minibatch_of(instances)
        plan = self._plan(instances, params, ANY)
        return first_rows(self.apply(params, plan, rng=rng), int(plan.num_instances))

    def replicate(self, params: Any) -> Any:
        """Copies parameters to every device, so that no call has to.

        Args:
            params: Parameters, or any pytree of arrays; in a job of several processes
                the same in each.

        Returns:
            The same pytree, on all devices of the mesh.
        """
        # JAX would share the memory of NumPy arrays with a device that can read it.
        params = jax.tree.map(
            lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, params
        )
        return jax.device_put(params, NamedSharding(self.mesh, P()))

    def plan(
        self,
        instances: Iterable[Any],
        *,
        params: Any = None,
        pad_to: int | None = None,
    ) -> ShardedPlan:
        """Splits a minibatch, then schedules and lays out each part.

        Args:
            instances: Instances, or recordings of them. If there are fewer instances
                than devices, some devices have nothing to do.
            params: As for `Batched.plan`.
            pad_to: As for `Batched.plan`.

        Returns:
            The plan, a pytree for `apply`, which lies on the devices of the mesh.

        Raises:
            EdbatchError: As for `Batched.plan`; or the given costs are for other cells.
        """
        instances = minibatch_of(instances)
        return self._plan(instances, params, checked_rows(pad_to, len(instances)))

    @keyboard_interrupts()
    def _plan(
        self,
        instances: Sequence[Any],
        params: Any,
        pad_to: int | Literal["any"] | None,
    ) -> ShardedPlan:
        state = self.states.of_minibatch(instances, params)
        check_not_empty(instances)
        with _explained():
            recordings = record_each(state, instances)
        return plan_shards(
            recordings,
            state,
            self.options,
            self.mesh,
            self.axis,
            pad_to=pad_to,
        )

    @keyboard_interrupts()
    def explain(
        self, instances: Iterable[Any], *, params: Any = None
    ) -> ShardedExplanation:
        """Explains the costs of a minibatch on each device, as `Batched.explain` does.

        Args:
            instances: Instances, or recordings of them.
            params: As for `Batched.explain`.

        Returns:
            A report for each device. Times are predicted from costs, if these were
            given; only ``.batched.explain`` measures batches.

        Raises:
            EdbatchError: As for `plan`.
        """
        instances = minibatch_of(instances)
        state = self.states.of_minibatch(instances, params)
        check_not_empty(instances)
        with _explained():
            recordings = record_each(state, instances)
        devices = int(self.mesh.shape[self.axis])
        graphs = split_minibatch(recordings, state, self.options, devices).graphs
        target = self._target(params)
        own = state.planning.scratch()
        decide_together(recordings, own, self.options, target)
        compilations = self._run.compilations()
        return ShardedExplanation(
            tuple(
                None
                if each is None
                else explain_graph(
                    each,
                    state,
                    self.options,
                    target,
                    compilations=compilations,
                    own=own,
                )
                for each in graphs
            )
        )

    def apply(self, params: Any, plan: ShardedPlan, *, rng: Any = None) -> Any:
        """Runs a plan: a pure JAX function, for ``jit``, ``grad`` and the like.

        A gradient with respect to the parameters is that of the loss as written, summed
        over the devices; nothing has to be averaged.

        Args:
            params: The model's parameters.
            plan: A plan of this function.
            rng: As for `Batched.apply`; nodes get the same keys as on one device.

        Returns:
            The same result as calling the function; the same on all devices.

        Raises:
            PlanError: The plan was made for one device, for another mesh, by another
                model, or for parameters of other shapes; or a mesh with explicit axes
                is set around the call, or parameters are on one.
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
        self.states.bind_planned(plan.shards)
        state, shards = self.states.adopt_plan(plan.shards)
        state.check_order(params)
        plan = replace(plan, shards=shards)
        asked = asked_of(params)
        if asked is not None:
            params, plan, key = self._arguments(params, plan, rng)
            return asked.call(params, ShardedTableRun(plan, key))
        return self._checked_call(params, *self._call_of(params, plan, rng))

    def _on_mesh(self, params: Any) -> Any:
        """Copies parameters committed to other devices, such as restored checkpoints.

        Their gradients are copied back. JAX itself copies uncommitted arrays only, and
        refuses all others.
        """
        if is_staging():
            return params
        own = set(self.mesh.devices.flat)

        def placed(leaf: Any) -> Any:
            if isinstance(leaf, jax.core.Tracer):  # its devices are unknown
                return self.replicate(leaf)
            committed = isinstance(leaf, jax.Array) and leaf.committed
            if not committed or leaf.sharding.device_set == own:
                return leaf
            return self.replicate(leaf)

        return jax.tree.map(placed, params)

    def _arguments(
        self, params: Any, plan: ShardedPlan, rng: Any
    ) -> tuple[Any, ShardedPlan, Any]:
        """Returns the arguments of the function that runs a plan of its own types."""
        check_automatic(params)
        shards, key = keyed(plan.shards, rng)
        return params, replace(plan, shards=shards), key

    def _call_of(
        self, params: Any, plan: ShardedPlan, rng: Any
    ) -> tuple[TieredFunction, tuple[Any, ...]]:
        """Returns the compiled function that runs a plan, and its arguments."""
        return self._run, self._arguments(self._on_mesh(params), plan, rng)

    @compiling_ahead()
    def warm_up(
        self,
        sample: Iterable[Any],
        batch_sizes: Iterable[int] | None = None,
        *,
        params: Any,
        rng: Any = None,
        block: bool = True,
    ) -> Pending:
        """Compiles ahead of time the programs for minibatches like those of a sample.

        Args:
            sample: As for `Batched.warm_up`.
            batch_sizes: As for `Batched.warm_up`.
            params: The parameters of later calls, on the devices where they will be
                then (`replicate`).
            rng: As for `Batched.apply`, if cells draw random numbers.
            block: As for `Batched.warm_up`.

        Returns:
            As for `Batched.warm_up`.

        Raises:
            EdbatchError: As for `plan` and `apply`; or a batch size is not a whole
                number above 0.
        """
        with _explained():
            recordings = self.record_all(sample, params=params)

        def plan(minibatch: Sequence[Any]) -> ShardedPlan:
            return self._plan(list(minibatch), params, ANY)

        plans = plan_all(plan, recordings, batch_sizes)
        return warm_up((self._call_of(params, each, rng) for each in plans), block)

    def _counted_run(self, params: Any, plan: ShardedPlan, rng: Any) -> Any:
        self._compiles += 1  # runs while tracing only, once per compilation
        return run_sharded(params, plan, rng)

    @property
    def takes_merged(self) -> bool:
        """False, because the instances of a minibatch are divided among devices."""
        return False

    @property
    def compiles(self) -> int:
        """How often programs were traced; each program serves all devices."""
        return self._compiles


@contextmanager
def _explained() -> Iterator[None]:
    """Adds advice to errors of models that ask for values, which cannot be recorded."""
    try:
        yield
    except AsksForValueError as error:
        raise AsksForValueError(
            f"the model asks for a value ({raising_line(error)}), so it runs wave by"
            " wave on one device, but a sharded function runs one program on all"
            " devices; call the batched function, in one process for each device, or"
            " plan the paths that it took:"
            " sharded.plan(batched.rollout(params, instances).recordings)"
        ) from error


def _check_repeatable(policy: Policy, mesh: Mesh) -> None:
    own = policy.policy if isinstance(policy, BestOfHeuristics) else policy
    timed = isinstance(own, BeamSearch) and own.width is None
    if timed and len({each.process_index for each in mesh.devices.flat}) > 1:
        raise PlanError(
            "each process of a mesh plans for itself and all have to come to the same"
            " plans, but what a search with a time limit finds depends on the speed of"
            " the machine; leave search= out, or give it eb.Search(width=8)"
        )


def _describe_mesh(mesh: Mesh, axis: str) -> str:
    devices = ", ".join(map(str, mesh.devices.flat))
    return f"axis {axis!r} of {dict(mesh.shape)} on [{devices}]"
