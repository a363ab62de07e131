"""The systems `scan` and `scan-sorted`: the code JAX users write today.

They ``vmap`` a program for one instance: all leaves at once; then a ``lax.scan`` over
the inner nodes, children before their parent, with a buffer of node states that it
reads and writes; then all classifier nodes, again at once. Instances are padded to the
longest one, so the scan runs as many steps as the longest instance has inner nodes,
each as wide as the minibatch. That is its weakness.

Forward time relative to `exact` on a tree-LSTM with 64 parses and hidden 128, CPU: 3.6
with a buffer of all nodes, 6.5 with a stack of the open nodes (it scatters), 4.1 with a
buffer indexed by hand without ``vmap``. Hence the buffer under ``vmap``. Sorting the
minibatch by length and scanning each quarter separately takes 1.9 (halves 2.8, eighths
2.0); that is `scan-sorted`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from edbatch.benchmark.staged_system import (
    StagedSystem,
    instance_results,
)
from edbatch.benchmark.staging import (
    ZERO_ROW,
    Arenas,
    Group,
    Stages,
    new_arenas,
    pack_cells,
    pad_to_power,
    run_node,
    run_nodes,
    stage,
    take,
    write,
)
from edbatch.cell.program import Packed
from edbatch.errors import UnsupportedError
from edbatch.graph import DataflowGraph, NodeType, TypeTable, merge
from edbatch.measuring import add_up, half_squares

_GRAIN = 8  # node counts are rounded up to a multiple of it, to compile less often


@dataclass(frozen=True)
class Segment:
    """Nodes of one type in every instance.

    Attributes:
        node_type: The type.
        count: Nodes per instance including padding, ``n``.
        scanned: Whether the nodes run sequentially, in a scan.
        first: First row of each output in its arena.
    """

    node_type: NodeType
    count: int
    scanned: bool
    first: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """The static part of a scan.

    Attributes:
        segments: Segments in execution order.
        sizes: (array kind, number of rows) of each buffer of an instance.
        kinds: Array kind of each output of the model.
    """

    segments: tuple[Segment, ...]
    sizes: tuple[tuple[int, int], ...]
    kinds: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ScanPlan:
    """``B`` padded instances that one ``vmap`` runs.

    Attributes:
        graph: The instances.
        places: Their indices in the minibatch.
        layout: The static part.
        pools: External inputs by array kind, padded.
        operands: Buffer rows that nodes read, ``[B, n, slots]`` per segment.
        externals: Pool rows that nodes read, ``[B, n, slots]`` per segment.
        columns: Rows of each output of the model in the flattened buffers.
    """

    graph: DataflowGraph
    places: np.ndarray  # [B] int32
    layout: Layout
    pools: dict[int, np.ndarray]
    operands: list[np.ndarray]
    externals: list[np.ndarray]
    columns: list[np.ndarray]

    @property
    def arrays(self) -> tuple[Any, ...]:
        """Inputs of the program other than the parameters."""
        return self.pools, self.operands, self.externals, self.columns


class Scan(StagedSystem):
    """See the module."""

    name = "scan"
    about = (
        "vmap over a post-order lax.scan, what JAX users write today; every instance"
        " is padded to the longest"
    )
    parts = 1  # number of parts of the minibatch, which is sorted by length

    def __init__(self, model: Callable[[Any, Any], Any], params: Any) -> None:
        super().__init__(model, params)
        self._run = jax.jit(self._program, static_argnums=0)
        self._train = jax.jit(
            jax.value_and_grad(self._loss, argnums=1, allow_int=True), static_argnums=0
        )

    def plan(self, recordings: Sequence[DataflowGraph]) -> list[ScanPlan]:
        """Pads the instances of each part to the longest one."""
        lengths = [each.num_nodes for each in recordings]
        order = np.argsort(lengths, kind="stable")
        return [
            _pad_instances(places, stage(merge([recordings[k] for k in places])))
            for places in np.array_split(order, min(self.parts, len(recordings)))
        ]

    def forward(self, plan: list[ScanPlan]) -> list[tuple[Array, ...]]:
        """Runs one program per part."""
        return [self._run(part.layout, self.params, *part.arrays) for part in plan]

    def train(self, plan: list[ScanPlan]) -> tuple[Array, Any]:
        """Runs one program per part and sums values and gradients."""
        return add_up(
            self._train(part.layout, self.params, *part.arrays) for part in plan
        )

    def results(
        self, plan: list[ScanPlan], outcome: list[tuple[Array, ...]]
    ) -> list[Any]:
        """Returns the outputs per instance."""
        results: dict[int, Any] = {}
        for part, columns in zip(plan, outcome, strict=True):
            found = instance_results(part.graph, columns)
            results.update(zip(part.places.tolist(), found, strict=True))
        return [results[place] for place in sorted(results)]

    def _loss(self, *inputs: Any) -> Array:
        return half_squares(self._program(*inputs))

    def _program(
        self,
        layout: Layout,
        params: Any,
        pools: Arenas,
        operands: list[Array],
        externals: list[Array],
        columns: list[Array],
    ) -> tuple[Array, ...]:
        if not layout.segments:
            return ()  # no instance calls a cell
        node_types = [segment.node_type for segment in layout.segments]
        cells = pack_cells(self._types, node_types, params)

        def one(*rows: list[Array]) -> Arenas:
            buffers = new_arenas(self._types, dict(layout.sizes))
            for segment, packed, *inputs in zip(
                layout.segments, cells, *rows, strict=True
            ):
                run = _scan if segment.scanned else _run_at_once
                buffers = run(self._types, segment, packed, buffers, pools, *inputs)
            return buffers

        buffers = jax.vmap(one)(operands, externals)
        flat = {
            kind: each.reshape(-1, *each.shape[2:]) for kind, each in buffers.items()
        }
        return tuple(
            take(flat[kind], rows)
            for kind, rows in zip(layout.kinds, columns, strict=True)
        )


class ScanSorted(Scan):
    """See the module."""

    name = "scan-sorted"
    about = (
        "as scan, on each quarter of the minibatch sorted by length; padded to the"
        " longest of each quarter"
    )
    parts = 4


def _run_at_once(
    types: TypeTable,
    segment: Segment,
    packed: Packed,
    buffers: Arenas,
    pools: Arenas,
    operands: Array,
    externals: Array,
) -> Arenas:
    found = run_nodes(
        types, segment.node_type, packed, buffers, pools, operands.T, externals.T
    )
    for leaf, kind in enumerate(segment.node_type.output_kinds):
        buffers = write(buffers, kind, segment.first[leaf], found[leaf])
    return buffers


def _scan(
    types: TypeTable,
    segment: Segment,
    packed: Packed,
    buffers: Arenas,
    pools: Arenas,
    operands: Array,
    externals: Array,
) -> Arenas:
    def body(buffers: Arenas, step: tuple[Array, Array, Array]) -> tuple[Arenas, None]:
        at, *rows = step
        found = run_node(types, segment.node_type, packed, buffers, pools, *rows)
        for leaf, kind in enumerate(segment.node_type.output_kinds):
            row = segment.first[leaf] + at
            buffers = write(buffers, kind, row, found[leaf][None])
        return buffers, None

    steps = (jnp.arange(segment.count, dtype=jnp.int32), operands, externals)
    return lax.scan(body, buffers, steps)[0]


def _pad_instances(places: np.ndarray, stages: Stages) -> ScanPlan:
    graph = stages.graph
    instances = graph.num_instances
    instance = np.repeat(np.arange(instances), graph.instance_nodes)
    segments: list[Segment] = []
    sizes: dict[int, int] = {}
    value_row = np.full(graph.num_values + 1, ZERO_ROW, np.int32)
    groups = _scan_groups(stages)
    ranks = [_rank(instance[group.nodes], instances) for group, _ in groups]
    for (group, scanned), rank in zip(groups, ranks, strict=True):
        count = -(-(int(rank.max()) + 1) // _GRAIN) * _GRAIN
        first = []
        for leaf, kind in enumerate(group.node_type.output_kinds):
            first.append(sizes.get(kind, ZERO_ROW + 1))
            value_row[graph.value_start[group.nodes] + leaf] = first[-1] + rank
            sizes[kind] = first[-1] + count
        segments.append(Segment(group.node_type, count, scanned, tuple(first)))

    def spread(k: int, rows: np.ndarray) -> np.ndarray:
        """Arranges ``[slots, n]`` rows of a segment by instance, with padding."""
        padded = np.zeros((instances, segments[k].count, len(rows)), np.int32)
        padded[instance[groups[k][0].nodes], ranks[k]] = rows.T
        return padded

    kinds, columns = [], []
    for kind, values in graph.outputs.values():
        owner = instance[np.searchsorted(graph.value_start, values, side="right") - 1]
        kinds.append(kind)
        columns.append(pad_to_power(owner * sizes[kind] + value_row[values]))
    return ScanPlan(
        graph=graph,
        places=places,
        layout=Layout(tuple(segments), tuple(sizes.items()), tuple(kinds)),
        pools={kind: pad_to_power(rows) for kind, rows in stages.pools.items()},
        operands=[
            spread(k, value_row[stages.operands(group)])
            for k, (group, _) in enumerate(groups)
        ],
        externals=[
            spread(k, stages.externals(group)) for k, (group, _) in enumerate(groups)
        ],
        columns=columns,
    )


def _scan_groups(stages: Stages) -> list[tuple[Group, bool]]:
    """Merges the levels into one scanned group; the flag is whether a group scans."""
    inner = {group.node_type for group in stages.levels}
    if len(inner) > 1:
        names = ", ".join(sorted(str(each.key) for each in inner))
        raise UnsupportedError(
            f"its inner nodes are of {len(inner)} types ({names}), and every step of a"
            " scan under vmap would compute all of them"
        )
    groups = [(group, False) for group in stages.sources]
    for node_type in inner:
        nodes = np.sort(np.concatenate([group.nodes for group in stages.levels]))
        groups.append((Group(node_type, nodes), True))
    return groups + [(group, False) for group in stages.sinks]


def _rank(instance: np.ndarray, instances: int) -> np.ndarray:
    """Returns each node's index within its instance; ``instance`` is sorted."""
    counts = np.bincount(instance, minlength=instances)
    starts = np.cumsum(counts) - counts
    return np.arange(len(instance)) - starts[instance]
