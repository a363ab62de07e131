"""Decisions about a model from a sample, by which it is planned, and kept plans."""

import copy
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

from jax.sharding import Mesh

from edbatch.cell import HoistedTypes
from edbatch.cell.hoisted_types import HOISTED, WHOLE, Part
from edbatch.compiler import ALWAYS, AUTO, NEVER
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.node_type import TypeKey
from edbatch.graph.type_table import TypeTable
from edbatch.memory_planner.sizes import Widths
from edbatch.options import Options
from edbatch.plan.cache import PlanCache
from edbatch.plan.plan import Unpadded
from edbatch.stream.buckets import BucketStore
from edbatch.stream.layout_choice import LayoutChoice
from edbatch.stream.slice_variants import SliceVariants, Variant
from edbatch.stream.type_widths import TypeWidths
from edbatch.target import Target

_Each = TypeVar("_Each")

# A slice variant is made if it reads this share of a type's bytes in place.
_LEAST_SHARE = {AUTO: 0.25, ALWAYS: 0.0, NEVER: 2.0}


@dataclass(frozen=True)
class Decisions:
    """Decisions about the types of a model, made from instances.

    Attributes:
        sample: Instances in the sample of `fit`; None if there was none, and the first
            minibatch that has a type decides about it.
        hoisted: The types whose products of external inputs run before the rest.
        sliced: By type, the sets of operand slots that compiled loops read as slices.
        aligned: The types that ``eb.Planner(layout="auto")`` has aligned.
        widths: By type, the widths of chunks that compiled loops have.
    """

    sample: int | None
    hoisted: tuple[TypeKey, ...]
    sliced: dict[TypeKey, tuple[Variant, ...]]
    aligned: tuple[TypeKey, ...]
    widths: dict[TypeKey, Widths]


@dataclass(eq=False)
class PlanState:
    """Decisions for planning; one object, so that a plan is made by one sample.

    Threads that plan share it. A pickle holds what was decided, and no plan.

    Attributes:
        types: The types that were recorded.
        variants: Which operands are read as slices.
        layouts: Which types have an aligned layout.
        buckets: The buckets of plans for one device.
        plans: Cache of plans by structure.
        widths: The widths of the types' chunks, by kind of device.
        hoisted: The types as they run, if products of external inputs are hoisted.
        sample: Instances in the sample; None if there was none.
        mesh_buckets: The buckets of plans for meshes, by mesh and axis.
        decided_together: The recorded types about which whole minibatches decided
            before they were divided among devices.
        lock: Guards the widths and the buckets of meshes.
    """

    types: TypeTable
    variants: SliceVariants
    layouts: LayoutChoice
    buckets: BucketStore
    plans: PlanCache
    hoisted: HoistedTypes | None = None
    sample: int | None = None
    widths: dict[Target, TypeWidths] = field(default_factory=dict)
    mesh_buckets: dict[tuple[Mesh, str], BucketStore] = field(default_factory=dict)
    decided_together: set[tuple[Target, int]] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def start(cls, types: TypeTable, options: Options) -> Self:
        """Returns a state in which nothing is decided.

        Args:
            types: The types that were recorded.
            options: What planning goes by.

        Returns:
            The state.
        """
        compiler = options.compiler
        hoisted = None
        hoists, shares = compiler.hoisting != NEVER, compiler.sharing != NEVER
        if hoists or shares:
            hoisted = HoistedTypes(
                types,
                always=compiler.hoisting == ALWAYS,
                hoists=hoists,
                shares=shares,
            )
        return cls(
            types,
            SliceVariants(_LEAST_SHARE[compiler.slices]),
            LayoutChoice(_LEAST_SHARE[compiler.slices]),
            BucketStore(options.sizes),
            PlanCache(options.cache_bytes),
            hoisted,
        )

    @property
    def running_types(self) -> TypeTable:
        """The types as they run; recorded ones have their ids until one is divided."""
        return self.types if self.hoisted is None else self.hoisted.table

    def with_running_types(self, part: Unpadded) -> Unpadded:
        """Makes a plan one of the types as they run, if these differ by now.

        Another thread may have divided or shared the first ones since the plan was
        encoded. The ids of its own types are the same among them, but a bucket that
        was found meanwhile may have loops of the others.

        Args:
            part: A plan for which a bucket was found.

        Returns:
            The plan.
        """
        hoisted = self.hoisted
        if hoisted is None or part.types is hoisted.table or hoisted.are_recorded:
            return part
        return replace(part, types=hoisted.table)

    def widths_on(self, target: Target) -> TypeWidths:
        """Returns the widths for a kind of device.

        Args:
            target: The device.

        Returns:
            Its widths.
        """
        with self.lock:
            if target not in self.widths:
                sizes = self.buckets.sizes.on(target)
                more = target.member_widths if sizes.widths == target.widths else ()
                self.widths[target] = TypeWidths(sizes, more)
                if self.sample is not None:
                    self.widths[target].freeze()
            return self.widths[target]

    def scratch(self) -> Self:
        """Returns a copy that decides for itself: for plans of a diagnosis.

        It begins with what is decided here, so plans are what they would be here.
        """
        with self.lock:
            mesh_buckets = {k: copy.deepcopy(v) for k, v in self.mesh_buckets.items()}
            widths = copy.deepcopy(self.widths)
        own = copy.deepcopy((self.variants, self.layouts, self.buckets))
        # Last, as all that is decided above is about types that it has.
        hoisted = None if self.hoisted is None else self.hoisted.scratch()
        return type(self)(
            self.types,
            *own,
            PlanCache(0),
            hoisted,
            self.sample,
            widths,
            mesh_buckets,
            set(self.decided_together),
        )

    def index_values(self, graph: DataflowGraph) -> bytes:
        """Returns the values of external inputs that a plan of a graph depends on."""
        return b"" if self.hoisted is None else self.hoisted.index_values(graph)

    def freeze(self, sample: int) -> None:
        """Lets nothing be decided any more.

        Types that the sample lacks run whole, and all their operands are gathered.

        Args:
            sample: How many instances decided.
        """
        self.sample = sample
        self.variants.freeze()
        self.layouts.freeze()
        for each in self.widths.values():
            each.freeze()
        if self.hoisted is not None:
            self.hoisted.freeze()

    def decisions(self) -> Decisions:
        """Describes what is decided so far.

        Returns:
            The decisions, with the types as they were recorded.
        """
        known, parts = self.types.types, None
        divided: tuple[int, ...] = ()
        if self.hoisted is not None:
            parts, divided = self.hoisted.parts, self.hoisted.divided()

        def by_key(found: Mapping[int, _Each]) -> dict[TypeKey, _Each]:
            keyed: dict[TypeKey, _Each] = {}
            for running, each in found.items():
                part = Part(running, WHOLE) if parts is None else parts[running]
                if part.part != HOISTED:  # which has no operands, and few batches
                    keyed[known[part.type_id].key] = each
            return keyed

        widths: dict[int, Widths] = {}
        with self.lock:
            chosen = list(self.widths.values())
        for each in chosen:  # of one kind of device, as a rule
            widths |= each.known()
        return Decisions(
            self.sample,
            tuple(known[k].key for k in divided),
            by_key(self.variants.known()),
            tuple(k for k, own in by_key(self.layouts.known()).items() if own),
            by_key(widths),
        )

    def buckets_of(self, mesh: Mesh, axis: str) -> BucketStore:
        """Returns the buckets of plans for a mesh, apart from those for one device.

        Args:
            mesh: The devices.
            axis: The axis of the mesh over which minibatches are split.

        Returns:
            Its buckets.
        """
        with self.lock:
            own = BucketStore(self.buckets.sizes)
            return self.mesh_buckets.setdefault((mesh, axis), own)

    def __getstate__(self) -> dict[str, Any]:
        """Returns what was decided; see `__setstate__` for the rest."""
        kept = (
            "types",
            "variants",
            "layouts",
            "buckets",
            "hoisted",
            "sample",
            "widths",
        )
        parts = {name: getattr(self, name) for name in kept}
        parts["widths"] = dict(self.widths)  # to which another thread may add
        return copy.deepcopy(parts) | {"cache_bytes": self.plans.max_bytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begins with what was decided, and with empty caches."""
        self.plans = PlanCache(state.pop("cache_bytes"))
        self.mesh_buckets, self.decided_together = {}, set()
        self.lock = threading.Lock()
        vars(self).update(state)
