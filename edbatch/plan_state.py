"""The decisions that planning makes from a sample, and the cache of plans."""

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

# A slice variant is created if it reads this share of a type's bytes in place.
_LEAST_SHARE = {AUTO: 0.25, ALWAYS: 0.0, NEVER: 2.0}


@dataclass(frozen=True)
class Decisions:
    """Decisions about the types of a model, made from instances.

    Attributes:
        sample: Number of instances in the sample of `fit`. None without a sample: the
            first minibatch with a type decides for that type.
        hoisted: The types whose products of external inputs are hoisted.
        sliced: By type, the sets of operand slots that compiled loops read as slices.
        aligned: The types that ``eb.Planner(layout="auto")`` lays out aligned.
        widths: By type, the chunk widths of its compiled loops.
    """

    sample: int | None
    hoisted: tuple[TypeKey, ...]
    sliced: dict[TypeKey, tuple[Variant, ...]]
    aligned: tuple[TypeKey, ...]
    widths: dict[TypeKey, Widths]


@dataclass(eq=False)
class PlanState:
    """The decisions that planning uses, and the cache of plans.

    `edbatch.planning.fit` replaces the whole object, so that no plan mixes decisions
    of two samples. Planning threads share it. A pickle contains the decisions but no
    plans.

    The *running types* are the types as they run: recorded types, their hoisted parts,
    and families (`edbatch.cell.hoisted_types`).

    Attributes:
        types: The recorded types.
        variants: Which operands are read as slices.
        layouts: Which types have an aligned layout.
        buckets: The buckets of plans for one device.
        plans: Cache of plans by structure.
        widths: The chunk widths of the types, by kind of device.
        hoisted: The running types, if hoisting or sharing is enabled.
        sample: Number of instances in the sample; None if there was none.
        mesh_buckets: The buckets of plans for meshes, by mesh and axis.
        decided_together: Pairs of a kind of device and a recorded type about which a
            whole minibatch has decided, before it was divided among devices.
        lock: Guards `widths` and `mesh_buckets`.
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
        """Returns a state without decisions.

        Args:
            types: The recorded types.
            options: Options of planning.

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
        """The running types; ids are those of recorded types until one is divided."""
        return self.types if self.hoisted is None else self.hoisted.table

    def with_running_types(self, part: Unpadded) -> Unpadded:
        """Replaces a plan's types with the running types, if these have changed.

        Another thread may have divided types, or made families of them, since the plan
        was encoded. The ids of the plan's own types are still valid, but a bucket found
        in the meantime may have loops of the new types.

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
            target: The kind of device.

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
        """Returns an independent copy, for plans that are only inspected.

        The copy starts with the same decisions, so its plans are the same, but new
        decisions do not affect the original.
        """
        with self.lock:
            mesh_buckets = {k: copy.deepcopy(v) for k, v in self.mesh_buckets.items()}
            widths = copy.deepcopy(self.widths)
        own = copy.deepcopy((self.variants, self.layouts, self.buckets))
        # Copied last, so that it has all types that the decisions above refer to.
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
        """Makes all decisions final.

        Types that the sample lacks run undivided, and all their operands are gathered.

        Args:
            sample: Number of instances in the sample.
        """
        self.sample = sample
        self.variants.freeze()
        self.layouts.freeze()
        for each in self.widths.values():
            each.freeze()
        if self.hoisted is not None:
            self.hoisted.freeze()

    def decisions(self) -> Decisions:
        """Returns the decisions made so far.

        Returns:
            The decisions, in terms of the recorded types.
        """
        known, parts = self.types.types, None
        divided: tuple[int, ...] = ()
        if self.hoisted is not None:
            parts, divided = self.hoisted.parts, self.hoisted.divided()

        def by_key(found: Mapping[int, _Each]) -> dict[TypeKey, _Each]:
            keyed: dict[TypeKey, _Each] = {}
            for running, each in found.items():
                part = Part(running, WHOLE) if parts is None else parts[running]
                if part.part != HOISTED:  # hoisted parts: no operands, few batches
                    keyed[known[part.type_id].key] = each
            return keyed

        widths: dict[int, Widths] = {}
        with self.lock:
            chosen = list(self.widths.values())
        for each in chosen:  # usually of one kind of device
            widths |= each.known()
        return Decisions(
            self.sample,
            tuple(known[k].key for k in divided),
            by_key(self.variants.known()),
            tuple(k for k, own in by_key(self.layouts.known()).items() if own),
            by_key(widths),
        )

    def buckets_of(self, mesh: Mesh, axis: str) -> BucketStore:
        """Returns the buckets of plans for a mesh, separate from those for one device.

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
        """Returns the decisions; `__setstate__` creates the rest."""
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
        parts["widths"] = dict(self.widths)  # another thread may add to the original
        return copy.deepcopy(parts) | {"cache_bytes": self.plans.max_bytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores the decisions, with empty caches."""
        self.plans = PlanCache(state.pop("cache_bytes"))
        self.mesh_buckets, self.decided_together = {}, set()
        self.lock = threading.Lock()
        vars(self).update(state)
