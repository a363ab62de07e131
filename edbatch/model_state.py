"""The owner of all that is known about a model for parameters of one structure."""

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

    Threads that plan share it, and copies of a batched function do, and the function of
    several devices and that of one. A pickle holds what was decided (types, splits,
    buckets, slice variants) and leaves out what follows from it.

    Attributes:
        types: The types that were recorded.
        planning: What plans are made by. `edbatch.planning.fit` puts another one in its
            place; plans that were made before run as before.
        foreign_split: The types as they run in plans from elsewhere, if there are any.
        packed: Packed parameters of the latest call.
        calls: Calls met while recording.
        waves: Sizes of programs that run waves, by kind of device.
        wave_types: The types as they run in waves.
        order: The order of keys in the parameters' dicts.
        adoptions: Where the types of recordings and plans from elsewhere are here.
        lock: Guards what is not guarded by a lock of its own.
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
        """Returns what was decided; see `__setstate__` for the rest."""
        with self.lock:
            left_out = ("lock", "packed", "calls", "adoptions", "waves", "wave_types")
            names = [each.name for each in fields(self) if each.name not in left_out]
            return copy.deepcopy({name: getattr(self, name) for name in names})

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begins with what was decided, and with empty caches."""
        self.packed, self.calls, self.waves = _packed_parameters(), CallMemory(), {}
        self.wave_types = None
        self.adoptions = weakref.WeakKeyDictionary()
        super().__setstate__(state)

    def adoption(self, types: TypeTable) -> Adoption:
        """Takes over the types of a recording from elsewhere, once.

        Args:
            types: The recording's table of types, for the same parameters.

        Returns:
            Where its types are in this model's table.

        Raises:
            PickleError: A cell gave something else where it was recorded.
        """
        with self.lock:
            found = self.adoptions.get(types)
            if found is None or not found.covers(types):
                found = self.adoptions[types] = adopt(self.types, types)
            return found

    def wave_sizes(self, options: Options, target: Target) -> WaveSizes:
        """Returns the sizes of programs that run waves on a kind of device.

        Args:
            options: What planning goes by.
            target: The device.

        Returns:
            Its sizes, which grow.
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
        """Returns a recording, from elsewhere perhaps, as one of this model's types."""
        if graph.types is self.types:
            return graph
        return self.adoption(graph.types).graph(graph)

    def adopt_plan(self, plan: Plan) -> Plan:
        """Returns a plan, from elsewhere perhaps, as one of this model's types."""
        types = plan.shape.program.types
        if self.runs(types):
            return plan
        adoption = self.adoption(recorded_types(types))
        with self.lock:
            if self.foreign_split is None:
                self.foreign_split = self.planning.hoisted or HoistedTypes(self.types)
        return adopt_plan(plan, adoption, self.foreign_split)

    def runs(self, types: TypeTable) -> bool:
        """Tells whether these are the types of plans of this state."""
        return types is self.types or (
            isinstance(types, HoistedTable) and types.split.recorded is self.types
        )

    def check_order(self, params: Any) -> None:
        """Checks that dicts which the model has listed have the order it has seen.

        Args:
            params: Parameters of a run of a plan of this state.

        Raises:
            PlanError: They have not.
        """
        if self.types.params is not None:
            check_order(params, self.types.params)

    def takes_order(self, spec: Any, order: Hashable) -> bool:
        """Takes parameters over whose dicts have another order, if it can.

        Args:
            spec: The structure of the parameters.
            order: Its `key_order`.

        Returns:
            Whether the model has seen the keys of no dict whose order is another.
        """
        if order == self.order:
            return True
        if listed_in_other_order(self.types.params, spec) is not None:
            return False
        put_in_order(self.types.params, spec)
        self.order = order
        return True


def _packed_parameters() -> PackedParameters:
    """Returns an empty cache; what it compiles is reported and can be refused."""
    return PackedParameters(partial(TieredFunction, name="packed parameters"))


def new_state(
    model: Callable[..., Any], spec: Any, order: Hashable, options: Options
) -> ModelState:
    """Makes a state in which nothing was found out yet.

    Args:
        model: The model.
        spec: The structure of the parameters.
        order: Its `key_order`.
        options: What planning goes by.

    Returns:
        The state.
    """
    types = TypeTable(spec, model, options.compute_dtype, at_new=trace_at_call)
    return ModelState(types, PlanState.start(types, options), order=order)
