"""The front door: from a model of one instance to a batched function."""

import copy
import pickle
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import Mesh

from edbatch.arguments import (
    as_path,
    check_flag,
    check_number,
    check_type,
    is_number,
    list_of,
)
from edbatch.cell import run_ahead
from edbatch.cell.program import Packed
from edbatch.errors import (
    EdbatchError,
    PickleError,
    PlanError,
    PolicyError,
    shown,
)
from edbatch.executor.packed_parameters import PackedParameters, is_traced
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.merge import merge, merge_lengths
from edbatch.graph.parameters import abstract, difference, key_order
from edbatch.graph.recorder import record
from edbatch.graph.reference import full_name
from edbatch.graph.type_table import TypeTable, x64_enabled
from edbatch.memory_planner.layout import Layout, plan_layout
from edbatch.memory_planner.planner import Planner
from edbatch.memory_planner.sizes import Sizes
from edbatch.model_state import ModelState, new_state
from edbatch.plan.adopted import recorded_types
from edbatch.plan.cache import CacheInfo, PlanCache, structure_key
from edbatch.plan.keys import plan_key, program_with
from edbatch.plan.plan import Plan, encode_plan
from edbatch.plan.run import run_packed, run_plan
from edbatch.policies.cost.file import get_costs
from edbatch.policies.cost.model import CostModel
from edbatch.policies.guard import guarded
from edbatch.policies.registry import get_policy
from edbatch.policies.search.beam_search import Searched
from edbatch.schedule.interrupt import keyboard_interrupts
from edbatch.schedule.policy import Policy, is_ours, reject_invalid
from edbatch.schedule.schedule import Schedule
from edbatch.sharding.plan import ShardedPlan

if TYPE_CHECKING:
    from edbatch.sharded import Sharded

Model = Callable[[Any, Any], Any]

_GRAPH = "a recording"
_OPTIONS = ("model", "policy", "sizes", "planner", "costs")


class Batched:
    """A model that runs on minibatches; made by `batch`.

    Calling it gives what ``jax.vmap`` of the model would give: the model's own pytree
    with a leading axis over instances. The steps behind the call, `record`, `plan` and
    `apply`, can be used one by one: the first two run on the host only, in any thread,
    the last is a pure JAX function.

    One function serves parameters of several structures, shapes and dtypes. Recordings
    and plans know which they were made for. Instances that were not recorded yet are
    recorded for the parameters of a call, else for those of ``params=``, else for those
    of the recordings beside them, else for the bound ones: of the latest `bind` or, if
    there was none, the first that the function met. Later calls do not change that.

    It can be pickled, with all that it found out about the model, if the model can be
    imported by its name: other processes can record and plan with it, and recordings
    and plans can be sent and kept. Programs are compiled anew in each process.

    Attributes:
        model: The model for one instance.
        policy: The policy that schedules minibatches.
        sizes: Widths and buckets.
        planner: How memory is planned.
        costs: Measured costs of batches, if they were given.
    """

    def __init__(
        self,
        model: Model,
        policy: Policy,
        sizes: Sizes,
        cache_bytes: int,
        planner: Planner,
        costs: CostModel | None = None,
    ) -> None:
        self.model = model
        self.policy = policy
        self.sizes = sizes
        self.planner = planner
        self.costs = costs
        self._states: dict[Hashable, ModelState] = {}
        self._bound: ModelState | None = None
        self._begin(cache_bytes)

    def _begin(self, cache_bytes: int) -> None:
        """Makes what is neither copied nor pickled."""
        self._cache = PlanCache(cache_bytes)
        self._compiles = 0
        self._lock = threading.Lock()
        self._run = jax.jit(self._counted_run)
        self._packed = PackedParameters()
        self._run_packed = jax.jit(self._counted_run_packed)

    def __copy__(self) -> "Batched":
        """Returns a function of its own, which knows what this one found out."""
        found = object.__new__(type(self))
        with self._lock:
            found.__dict__.update(self._lasting())
        found._begin(self._cache.max_bytes)
        return found

    def __deepcopy__(self, memo: Any) -> "Batched":
        """As `copy.copy`, with a policy of its own."""
        found = copy.copy(self)
        found.policy = copy.deepcopy(self.policy, memo)
        return found

    def _lasting(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in (*_OPTIONS, "_bound")}
        return kept | {"_states": dict(self._states)}

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the model by its name, and what was found out about it."""
        for what, each in (("model", self.model), ("policy", self.policy)):
            _check_pickles(what, each)
        with self._lock:
            kept = {name: getattr(self, name) for name in _OPTIONS}
            states = list(self._states.values())
        return kept | {
            "cache_bytes": self._cache.max_bytes,
            "states": states,
            "bound": self._bound,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes the function again; it has compiled nothing yet."""
        self.__dict__.update({name: state[name] for name in _OPTIONS})
        self._states, self._bound = {}, state["bound"]
        self._begin(state["cache_bytes"])
        for each in state["states"]:
            each.types.model = self.model
            key = (_state_key(each.types.params_spec), each.types.x64)
            self._states[(key, each.order) if key in self._states else key] = each

    def __call__(
        self, params: Any, instances: Sequence[Any], *, rng: Any = None
    ) -> Any:
        """Runs the model on a minibatch.

        Args:
            params: The model's parameters, any pytree.
            instances: Instances, or recordings of them.
            rng: As for `apply`.

        Returns:
            The model's pytree with a leading axis over instances. Lists whose length
            differs between instances are `Ragged`.

        Raises:
            EdbatchError: As `plan` and `apply`.
        """
        instances = list_of(PlanError, "a minibatch", instances)
        state = self._state_of(params)
        self._check_same(state, instances)
        return self.apply(params, self._plan(state, instances), rng=rng)

    def bind(self, params: Any) -> "Batched":
        """Tells the shapes of the parameters that instances are recorded for.

        The first parameters that a function meets are bound by themselves. Recordings
        and plans that were made for other parameters stay as they are.

        Args:
            params: Parameters, or their ``jax.ShapeDtypeStruct`` pytree.

        Returns:
            This object.
        """
        state = self._state_of(params)
        with self._lock:
            self._bound = state
        return self

    def _state_of(self, params: Any) -> ModelState:
        """Returns the state for parameters of one structure; a new one if need be."""
        spec = abstract(params)
        key: Hashable = (_state_key(spec), x64_enabled())
        order = key_order(spec)
        with self._lock:
            known = self._states.get(key)
            # JAX sorts the keys of dicts, as in the first step of an optimizer: only a
            # model that lists them computes something else then.
            if known is not None and not known.takes_order(spec, order):
                key = (key, order)
            if key not in self._states:
                self._states[key] = new_state(
                    spec, order, self.sizes, self.planner, self.model
                )
            state = self._states[key]
            if self._bound is None:
                self._bound = state
            return state

    @property
    def types(self) -> TypeTable:
        """The node types met so far with the bound parameter shapes."""
        return self._bound_state().types

    def _bound_state(self) -> ModelState:
        if self._bound is None:
            raise PlanError(
                "recording needs the shapes of the parameters, which are not known"
                " yet; pass params= to eb.batch, call .bind(params), or call the"
                " batched function once"
            )
        if self._bound.types.x64 != x64_enabled():
            return self._state_of(self._bound.types.params_spec)
        return self._bound

    def _choose(self, instances: Sequence[Any], params: Any = None) -> ModelState:
        """Finds the state of a minibatch: that of its recordings, if it has any."""
        if params is not None:
            state = self._state_of(params)
        else:
            tables = (x.types for x in instances if isinstance(x, DataflowGraph))
            first = next(tables, None)
            state = self._bound_state() if first is None else self._owner(first, _GRAPH)
        self._check_same(state, instances)
        return state

    def _owner(self, types: TypeTable, what: str) -> ModelState:
        """Returns the state that recorded types belong to, or are taken over by."""
        types.require_setting(what)
        with self._lock:
            states = [*self._states.values()]
        for each in states:
            if each.types is types:
                return each
        if types.model is None:
            same = types.model_name == full_name(self.model)
        else:
            same = types.model is self.model
        if not same:
            raise PlanError(
                f"{what} was made by another model, {types.model_name or 'of no name'}"
                f" and not {full_name(self.model)}; make it with this model's own"
                " .record or .plan"
            )
        return self._state_of(types.params_spec)

    def _check_same(self, state: ModelState, instances: Sequence[Any]) -> None:
        """Checks that recordings were made for the parameters of a state."""
        tables = {
            id(each.types): each.types
            for each in instances
            if isinstance(each, DataflowGraph) and each.types is not state.types
        }
        for each in tables.values():
            other = self._owner(each, _GRAPH)
            if other is not state:
                own, found = state.types.params_spec, other.types.params_spec
                raise PlanError(
                    "a minibatch is recorded for parameters of one structure, but a"
                    f" recording of it was made for others: {difference(found, own)};"
                    " plan these recordings in a minibatch of their own"
                )

    @keyboard_interrupts()
    def record(self, instance: Any, *, params: Any = None) -> DataflowGraph:
        """Records the model on one instance, to be kept and planned later.

        Args:
            instance: An instance.
            params: The parameters to record for, or their shapes; the bound ones if
                None.

        Returns:
            Its dataflow graph.

        Raises:
            EdbatchError: The model does something outside cells, or a cell fails.
        """
        state = self._bound_state() if params is None else self._state_of(params)
        return self._record(state, [instance])

    def _record(self, state: ModelState, instances: Sequence[Any]) -> DataflowGraph:
        return _check_nodes(record(self.model, state.types, instances, state.memory))

    @keyboard_interrupts()
    def record_all(
        self, instances: Iterable[Any], *, params: Any = None
    ) -> list[DataflowGraph]:
        """Records the instances of a data set, to be kept and planned later.

        As `record` for each; and which of the model's lists differ in length is known
        from then on, whatever minibatches are planned first.

        Args:
            instances: Instances, or recordings of one instance each.
            params: The parameters to record for, or their shapes; by default those of
                the recordings among the instances, or else the bound ones.

        Returns:
            Their dataflow graphs.

        Raises:
            EdbatchError: As for `record`; a note names the instance. Or a recording
                belongs to another model or other parameters, or holds several
                instances, or the model's outputs differ in structure.
        """
        instances = list_of(PlanError, "a data set", instances)
        return self._record_all(self._choose(instances, params), instances)

    def _record_all(
        self, state: ModelState, instances: Sequence[Any]
    ) -> list[DataflowGraph]:
        recordings = []
        for k, each in enumerate(instances):
            try:
                recordings.append(self._recorded(state, each))
            except Exception as error:
                error.add_note(f"instances are recorded one by one; this is number {k}")
                raise
        if recordings:
            state.see_lists(*merge_lengths(recordings))
        for each in recordings:  # later ones may say what lists of earlier ones hold
            state.with_known_elements(each)
        return [state.with_known_elements(each) for each in recordings]

    def _recorded(self, state: ModelState, instance: Any) -> DataflowGraph:
        if not isinstance(instance, DataflowGraph):
            return self._record(state, [instance])
        if instance.num_instances != 1:
            raise PlanError(
                "a kept recording holds one instance, so that it can go into any"
                f" minibatch, but this one holds {instance.num_instances}; record them"
                " one by one"
            )
        return state.adopt(instance)

    @keyboard_interrupts()
    def graph(self, instances: Iterable[Any], *, params: Any = None) -> DataflowGraph:
        """Records a minibatch, or merges recordings.

        Args:
            instances: Instances, recordings, or both.
            params: As for `record_all`.

        Returns:
            The dataflow graph of all of them.

        Raises:
            EdbatchError: As `record`; the minibatch is empty; or a recording belongs
                to another model or other parameters.
        """
        instances = list_of(PlanError, "a minibatch", instances)
        return self._graph(self._choose(instances, params), instances)

    def _graph(self, state: ModelState, instances: Sequence[Any]) -> DataflowGraph:
        if not instances:
            raise PlanError(
                "a minibatch needs at least one instance but is empty; leave empty"
                " minibatches out"
            )
        kept = [isinstance(each, DataflowGraph) for each in instances]
        if not any(kept):
            return self._record(state, instances)
        return merge(
            [
                state.adopt(each) if known else self._record(state, [each])
                for each, known in zip(instances, kept, strict=True)
            ]
        )

    @keyboard_interrupts()
    def plan(self, instances: Iterable[Any], *, params: Any = None) -> Plan:
        """Schedules and lays out a minibatch; on the host only.

        Args:
            instances: Instances, or recordings of them.
            params: As for `record_all`.

        Returns:
            The plan, a pytree of NumPy arrays for `apply`.

        Raises:
            EdbatchError: As `graph`; or the policy belongs to another model; or the
                minibatch has more rows than int32 can count.
        """
        instances = list_of(PlanError, "a minibatch", instances)
        return self._plan(self._choose(instances, params), instances)

    @keyboard_interrupts()
    def _plan(self, state: ModelState, instances: Sequence[Any]) -> Plan:
        graph = state.with_known_elements(self._graph(state, instances))
        ragged = state.see_lists(graph.outputs.skeleton, graph.outputs.lengths)
        key = (
            structure_key(graph, state, frozenset(ragged))
            if self._cache.max_bytes
            else None
        )
        encoded = None if key is None else self._cache.get(key)
        if encoded is not None:
            plan = encoded.with_externals(graph.externals)
            assert plan.report is not None, "plans are made with a report"
            return replace(plan, report=replace(plan.report, cached=True))
        start = time.perf_counter()
        running, schedule, layout = self._lay_out(state, graph)
        plan_ms = 1e3 * (time.perf_counter() - start)
        encoded = encode_plan(
            running,
            schedule,
            layout,
            state.store,
            ragged,
            state.forms,
            self.planner,
        )
        if key is not None:
            self._cache.put(key, encoded)
        plan = encoded.with_externals(graph.externals)
        assert plan.report is not None, "plans are made with a report"
        return replace(plan, report=replace(plan.report, plan_ms=plan_ms))

    def _lay_out(
        self, state: ModelState, graph: DataflowGraph
    ) -> tuple[DataflowGraph, Schedule, Layout]:
        """Schedules and lays out a graph; also returns it as it will run."""
        schedule = self.policy.schedule(graph.structure)
        if not is_ours(self.policy):
            reject_invalid(schedule, graph.structure, self.policy)
        if state.split is not None:
            graph, schedule = run_ahead(graph, schedule, state.split)
        layout = plan_layout(
            graph,
            schedule,
            self.sizes,
            method=self.planner.layout,
            reuse=self.planner.reuse,
            effort=self.planner.effort,
        )
        return graph, schedule, layout

    def apply(self, params: Any, plan: Plan, *, rng: Any = None) -> Any:
        """Runs a plan: a pure JAX function, for ``jit``, ``grad`` and the like.

        Called by itself, as for inference, it keeps what cells make of the parameters
        alone (such as the packed matrices of their gates) for the next call with the
        same arrays, until these are dropped.

        Gradients are the model's. What one instance holds (NaN, infinity, a point
        without a slope) changes no output and no gradient of another, nor of a
        parameter that only others read; outputs that nothing reads have no cotangent.
        Two things differ from the model of one instance: both branches of a
        ``lax.cond`` inside a cell run, as under `jax.vmap`; and rules of
        `jax.custom_vjp` around parameters alone are applied once per call, to the sum
        of the nodes' cotangents.

        Args:
            params: The model's parameters.
            plan: A plan of this model.
            rng: The key for cells that draw random numbers, typed or raw; may be
                traced. Each call of such a cell gets a key of its own, whatever the
                schedule; `cell_keys` gives the model itself the same ones. Ignored if
                no cell takes it.

        Returns:
            As calling the batched function.

        Raises:
            PlanError: The plan was made by another model, or for parameters of other
                shapes; or a cell needs a key and there is none.
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
        plan = self._own(plan)
        key = plan_key(plan, rng)
        packed = None
        if not is_traced((plan, key)):  # else a gradient may be asked for
            packed = self._packed.of(params, program_with(plan.shape.program, key))
        if packed is not None:
            return self._run_packed(packed, plan, key)
        try:
            return self._run(params, plan, key)
        except TypeError:
            abstract(params)  # says which parameters are none
            raise

    def _own(self, plan: Plan) -> Plan:
        """Returns a plan, from elsewhere perhaps, as one of this function's types."""
        types = recorded_types(plan.shape.program.types)
        return self._owner(types, "the plan").adopt_plan(plan)

    def sharded(
        self, mesh: Mesh | None = None, *, axis: str | None = None
    ) -> "Sharded":
        """Makes this function run on several devices at once.

        Each minibatch is split over the devices; results come back in the order of the
        instances, and gradients are those of the whole minibatch.

        Args:
            mesh: The devices; all of ``jax.devices()`` if None.
            axis: The axis of the mesh over which to split, if it has several.

        Returns:
            The sharded function, with `plan`, `apply` and a call like this one.

        Raises:
            PlanError: The mesh has several axes and none is named, or no device of
                this process; or it has those of several processes and the policy
                searches within milliseconds.
        """
        from edbatch.sharded import Sharded  # that module imports this one

        return Sharded(self, mesh, axis)

    def _counted_run_packed(
        self, packed: dict[int, Packed], plan: Plan, rng: Any
    ) -> Any:
        self._compiles += 1
        return run_packed(packed, plan, rng)

    def _counted_run(self, params: Any, plan: Plan, rng: Any) -> Any:
        self._compiles += 1  # runs while tracing only, once per compilation
        return run_plan(params, plan, rng)

    @property
    def compiles(self) -> int:
        """How many programs that run plans were compiled so far."""
        return self._compiles

    @property
    def cache_info(self) -> CacheInfo:
        """Hits, misses and memory of the cache of plans."""
        return self._cache.info


def _state_key(spec: Any) -> Hashable:
    leaves, treedef = jax.tree.flatten(spec)
    return treedef, tuple((each.shape, each.dtype) for each in leaves)


def _check_pickles(what: str, part: Any) -> None:
    try:
        pickle.dumps(part)
    except PickleError:
        raise
    except Exception as error:
        raise PickleError(
            f"a batched function is pickled with its model and its policy, but its"
            f" {what}, {part!r}, cannot be: {error}; usually it is defined inside a"
            " function or by a lambda; define it at the top level of a module"
        ) from error


def _check_options(
    sizes: object, planner: object, cache_bytes: object, guard: object
) -> None:
    def check(name: str, value: object, kind: type) -> None:
        if value is not None:
            what = f"an eb.{kind.__name__}(...), or left out"
            check_type(PlanError, f"{name} of eb.batch", value, kind, what)

    check("sizes", sizes, Sizes)
    check("planner", planner, Planner)
    check_number(PlanError, "cache_bytes of eb.batch", cache_bytes, 0, whole=True)
    check_flag(PlanError, "guard of eb.batch", guard)


def _check_nodes(graph: DataflowGraph) -> DataflowGraph:
    if not graph.instance_nodes.all():
        index = int((graph.instance_nodes == 0).argmax())
        which = f"instance {index} of the minibatch"
        raise PlanError(
            f"{which if graph.num_instances > 1 else 'the instance'} calls no cell, so"
            " there is nothing to run for it; leave such instances out, or call a cell"
            " for them"
        )
    return graph


def batch(
    model: Model,
    policy: str | Path | Policy = "greedy",
    *,
    params: Any = None,
    sizes: Sizes | None = None,
    cache_bytes: int = 256 * 2**20,
    compilation_cache: str | Path | None = None,
    search_ms: float = 0.0,
    guard: bool = True,
    costs: str | Path | CostModel | None = None,
    planner: Planner | None = None,
) -> Batched:
    """Makes a model of one instance run on minibatches.

    Args:
        model: ``model(params, instance)``: ordinary Python over cells, for one
            instance; returns a pytree of what cells return.
        policy: What decides which operations run together: ``"depth"``, ``"agenda"``,
            ``"agenda-remaining"``, ``"greedy"``, a policy file, ``"zoo:NAME"`` for a
            policy that comes with edbatch, or a policy object.
        params: Parameters, or their shapes, if instances are to be recorded before the
            first call.
        sizes: Widths of operations and buckets of compiled sizes.
        cache_bytes: Memory for plans of minibatches whose structure comes back.
        compilation_cache: A folder in which JAX keeps compiled programs between runs;
            it holds for the whole process.
        search_ms: Milliseconds to search for fewer batches than the policy finds, in
            minibatches whose structure is new and whose lower bound is not met.
        guard: Compare the schedule of a learned policy with those of the heuristics,
            and take the one of fewest batches; the plan's report says whose it was.
        costs: Measured costs of batches, a file of ``edbatch calibrate``: then search
            and guard go by predicted time and not by the number of batches; so does
            the split of a minibatch over devices (`Batched.sharded`).
        planner: How values are laid out in memory and how cells are packed.

    Returns:
        The batched function.

    Raises:
        PolicyError: The policy is unknown, its file cannot be read, or the time to
            search is negative.
        EdbatchError: An option is of another type.

    Example:
        >>> import edbatch as eb
        >>> import jax.numpy as jnp
        >>> @eb.cell
        ... def leaf(params, word):
        ...     return params["embedding"][word]
        >>> @eb.cell
        ... def join(params, left, right):
        ...     return jnp.tanh(params["gain"] * (left + right))
        >>> def encode(params, tree):
        ...     if isinstance(tree, int):
        ...         return leaf(params, tree)
        ...     return join(params, *(encode(params, child) for child in tree))
        >>> batched = eb.batch(encode)
        >>> params = {"embedding": jnp.eye(3), "gain": jnp.float32(0.5)}
        >>> batched(params, [((0, 1), 2), (1, 1)]).shape
        (2, 3)
    """
    if not callable(model):
        raise EdbatchError(
            "eb.batch takes a function model(params, instance) but received"
            f" {type(model).__name__}; pass the function itself"
        )
    if not (is_number(search_ms) and search_ms >= 0):
        raise PolicyError(
            "a search takes a number of milliseconds, 0 or more, but search_ms is"
            f" {shown(search_ms)}; leave it out, or give 0, for no search"
        )
    _check_options(sizes, planner, cache_bytes, guard)
    if compilation_cache is not None:
        as_path(EdbatchError, "compilation_cache of eb.batch", compilation_cache)
        jax.config.update("jax_compilation_cache_dir", str(compilation_cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    chosen = get_policy(policy)
    costs = get_costs(costs)
    if search_ms:
        chosen = Searched(chosen, search_ms, costs=costs)
    if guard:
        chosen = guarded(chosen, costs)
    batched = Batched(
        model, chosen, sizes or Sizes(), cache_bytes, planner or Planner(), costs
    )
    return batched if params is None else batched.bind(params)
