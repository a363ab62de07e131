"""Plans: a minibatch as data for the compiled program."""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax import export

from edbatch.compiler import ALWAYS, NEVER, Compiler
from edbatch.executor.program import CompileOptions, ProgramShape, Tier
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.output_tree import ResultRows, ResultShape
from edbatch.graph.type_table import TypeTable
from edbatch.memory_planner.layout import Layout
from edbatch.memory_planner.planner import Planner
from edbatch.memory_planner.sizes import Widths
from edbatch.plan.padding import instance_mask
from edbatch.plan.report import PlanReport, make_report
from edbatch.schedule.schedule import Schedule
from edbatch.stream.buckets import CHUNKS, Bucket, BucketStore, Needs
from edbatch.stream.encode import UnpaddedStream, encode, pad_stream
from edbatch.stream.format import record_format
from edbatch.stream.loop import Loop
from edbatch.stream.slice_variants import SliceVariants
from edbatch.stream.stream import Stream
from edbatch.target import CPU, Option, Target


@dataclass(frozen=True)
class PlanShape:
    """The static part of a plan, which a program is compiled for.

    Attributes:
        program: Loops and arenas.
        result: Structure of the result.
        trace: The number of a trace, 0 outside of traces. It does not affect the
            program: it only makes plans of different traces different to JAX, so that
            JAX does not reuse earlier traces of `jax.jit` functions.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> batched = eb.batch(double, params=2.0)
        >>> one, other = batched.plan([1.0, 2.0]), batched.plan([3.0, 5.0])
        >>> one.shape == other.shape  # so one program runs both
        True
    """

    program: ProgramShape
    result: ResultShape
    trace: int = 0

    def __repr__(self) -> str:
        """Summary in one line."""
        rows, loops = self.result.instances, len(self.program.loops)
        return f"<PlanShape: {loops} loops, {rows} rows of results>"


# Static part of a plan as a pytree: its shape, and the array kinds of its pools.
_Static = tuple[PlanShape, tuple[int, ...]]
_PARTS = (
    *("stream", "trips", "num_steps", "pools"),
    *("rows", "lengths", "num_instances"),
)


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, eq=False)
class Plan:
    """A scheduled and laid out minibatch, padded to a bucket. A pytree.

    All integers are int32. ``I``, ``S`` and the rows of pools are sizes of the bucket.

    Attributes:
        shape: The static part.
        stream: Records of all chunks.
        trips: Iterations of each of ``P`` loops in each step.
        num_steps: Number of steps in use.
        pools: External inputs by array kind, ``[rows, ...]``; row 0 is zero.
        rows: Row of each result, per leaf of the model's output.
        lengths: Lengths per list of the model's output.
        num_instances: Number of instances in the minibatch; the result has a row for
            each instance, and padding rows up to ``N``.
        report: The plan's costs; not part of the pytree, None after transformations.
    """

    shape: PlanShape
    stream: Any  # [I]
    trips: Any  # [S, P]
    num_steps: Any  # []
    pools: dict[int, Any]
    rows: tuple[Any, ...]
    lengths: tuple[Any, ...]
    num_instances: Any  # []
    report: PlanReport | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        """Summary in one line."""
        rows, loops = self.shape.result.instances, len(self.shape.program.loops)
        own = "" if self.report is None else f"{self.report.nodes} nodes in"
        own += "" if self.report is None else f" {self.report.batches} batches, "
        return f"<Plan: {own}{rows} rows of results, {loops} loops>"

    @property
    def instance_mask(self) -> Any:
        """True for instances, False for padding; ``[N] bool``.

        Padding rows are zero, and lists in them are empty. A loss that leaves them out
        equals the loss of the minibatch without padding, and so do its gradients:
        ``jnp.mean(losses, where=plan.instance_mask)``. A NumPy array if the plan
        consists of NumPy arrays, otherwise a JAX array.
        """
        return instance_mask(self.shape.result.instances, self.num_instances)

    def as_stream(self) -> Stream:
        """Returns the schedule in the form that the executor takes."""
        return Stream(self.stream, self.trips, self.num_steps)

    def on(self, target: Target) -> "Plan":
        """Returns the plan for another kind of device, with the same widths.

        Args:
            target: The device.

        Returns:
            The plan.
        """
        return self._with_options(target=target)

    def in_tier(self, tier: Tier) -> "Plan":
        """Returns the plan for another tier of programs, which computes the same.

        Args:
            tier: "fine" for the fastest program, "coarse" for one that compiles fast.

        Returns:
            The plan.

        Example:
            >>> import edbatch as eb
            >>> double = eb.cell(lambda params, x: 2 * x)
            >>> batched = eb.batch(lambda params, x: double(params, x), params={})
            >>> plan = batched.plan([1.0, 2.0]).in_tier("coarse")
            >>> batched.apply({}, plan).tolist()
            [2.0, 4.0]
        """
        return self._with_options(tier=tier)

    @property
    def trace(self) -> int:
        """The number of the trace that the plan is in; see `PlanShape`."""
        return self.shape.trace

    def in_trace(self, number: int) -> "Plan":
        """Returns the plan for another trace, so that JAX traces functions of it again.

        Args:
            number: The number of the trace, see `PlanShape`.

        Returns:
            The plan.
        """
        return replace(self, shape=replace(self.shape, trace=number))

    def without_keys(self) -> "Plan":
        """Returns the plan whose cells run with the default of `rng`."""
        return self._with_options(with_keys=False)

    def compiler_options(self) -> dict[str, Option]:
        """Returns the options of XLA for the program of its tier."""
        return self.shape.program.compiler_options()

    def _with_options(self, **options: Any) -> "Plan":
        """Returns the plan with other options; the same plan if nothing changes."""
        program = self.shape.program.with_options(**options)
        if program.options.target.control != "switch":
            program = replace(program, chunks=0)
        if program.options == self.shape.program.options:
            return self
        return replace(self, shape=replace(self.shape, program=program))

    def tree_flatten(self) -> tuple[tuple[Any, ...], _Static]:
        """Splits the plan into arrays and the static part."""
        kinds = tuple(sorted(self.pools))
        arrays = (
            self.stream,
            self.trips,
            self.num_steps,
            tuple(self.pools[kind] for kind in kinds),
            self.rows,
            self.lengths,
            self.num_instances,
        )
        return arrays, (self.shape, kinds)

    def tree_flatten_with_keys(self) -> tuple[tuple[Any, ...], _Static]:
        """As `tree_flatten`, with the names of the parts."""
        arrays, static = self.tree_flatten()
        names = map(jax.tree_util.GetAttrKey, _PARTS)
        return tuple(zip(names, arrays, strict=True)), static

    def static_sizes(self) -> dict[str, Any]:
        """Returns the sizes and options that a program is compiled for, by name.

        Shapes of arrays are not included.
        """
        program = self.shape.program
        return {
            "the number of instances": self.shape.result.instances,
            "the number of loops": len(program.loops),
            "rows of arenas": dict(program.arena_rows),
            "rows of tapes": dict(program.type_rows),
            "options": program.options,
        }

    @classmethod
    def tree_unflatten(cls, static: _Static, arrays: tuple[Any, ...]) -> "Plan":
        """Builds a plan from its parts."""
        (shape, kinds), (stream, trips, num_steps, pools, *rest) = static, arrays
        named = dict(zip(kinds, pools, strict=True))
        return cls(shape, stream, trips, num_steps, named, *rest)


# For `jax.export`: a saved function includes the structure of the plans that it takes.
export.register_pytree_node_serialization(
    Plan,
    serialized_name="edbatch.Plan",
    serialize_auxdata=pickle.dumps,
    deserialize_auxdata=pickle.loads,
)


@dataclass(frozen=True, eq=False)
class Encoded:
    """A plan without its external inputs; it depends on structure alone.

    Attributes:
        plan: The plan with empty pools.
        pool_rows: Rows of each pool, by array kind.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> batched = eb.batch(double, params=2.0)
        >>> import dataclasses
        >>> [field.name for field in dataclasses.fields(Encoded)]
        ['plan', 'pool_rows']
    """

    plan: Plan
    pool_rows: dict[int, int]

    def __repr__(self) -> str:
        """Summary in one line."""
        return f"<Encoded {self.plan!r} without external inputs>"

    @property
    def num_bytes(self) -> int:
        """Memory that it keeps alive, in bytes."""
        return sum(each.nbytes for each in jax.tree.leaves(self.plan))

    def with_externals(self, externals: dict[int, np.ndarray]) -> Plan:
        """Completes the plan.

        Args:
            externals: External inputs by array kind.

        Returns:
            The plan of a minibatch.
        """
        pools = {}
        for kind, rows in self.pool_rows.items():
            aval = self.plan.shape.program.types.kinds.pool_aval(kind)
            pools[kind] = np.zeros((rows, *aval.shape), aval.dtype)
            if kind in externals:
                pools[kind][1 : len(externals[kind]) + 1] = externals[kind]
        return replace(self.plan, pools=pools)


@dataclass(frozen=True, eq=False)
class Unpadded:
    """A laid out minibatch as integers, before it is padded to a bucket.

    Attributes:
        types: The model's types.
        stream: Records of all chunks.
        result: The static part of the result.
        rows: Rows of the results.
        num_instances: Number of instances in the minibatch.
        needs: Size that is needed in each dimension.
        report: The plan's costs.
    """

    types: TypeTable
    stream: UnpaddedStream
    result: ResultShape
    rows: ResultRows
    num_instances: int
    needs: Needs
    report: PlanReport


def encode_unpadded(
    graph: DataflowGraph,
    schedule: Schedule,
    layout: Layout,
    result: ResultShape,
    variants: SliceVariants | None = None,
    plan_ms: float = 0.0,
) -> Unpadded:
    """Encodes a laid out graph.

    Args:
        graph: The graph.
        schedule: Its schedule.
        layout: Its layout.
        result: The static part of its result.
        variants: Which operands the model's loops read as slices; none if None.
        plan_ms: Time to schedule and to lay out.

    Returns:
        The encoded graph, before padding.
    """
    slices = (variants or SliceVariants(least_share=2)).choose(graph, layout)
    stream = encode(graph, layout, slices.variants, slices.chunk_variant)
    report, type_rows = make_report(graph, schedule, layout, slices.bytes, plan_ms)
    needs = _needs(graph, layout, stream, type_rows)
    for kind, least in slices.rows.items():
        needs[f"arena {kind}"] = max(needs[f"arena {kind}"], least)
    rows = graph.outputs.locate(layout.value_row)
    if result.tree.lists:
        result.pad(rows, lambda name, size: needs.setdefault(name, size))
    return Unpadded(
        graph.types, stream, result, rows, graph.num_instances, needs, report
    )


def fit_bucket(
    parts: Sequence[Unpadded],
    types: TypeTable,
    store: BucketStore,
    more: Needs | None = None,
    target: Target = CPU,
    scale: float = 1.0,
    widths: Callable[[int], Widths] | None = None,
) -> Bucket:
    """Finds a bucket that is large enough for each of several plans.

    Args:
        parts: The plans, all of one model.
        types: The model's types as they run.
        store: The model's buckets.
        more: Sizes that are needed in further dimensions.
        target: The kind of device that will run them.
        scale: Ratio of the size of the minibatches that the bucket is meant for to the
            size of these; at least 1.
        widths: Returns the widths of a type; None for all widths.

    Returns:
        The bucket.
    """
    needs = dict(more or {})
    for part in parts:
        for name, size in part.needs.items():
            needs[name] = max(needs.get(name, 0), size)
    if target.control == "switch":
        needs[CHUNKS] = max(len(part.stream.chunk_loop) for part in parts)
    loops = {loop for part in parts for loop in part.stream.loops}
    return store.fit(
        loops,
        needs,
        lambda loops: _least(types, loops),
        target,
        scale,
        widths,
        types.kinds,
    )


def pad(
    part: Unpadded, bucket: Bucket, planner: Planner, compiler: Compiler
) -> Encoded:
    """Pads a plan to a bucket.

    Args:
        part: The plan.
        bucket: A bucket that is large enough for it.
        planner: Options of memory planning: reuse of rows.
        compiler: Compile options: packing, remat.

    Returns:
        The plan without its external inputs.
    """
    sizes = bucket.sizes
    packing, remat = compiler.packing != NEVER, compiler.remat == ALWAYS

    def make() -> ProgramShape:
        return ProgramShape(
            part.types,
            bucket.loops,
            bucket.arena_rows,
            bucket.type_rows,
            CompileOptions(
                target=bucket.target,
                packing=packing,
                remat=remat,
                reuses_rows=planner.reuses_rows,
            ),
            sizes.get(CHUNKS, 0),
        )

    key = (pad, bucket, packing, remat, planner.reuses_rows)
    program = part.types.derived(key, make)  # keeps the program's cached hash, too
    stream = pad_stream(part.stream, bucket.loops, sizes["stream"], sizes["steps"])
    rows = part.result.pad(part.rows, lambda name, _: sizes[name])
    plan = Plan(
        PlanShape(program, part.result),
        *stream,
        {},
        rows.rows,
        rows.lengths,
        np.int32(part.num_instances),
        part.report,
    )
    return Encoded(plan, bucket.pool_rows)


def _needs(
    graph: DataflowGraph,
    layout: Layout,
    stream: UnpaddedStream,
    type_rows: np.ndarray,
) -> Needs:
    needs = {"stream": len(stream.records), "steps": stream.num_steps}
    for kind, rows in enumerate(layout.arena_rows.tolist()):
        if rows > 1:
            needs[f"arena {kind}"] = rows
    for type_id, rows in enumerate(type_rows.tolist()):
        if rows:
            needs[f"rows {type_id}"] = rows
    for kind, pool in graph.externals.items():
        needs[f"pool {kind}"] = len(pool) + 1
    return needs


def _least(types: TypeTable, loops: tuple[Loop, ...]) -> Needs:
    """Minimum sizes of a program, for its longest record and a full chunk per loop."""
    least: Needs = {"stream": 0}
    for loop in loops:
        node_type = types.types[loop.type_id]
        form = record_format(node_type, loop)
        least["stream"] = max(least["stream"], form.least_stream)
        name = f"rows {loop.type_id}"
        least[name] = max(least.get(name, 0), loop.width)
        sliced = [node_type.operand_kinds[slot] for slot in loop.sliced]
        for kind in (*node_type.output_kinds, *sliced):
            name = f"arena {kind}"
            least[name] = max(least.get(name, 0), loop.width + 1)
    return least
