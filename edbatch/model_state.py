"""`ModelState`: everything known about a model, for one structure of parameters."""

import copy
import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from edbatch.cell import HoistedTable, HoistedTypes
from edbatch.cell.type_call import trace_at_call
from edbatch.compilation.tiered_function import TieredFunction
from edbatch.compiler import NEVER
from edbatch.executor.packed_parameters import PackedParameters
from edbatch.graph.adoption import Adoption, adopt
from edbatch.graph.call_memory import CallMemory
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.parameters import check_order, listed_in_other_order, put_in_order
from edbatch.graph.type_table import TypeTable
from edbatch.options import Options
from edbatch.plan.adopted import adopt_plan, recorded_types
from edbatch.plan.plan import Plan
from edbatch.plan_state import PlanState
from edbatch.stream.wave_sizes import WaveSizes
from edbatch.target import Target
from edbatch.without_lock import WithoutLock


@dataclass(eq=False)
class ModelState(WithoutLock):
    """The state of a model for parameters of one structure, shape and dtype.

    It is shared by planning threads, by copies of a batched function, and by the
    one-device and the sharded function. A pickle contains decisions (types, splits,
    buckets, slice variants) and omits everything derived from them.

    Attributes:
        types: The recorded types.
        planning: The decisions that planning uses. `edbatch.planning.fit` replaces it;
            existing plans keep running.
        foreign_split: The running types of foreign plans, if any: plans from another
            process or another function of this model.
        packed: Packed parameters of the latest call.
        calls: Calls seen while recording.
        waves: Sizes of programs that run waves, by kind of device.
        wave_types: The running types of waves.
        order: The order of keys in the parameters' dicts.
        adoptions: For each foreign type table, the positions of its types in `types`.
        lock: Guards all fields that have no lock of their own.
    """

    types: TypeTable
    planning: PlanState
    foreign_split: HoistedTypes | None = None
    packed: PackedParameters = field(default_factory=lambda: _packed_parameters())
    calls: CallMemory = field(default_factory=CallMemory)
    waves: dict[Target, WaveSizes] = field(default_factory=dict)
    wave_types: HoistedTypes | None = None
    order: Hashable = ()
    adoptions: "weakref.WeakKeyDictionary[TypeTable, Adoption]" = field(
        default_factory=weakref.WeakKeyDictionary
    )
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the decisions; `__setstate__` creates the rest."""
        with self.lock:
            left_out = ("lock", "packed", "calls", "adoptions", "waves", "wave_types")
            names = [each.name for each in fields(self) if each.name not in left_out]
            return copy.deepcopy({name: getattr(self, name) for name in names})

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores the decisions, with empty caches."""
        self.packed, self.calls, self.waves = _packed_parameters(), CallMemory(), {}
        self.wave_types = None
        self.adoptions = weakref.WeakKeyDictionary()
        super().__setstate__(state)

    def adoption(self, types: TypeTable) -> Adoption:
        """Adds the types of a foreign recording to this model's types; cached.

        Args:
            types: The recording's table of types, for the same parameters.

        Returns:
            The positions of its types in this model's table.

        Raises:
            PickleError: A cell had other outputs where it was recorded.
        """
        with self.lock:
            found = self.adoptions.get(types)
            if found is None or not found.covers(types):
                found = self.adoptions[types] = adopt(self.types, types)
            return found

    def wave_sizes(self, options: Options, target: Target) -> WaveSizes:
        """Returns the sizes of programs that run waves on a kind of device.

        Args:
            options: Options of planning.
            target: The kind of device.

        Returns:
            Its sizes, which grow over time.
        """
        with self.lock:
            if self.wave_types is None:
                shares = options.compiler.sharing != NEVER
                self.wave_types = HoistedTypes(
                    self.types, hoists=False, shares=shares, anticipates=True
                )
            if target not in self.waves:
                types = self.wave_types.table
                self.waves[target] = WaveSizes(types, options.sizes, target)
            return self.waves[target]

    def adopt(self, graph: DataflowGraph) -> DataflowGraph:
        """Converts a recording, possibly foreign, to this model's types."""
        if graph.types is self.types:
            return graph
        return self.adoption(graph.types).graph(graph)

    def adopt_plan(self, plan: Plan) -> Plan:
        """Converts a plan, possibly foreign, to this model's types."""
        types = plan.shape.program.types
        if self.runs(types):
            return plan
        adoption = self.adoption(recorded_types(types))
        with self.lock:
            if self.foreign_split is None:
                self.foreign_split = self.planning.hoisted or HoistedTypes(self.types)
        return adopt_plan(plan, adoption, self.foreign_split)

    def runs(self, types: TypeTable) -> bool:
        """Returns whether plans of this state have these types."""
        return types is self.types or (
            isinstance(types, HoistedTable) and types.split.recorded is self.types
        )

    def check_order(self, params: Any) -> None:
        """Checks the key order of all parameter dicts that the model iterates over.

        Args:
            params: The parameters of a run of one of this state's plans.

        Raises:
            PlanError: The order differs from the one seen while recording.
        """
        if self.types.params is not None:
            check_order(params, self.types.params)

    def takes_order(self, spec: Any, order: Hashable) -> bool:
        """Accepts parameters whose dicts have another key order, if it does not matter.

        Args:
            spec: The structure of the parameters.
            order: Its `key_order`.

        Returns:
            Whether they are accepted: the model has iterated over no dict whose order
            differs.
        """
        if order == self.order:
            return True
        if listed_in_other_order(self.types.params, spec) is not None:
            return False
        put_in_order(self.types.params, spec)
        self.order = order
        return True


def _packed_parameters() -> PackedParameters:
    """Returns an empty cache; its compilations are reported and obey the stance."""
    return PackedParameters(partial(TieredFunction, name="packed parameters"))


def new_state(
    model: Callable[..., Any], spec: Any, order: Hashable, options: Options
) -> ModelState:
    """Creates an empty state.

    Args:
        model: The model.
        spec: The structure of the parameters.
        order: Its `key_order`.
        options: Options of planning.

    Returns:
        The state.
    """
    types = TypeTable(spec, model, options.compute_dtype, tracer=trace_at_call)
    return ModelState(types, PlanState.start(types, options), order=order)
