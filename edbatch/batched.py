"""`Batched`: a model that runs on minibatches, on one device."""

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal

from jax.sharding import Mesh

from edbatch import planning
from edbatch.arguments import list_of
from edbatch.cell.jaxpr import is_staging, is_tracing
from edbatch.cell.program import Packed
from edbatch.compilation.settings import compiling_ahead
from edbatch.compilation.signature import name_of
from edbatch.compilation.tiered_function import TieredFunction
from edbatch.compilation.tiered_gradient import TieredGradient, call_untraced
from edbatch.compilation.warm_up import plan_all, warm_up
from edbatch.compilation.worker import Pending
from edbatch.errors import PlanError
from edbatch.executor.packed_parameters import is_traced
from edbatch.explain.explain import explain_graph
from edbatch.explain.report import Explanation
from edbatch.gradient.asked_tables import asked_of
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.recorder import AsksForValueError
from edbatch.host_side import HostSide
from edbatch.model_state import ModelState
from edbatch.plan.device_notice import DeviceNotice
from edbatch.plan.keys import keyed, program_with
from edbatch.plan.padding import checked_rows, first_rows
from edbatch.plan.plan import Plan
from edbatch.plan.run import run_forward, run_from_residuals, run_packed, run_plan
from edbatch.plan.table_run import PlanTableRun
from edbatch.recording import minibatch_of, record_each, record_minibatch
from edbatch.schedule.interrupt import keyboard_interrupts
from edbatch.sharding.plan import ShardedPlan
from edbatch.sharding.sharded import Sharded
from edbatch.state_registry import StateRegistry
from edbatch.target import Target, choose_target
from edbatch.waves.minibatch import call_in_waves, calls_ahead, roll_out
from edbatch.waves.programs import WaveFunctions
from edbatch.waves.rollout import Rollout
from edbatch.waves.runner import WaveRunner


class Batched(HostSide):
    """A model that runs on minibatches; made by `batch`.

    Calling it returns the same result as ``jax.vmap`` of the model: the model's output
    pytree with a leading axis over instances. The steps of a call, `record`, `plan` and
    `apply`, can also be called separately: the first two run on the host only, in any
    thread; `apply` is a pure JAX function.

    One function serves parameters of several structures, shapes and dtypes. Recordings
    and plans know which parameters they were made for. An instance that is not a
    recording is recorded for the first of these that exists: the parameters of the
    call, ``params=`` of the method, the parameters of recordings in the same minibatch,
    the bound parameters. Parameters are bound by ``params=`` of `batch` and by `bind`
    (the latest counts) or, if neither was used, by the first run (a call, `apply` or
    `rollout`). Later runs bind nothing, nor does ``params=`` of other methods.

    It can be pickled, including everything learned about the model, if the model can be
    imported by name. Other processes can then record and plan with it, and recordings
    and plans can be sent and stored. Each process compiles its own programs.

    Attributes:
        states: The states of the model, by structure of the parameters.
        device_notice: Logs once which device runs the model.
    """

    def __init__(self, states: StateRegistry) -> None:
        super().__init__(states)
        self._begin()

    def __repr__(self) -> str:
        """Summary in one line."""
        return f"<Batched {name_of(self.model)}: policy {self.policy.name}>"

    def _begin(self) -> None:
        """Creates the attributes that are neither copied nor pickled."""
        self._compiles = 0
        name = name_of(self.model)
        self.device_notice = DeviceNotice(name)
        self._run = TieredFunction(self._counted_run, name=name, inlined=True)
        self._run_packed = TieredFunction(self._counted_run_packed, name=name)
        self._gradient = TieredGradient(
            self._run, self._counted_forward, run_from_residuals, name
        )
        self._waves = WaveFunctions(name)

    def __copy__(self) -> "Batched":
        """Returns an independent function that shares the states."""
        return Batched(copy.copy(self.states))

    def __deepcopy__(self, memo: Any) -> "Batched":
        """Like `copy.copy`, with its own copy of the policy."""
        found = copy.copy(self)
        found.policy = copy.deepcopy(self.policy, memo)
        return found

    def __getstate__(self) -> StateRegistry:
        """Pickles the model by name, and everything learned about it."""
        return self.states

    def __setstate__(self, states: StateRegistry) -> None:
        """Restores the function, without any compiled programs."""
        self.states = states
        self._begin()

    def __call__(
        self, params: Any, instances: Sequence[Any], *, rng: Any = None
    ) -> Any:
        """Runs the model on a minibatch.

        Args:
            params: The model's parameters, any pytree.
            instances: Instances, or recordings of them.
            rng: As for `apply`.

        Returns:
            The model's output pytree with a leading axis over instances. A list becomes
            a `Ragged`, since its length may differ between instances; tuples, dicts and
            all other pytree nodes keep their type. The values of a list that is empty
            in all instances are an empty tuple, unless recordings made together with
            these (`record_all`) determine the type of its elements.

        Instances that read values (`edbatch.value`) run in waves; see `rollout`.

        Raises:
            EdbatchError: As for `plan` and `apply`.
        """
        instances = minibatch_of(instances)
        state = self.states.checked(self._run_state(params), instances)
        minibatch: Sequence[Any] = instances
        if not any(isinstance(each, DataflowGraph) for each in instances):
            found = self._call_in_waves(state, params, instances, rng)
            if not isinstance(found, DataflowGraph):
                return found
            minibatch = [found]  # no instance has read a value
        plan = self._plan(state, minibatch, choose_target(params), planning.ANY)
        return first_rows(self.apply(params, plan, rng=rng), int(plan.num_instances))

    @keyboard_interrupts()
    def _call_in_waves(
        self, state: ModelState, params: Any, instances: Sequence[Any], rng: Any
    ) -> Any:
        return call_in_waves(self._runner(state, params, rng), instances)

    @keyboard_interrupts()
    def rollout(
        self,
        params: Any,
        instances: Iterable[Any],
        *,
        rng: Any = None,
        keep_values: bool = False,
    ) -> Rollout:
        """Runs instances that read values, and records the paths that they take.

        Each instance runs until it reads a value (`edbatch.value`) or ends. Once all
        are waiting, the nodes recorded since the last wave run as one wave, scheduled
        by the policy; values stay on the device between waves.

        The recordings hold everything that the instances computed, with the values that
        they read as constants. Planned and applied, they run again without waves, with
        gradients: teacher forcing on the model's own actions, or REINFORCE.

        Args:
            params: The model's parameters, not traced.
            instances: Instances, none of them a recording.
            rng: As for `apply`. Applying the recordings in the same order gives each
                instance the same keys.
            keep_values: Whether to keep the values that instances read.

        Returns:
            The outputs, as for a call, and the recordings.

        Raises:
            Exception: Raised by the model, with a note that names the instance. All
                other instances are ended; their ``finally`` clauses run.
            EdbatchError: As for a call; or the parameters are traced.

        Example:
            >>> import edbatch as eb
            >>> import jax
            >>> import jax.numpy as jnp
            >>> @eb.cell
            ... def grow(params, x):
            ...     return params * x
            >>> def model(params, x):
            ...     while eb.value(x) < 10:
            ...         x = grow(params, x)
            ...     return x
            >>> batched = eb.batch(model)
            >>> found = batched.rollout(jnp.float32(2), [1.0, 3.0])
            >>> found.outputs.tolist()
            [16.0, 12.0]
            >>> plan = batched.plan(found.recordings)
            >>> float(jax.grad(lambda p: batched.apply(p, plan).sum())(2.0))
            44.0
        """
        instances = minibatch_of(instances)
        state = self.states.checked(self._run_state(params), instances)
        runner = self._runner(
            state, params, rng, keep_paths=True, keep_values=keep_values
        )
        return roll_out(runner, instances)

    def _run_state(self, params: Any) -> ModelState:
        """Returns the state of a run's parameters; the first run binds them."""
        return self.states.bind_first(self.states.of_params(params))

    def _runner(
        self, state: ModelState, params: Any, rng: Any, **keep: bool
    ) -> WaveRunner:
        """Creates the runner of the waves of one minibatch, or of a server."""
        sizes = state.wave_sizes(self.options, choose_target(params))
        return WaveRunner(state, sizes, self._waves, self.options, params, rng, **keep)

    def wave_runner(
        self, params: Any, rng: Any = None
    ) -> tuple[WaveRunner, Callable[[Any], Any]]:
        """Returns a runner of waves, for callers that supply instances over time.

        Args:
            params: The model's parameters.
            rng: As for `apply`.

        Returns:
            The runner, and the model as a function of one instance, applied to handles.

        Raises:
            EdbatchError: `params` are not parameters; or `rng` is not a key.
        """
        state = self._run_state(params)
        runner = self._runner(state, params, rng)
        return runner, partial(self.model, state.types.params)

    def plan(
        self,
        instances: Iterable[Any],
        *,
        params: Any = None,
        pad_to: int | None = None,
    ) -> Plan:
        """Schedules and lays out a minibatch; on the host only.

        Args:
            instances: Instances, or recordings of them.
            params: As for `record_all`.
            pad_to: Rows of the result, N; by default the number of instances. A program
                is compiled for a fixed N, so minibatches of different sizes share one
                if they are padded; `Plan.instance_mask` marks the rows of instances.

        Returns:
            The plan, a pytree of NumPy arrays for `apply`.

        Raises:
            EdbatchError: As for `graph`; or the policy belongs to another model; or the
                minibatch has more rows than int32 can count, or more instances than
                `pad_to`.
        """
        instances = minibatch_of(instances)
        pad_to = checked_rows(pad_to, len(instances))
        state = self.states.of_minibatch(instances, params)
        return self._plan(state, instances, choose_target(params), pad_to)

    @keyboard_interrupts()
    def _plan(
        self,
        state: ModelState,
        instances: Sequence[Any],
        target: Target,
        pad_to: int | Literal["any"] | None,
    ) -> Plan:
        graph = record_minibatch(state, instances)
        return planning.plan(graph, state, self.options, target, pad_to=pad_to)

    @keyboard_interrupts()
    def explain(
        self,
        instances: Iterable[Any],
        *,
        params: Any = None,
        measure: bool = False,
        rng: Any = None,
    ) -> Explanation:
        """Explains what a minibatch costs, type by type, and what keeps types apart.

        The minibatch is planned as a call would plan it, and counted on the host; later
        plans are not affected. Times are predicted from the ``costs`` given to
        `edbatch.batch`, if any, or measured.

        Args:
            instances: Instances, or recordings of them.
            params: As for `record_all`; to measure, arrays.
            measure: Whether to run each batch separately, often enough to time it. A
                program is compiled for this.
            rng: As for `apply`; used only to measure.

        Returns:
            The report: ``print`` shows it as text, `rich` as tables, a notebook as
            HTML; ``to_json()`` returns JSON values.

        Raises:
            EdbatchError: As for `plan`; or batches cannot be measured: there are no
                parameters, or the device runs programs with one switch per chunk.

        Example:
            >>> import edbatch as eb
            >>> import jax.numpy as jnp
            >>> twice = eb.batch(eb.cell(lambda params, x: params @ x, name="twice"))
            >>> report = twice.bind(2 * jnp.eye(3)).explain([jnp.ones(3)] * 5)
            >>> [use] = report.types
            >>> use.name, use.nodes, use.batches, use.rows, use.flops
            ('twice/0', 5, 1, 8, 90)
        """
        instances = minibatch_of(instances)
        state = self.states.of_minibatch(instances, params)
        graph = record_minibatch(state, instances)
        return explain_graph(
            graph,
            state,
            self.options,
            choose_target(params),
            params=params,
            rng=rng,
            measure=measure,
            compilations=self._run.compilations()
            + self._run_packed.compilations()
            + self._gradient.compilations(),
        )

    def apply(self, params: Any, plan: Plan, *, rng: Any = None) -> Any:
        """Runs a plan: a pure JAX function, for ``jit``, ``grad`` and the like.

        Outside JAX transformations, as in inference, values that cells compute from
        parameters alone (such as the packed matrices of their gates) are kept for the
        next call with the same arrays, until those arrays are freed.

        Gradients are the model's. The contents of one instance (NaN, infinity, a point
        without a derivative) never change the outputs or gradients of another, nor the
        gradient of a parameter that only others read; outputs that nothing reads have
        no cotangent. There is one difference from the unbatched model: both branches of
        a ``lax.cond`` inside a cell run, as under `jax.vmap`.

        Args:
            params: The model's parameters.
            plan: A plan of this model.
            rng: The key for cells that draw random numbers, typed or raw; may be
                traced. Each call of such a cell gets its own key, independent of the
                schedule; `cell_keys` gives the unbatched model the same keys. Ignored
                if no cell takes a key.

        Returns:
            The same result as calling the batched function.

        Raises:
            PlanError: The plan was made by another model, or for parameters of other
                shapes; or a cell needs a key and none is given.
            CellError: `rng` is not a key.
        """
        if isinstance(plan, ShardedPlan):
            raise PlanError(
                "apply of a batched function takes a plan for one device but received"
                f" one for {plan.shape.count} devices; run it with the .apply of the"
                " sharded function that made it"
            )
        if not isinstance(plan, Plan):
            raise PlanError(
                f"apply takes a plan made by .plan(instances) but received"
                f" {type(plan).__name__}; to run instances, call the batched function"
            )
        self.states.bind_planned(plan)
        if self.device_notice.due:
            self.device_notice.tell(plan, params)
        asked = asked_of(params)
        if asked is not None:
            _, plan = self._adopted(params, plan)
            return asked.call(params, PlanTableRun(*keyed(plan, rng)))
        run, arguments = self._call_of(params, plan, rng)
        if not is_tracing() or is_staging():
            return self._checked_call(params, run, arguments)
        if is_traced(arguments):
            return self._checked_call(params, self._gradient, arguments)
        return self._checked_call(params, partial(call_untraced, run), arguments)

    def _adopted(self, params: Any, plan: Plan) -> tuple[ModelState, Plan]:
        """Returns a plan's state, and the plan for the device that will run it."""
        state, plan = self.states.adopt_plan(plan)
        state.check_order(params)
        planned = plan.shape.program.options.target
        return state, plan.on(choose_target((params, plan), unknown=planned))

    def _call_of(
        self, params: Any, plan: Plan, rng: Any
    ) -> tuple[TieredFunction, tuple[Any, ...]]:
        """Returns the compiled function that runs a plan, and its arguments."""
        state, plan = self._adopted(params, plan)
        plan, key = keyed(plan, rng)
        packed = None
        if not is_traced((plan, key)):  # otherwise it may be differentiated
            packed = state.packed.of(params, program_with(plan.shape.program, key))
        if packed is not None:
            return self._run_packed, (packed, plan, key)
        return self._run, (params, plan, key)

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

        The sample is cut into minibatches of each size. All of them are planned, and
        the fine programs of their buckets are compiled. If the model reads values
        (`edbatch.value`), the minibatches are run instead, by coarse programs. To warm
        up a training step, use the `warm_up` of its `eb.jit` function.

        Args:
            sample: Instances, or recordings of them, of all sizes and structures that
                later calls will have. It is repeated to fill larger minibatches.
            batch_sizes: Instances per minibatch, such as ``[1, 8, 64]``; by default one
                minibatch of the whole sample.
            params: The parameters of the later calls. Values that cells compute from
                parameters alone are computed, too.
            rng: As for `apply`, if cells draw random numbers.
            block: Whether to wait until everything is compiled. Otherwise a background
                thread compiles, and calls made before it is done run coarse programs.

        Returns:
            A handle: ``wait()`` waits, and raises any error; ``done`` is whether
            compilation has ended; ``programs`` is the number of programs.

        Raises:
            EdbatchError: As for `plan` and `apply`; or a batch size is not a whole
                number above 0.

        Example:
            >>> import edbatch as eb
            >>> import jax.numpy as jnp
            >>> params = jnp.float32(2)
            >>> twice = eb.batch(eb.cell(lambda params, x: params * x))
            >>> twice.warm_up([1.0, 5.0, 3.0], [2], params=params).programs
            1
            >>> with eb.set_stance("fail_on_compile"):
            ...     twice(params, [4.0, 6.0]).tolist()
            [8.0, 12.0]
        """
        instances = list_of(PlanError, "a sample", sample)
        state = self.states.checked(self.states.of_params(params), instances)
        target = choose_target(params)

        def plan(minibatch: Sequence[Any]) -> Plan:
            return self._plan(state, minibatch, target, planning.ANY)

        def run(minibatch: Sequence[Any]) -> list[Any]:
            return calls_ahead(self._runner(state, params, rng), minibatch)

        try:
            recordings = record_each(state, instances)
        except AsksForValueError:
            parts = plan_all(run, instances, batch_sizes)
            return warm_up((call for part in parts for call in part), block)
        plans = plan_all(plan, recordings, batch_sizes)
        return warm_up((self._call_of(params, each, rng) for each in plans), block)

    def _counted_run_packed(
        self, packed: dict[int, Packed], plan: Plan, rng: Any
    ) -> Any:
        found = run_packed(packed, plan, rng)
        self._compiles += 1
        return found

    def _counted_run(self, params: Any, plan: Plan, rng: Any) -> Any:
        found = run_plan(params, plan, rng)
        self._compiles += 1  # runs while tracing only, once per compilation
        return found

    def _counted_forward(self, params: Any, plan: Plan, rng: Any) -> Any:
        found = run_forward(params, plan, rng)
        self._compiles += 1
        return found

    @property
    def compiles(self) -> int:
        """How often programs that run plans were traced; see `compile_report`."""
        return self._compiles

    def sharded(self, mesh: Mesh | None = None, *, axis: str | None = None) -> Sharded:
        """Returns this function for several devices at once.

        Each minibatch is split over the devices. Results have the order of the
        instances, and gradients are those of the whole minibatch.

        Args:
            mesh: The devices; all of ``jax.devices()`` if None.
            axis: The mesh axis to split over, if the mesh has several.

        Returns:
            The sharded function, with the same `plan`, `apply` and call as this one.

        Raises:
            PlanError: The mesh has several axes and `axis` is None; or it has no device
                of this process; or it spans several processes and the policy's search
                is limited by time.
        """
        return Sharded(self, mesh, axis)
