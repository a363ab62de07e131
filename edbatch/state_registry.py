"""Finds the `ModelState` that parameters, recordings and plans belong to."""

import pickle
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from edbatch.errors import PickleError, PlanError
from edbatch.graph.constants import number_marks
from edbatch.graph.merge import tables_of
from edbatch.graph.parameter_structure import abstract, difference, key_order
from edbatch.graph.reference import full_name
from edbatch.graph.type_checks import require_setting
from edbatch.graph.type_table import TypeTable, x64_enabled
from edbatch.model_state import ModelState, new_state
from edbatch.options import Options
from edbatch.plan.adopted import recorded_types
from edbatch.plan.cache import CacheInfo
from edbatch.plan.plan import Plan

_RECORDING = "a recording"


class StateRegistry:
    """The states of one model, one per structure, shapes and dtypes of parameters.

    Recordings and plans have types, which determine their state. The bound state is
    only the default for instances without parameters or recordings: the state of the
    latest `bind`, otherwise that of the first run. Recording or planning for other
    parameters does not change the default.

    Args:
        model: The model.
        options: Options of planning.

    Attributes:
        model: The model.
        options: Options of planning; they are part of the key of a cached plan.
    """

    def __init__(self, model: Callable[..., Any], options: Options) -> None:
        self.model = model
        self.options = options
        self._states: dict[Hashable, ModelState] = {}
        self._bound: ModelState | None = None
        self._lock = threading.Lock()

    def __copy__(self) -> "StateRegistry":
        """Returns an independent registry of the same states."""
        found = StateRegistry(self.model, self.options)
        with self._lock:
            found._states, found._bound = dict(self._states), self._bound
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Returns the states without their keys, which depend on the process.

        Raises:
            PickleError: The model or the policy cannot be pickled.
        """
        for what, each in (("model", self.model), ("policy", self.options.policy)):
            _check_pickles(what, each)
        with self._lock:
            return {
                "model": self.model,
                "options": self.options,
                "states": list(self._states.values()),
                "bound": self._bound,
            }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Computes the keys of the states again."""
        self.model, self.options = state["model"], state["options"]
        self._states, self._bound = {}, state["bound"]
        self._lock = threading.Lock()
        for each in state["states"]:
            each.types.model = self.model
            each.order = key_order(each.types.params_spec)  # the stand-in's key order
            key = _signature(each.types.params_spec, each.types.x64)
            self._states[(key, each.order) if key in self._states else key] = each

    def bind(self, params: Any) -> None:
        """Makes the state of the given parameters the default."""
        state = self.of_params(params)
        with self._lock:
            self._bound = state

    def of_params(self, params: Any) -> ModelState:
        """Returns the state of parameters; creates it if needed.

        Args:
            params: Parameters, or their shapes.

        Returns:
            Their state. It does not become the default; see `bind`.

        Raises:
            PlanError: `params` are not parameters.
        """
        spec = abstract(params)
        key: Hashable = _signature(spec, x64_enabled())
        order = key_order(spec)
        with self._lock:
            known = self._states.get(key)
            # JAX sorts the keys of dicts, for example in the first optimizer step. Only
            # models that iterate over the keys then compute something else.
            if known is not None and not known.takes_order(spec, order):
                key = (key, order)
            if key not in self._states:
                self._states[key] = new_state(self.model, spec, order, self.options)
            return self._states[key]

    def bind_first(self, state: ModelState) -> ModelState:
        """Makes the state of a run the default if there is none; returns the state."""
        with self._lock:
            if self._bound is None:
                self._bound = state
            return state

    def bind_planned(self, plan: Plan) -> None:
        """Makes the state of a plan that runs the default if there is none."""
        if self._bound is None:
            types = recorded_types(plan.shape.program.types)
            self.bind_first(self.of_types(types, "the plan"))

    def default(self) -> ModelState:
        """Returns the bound state.

        Raises:
            PlanError: Nothing was bound yet.
        """
        bound = self._bound
        if bound is None:
            raise PlanError(
                "recording needs the shapes of the parameters, which are not known"
                " yet; pass params= to eb.batch, call .bind(params), or call the"
                " batched function once"
            )
        if bound.types.x64 != x64_enabled():
            return self.of_params(bound.types.params_spec)
        return bound

    def of_types(self, types: TypeTable, what: str = _RECORDING) -> ModelState:
        """Returns the state that recorded types belong to, or that can adopt them.

        Args:
            types: The types of a recording or a plan.
            what: Names the recording or plan, for messages.

        Returns:
            The state.

        Raises:
            PlanError: The types belong to another model or another compute dtype, or
                were recorded under another setting of ``jax_enable_x64``.
        """
        require_setting(types, what)
        with self._lock:
            states = [*self._states.values()]
        for each in states:
            if each.types is types:
                return each
        if types.is_of_pickle:
            same = types.model_name == full_name(self.model)
        else:
            same = types.model is self.model
        if not same:
            raise PlanError(
                f"{what} was made by another model, {types.model_name or 'of no name'}"
                f" and not {full_name(self.model)}; make it with this model's own"
                " .record or .plan"
            )
        if types.compute_dtype != self.options.compute_dtype:
            raise PlanError(
                f"{what} computes in one dtype only, but it was made for"
                f" compute_dtype={_name(types.compute_dtype)} and this function has"
                f" {_name(self.options.compute_dtype)}; make it with this function's"
                " own .record or .plan"
            )
        return self.of_params(types.params_spec)

    def of_minibatch(self, instances: Sequence[Any], params: Any = None) -> ModelState:
        """Returns the state of a minibatch.

        Args:
            instances: Instances, recordings, or both.
            params: Parameters, or their shapes.

        Returns:
            The state of the parameters if given, otherwise that of the recordings,
            otherwise the default.

        Raises:
            PlanError: Recordings were made for other parameters, or by another model;
                or there is no default.
        """
        if params is not None:
            return self.checked(self.of_params(params), instances)
        first = next(iter(tables_of(instances)), None)
        state = self.default() if first is None else self.of_types(first)
        return self.checked(state, instances)

    def checked(self, state: ModelState, instances: Sequence[Any]) -> ModelState:
        """Checks that the recordings of a minibatch belong to a state.

        Args:
            state: The state.
            instances: Instances, recordings, or both.

        Returns:
            The same state.

        Raises:
            PlanError: A recording was made for other parameters, or by another model.
        """
        for each in tables_of(instances):
            if each is state.types:
                continue
            other = self.of_types(each)
            if other is not state:
                own, found = state.types.params_spec, other.types.params_spec
                raise PlanError(
                    "a minibatch is recorded for parameters of one structure, but a"
                    f" recording of it was made for others: {difference(found, own)};"
                    " plan these recordings in a minibatch of their own, or record"
                    " their instances again"
                )
        return state

    def adopt_plan(self, plan: Plan) -> tuple[ModelState, Plan]:
        """Finds the state of a plan, and converts the plan to the state's types.

        Args:
            plan: A plan, possibly from another process or another function of this
                model.

        Returns:
            Its state, and the converted plan.

        Raises:
            EdbatchError: The plan belongs to another model, or its cells have changed.
        """
        types = recorded_types(plan.shape.program.types)
        state = self.of_types(types, "the plan")
        return state, state.adopt_plan(plan)

    @property
    def cache_info(self) -> CacheInfo:
        """Hits, misses and memory of all cached plans; the limit is per state."""
        with self._lock:
            infos = [each.planning.plans.info for each in self._states.values()]
        return CacheInfo(
            sum(each.hits for each in infos),
            sum(each.misses for each in infos),
            sum(each.entries for each in infos),
            sum(each.num_bytes for each in infos),
            self.options.cache_bytes,
        )


def _name(dtype: Any) -> str:
    return "None" if dtype is None else dtype.name


def _signature(spec: Any, x64: bool) -> Hashable:
    leaves, treedef = jax.tree.flatten(spec)
    arrays = tuple((each.shape, each.dtype) for each in leaves)
    return (treedef, number_marks(treedef), arrays), x64


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
