"""Chooses the widths of a type's chunks, within a budget of compiled loops.

Every width that a type's chunks have is a loop to compile. A finer cut saves padding
rows and chunks; how much that is worth depends on the sizes of the type's batches and
on the work per row. So widths are added one by one: always the width, of any type, that
saves the most of a sample's predicted cost, until no width saves `_LEAST_GAIN` of that
cost or the budget is used up. Each type has at least one width.

The sample is that of `edbatch.Batched.fit`. Without one, a type's sample is the first
minibatch that has the type. A sample of few instances counts twice: as itself and as
one of `_NOMINAL` instances, with batches that are larger by the same factor. A first
try with two instances should not decide for all later minibatches.

The cost of a batch is the cost of its best cut (`edbatch.memory_planner.sizes`): the
work (`edbatch.cell.work`) of its rows, including padding rows and the overhead of
chunks, which is counted in rows, plus `_CHUNK_WORK` per chunk, which is the cost of a
chunk of a cell without work. A chunk of a family also reads its member's parameters
(`edbatch.cell.work.read_work`); if these are large, batches are cut into fewer chunks.
Families have more widths to choose from, between the standard ones and below them
(`Target.member_widths`), so that experts with one input each run as chunks of one row.
A width below the standard ones is available only to types most of whose rows are in
batches that small, because a coarse program cuts all chunks of a type into parts of a
width that divides all widths of the type. Chunks of large rows are capped at
`_MOST_BYTES`, because an arena reserves space for a whole chunk even if only one of its
rows is used.

Gain (`experiments/loop_budget.py`, docs/results.md): tree-lstm has 13 loops instead of
32 and its gradient compiles in 7 s instead of 14; neural-module-network has 63 loops
instead of 113 and its gradient compiles in 21 s instead of 34. Both run as fast as
before.
"""

import heapq
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edbatch.cell.work import read_work, row_work
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.node_type import NodeType
from edbatch.graph.type_table import TypeTable
from edbatch.memory_planner.sizes import Sizes, Widths, cut_costs
from edbatch.schedule.schedule import Schedule
from edbatch.stream.type_decisions import TypeDecisions

_LEAST_GAIN = 0.002  # share of the predicted cost of all types
_NOMINAL = 64  # instances
_FIRST = 8  # minimum for the first width of a type
_CHUNK_WORK = 40_000.0  # multiply-adds that one CPU core does in 2 µs
_MOST_BYTES = 2**26  # maximum that a chunk reads and writes; far more than caches hold
# Batch sizes are capped at this number of rows: larger batches use the largest width,
# except at their end.
_LARGEST = 4096


@dataclass(frozen=True, eq=False)
class TypeBatches:
    """The batches of a type in a sample.

    Attributes:
        size: Distinct batch sizes, in rows.
        count: Number of batches of each size.
        work: The work of a row, in multiply-adds.
        read: Cost of reading the parameters, in multiply-adds per chunk.
        more: Widths to choose from in addition to those that all types have.
        most: Maximum width; if all widths exceed it, the smallest one is used.
    """

    size: np.ndarray  # [U] int64
    count: np.ndarray  # [U] int64
    work: float
    read: float = 0.0
    more: Widths = ()
    most: int = sys.maxsize

    def cost(self, widths: Widths, overhead: float) -> float:
        """Predicts the cost of running the batches.

        Args:
            widths: The widths of chunks.
            overhead: Cost of running one more chunk, in rows.

        Returns:
            The cost, in multiply-adds.
        """
        per_chunk = overhead + (_CHUNK_WORK + self.read) / self.work
        costs = cut_costs(widths, per_chunk, int(self.size[-1]))
        return self.work * float(self.count @ costs[self.size])


class TypeWidths(TypeDecisions[Widths]):
    """The widths of one model's types.

    Once frozen, types without a sample get a narrow and a wide width.

    Attributes:
        sizes: The widths to choose from, and how many loops a model may have.
        member_widths: Widths that types of families may have in addition.
    """

    def __init__(self, sizes: Sizes, member_widths: Widths = ()) -> None:
        super().__init__()
        self.sizes = sizes
        self.member_widths = member_widths

    def choose(
        self, graph: DataflowGraph, schedule: Schedule
    ) -> tuple[Widths, ...] | None:
        """Chooses the widths of the types that have none yet.

        Args:
            graph: A graph.
            schedule: Its schedule.

        Returns:
            The widths of all types, by type id; None if every type has all widths.
        """
        if self.sizes.max_loops is None:
            return None
        with self.lock:
            used = set(schedule.batch_type.tolist())
            new = sorted(t for t in used if t not in self._decided)
            if new and self._frozen:
                types = graph.types
                self._decided |= {
                    t: self._without_sample(widest(types.types[t], types)) for t in new
                }
            elif new:
                left = self.sizes.max_loops - sum(
                    len(each) - 1 for each in self._decided.values()
                )
                batches = self._find_batches(graph, schedule, new)
                self._decided |= choose_widths(batches, self.sizes, left)
            first = self.sizes.widths[:1]  # for types that have no batch here
            return tuple(self._decided.get(t, first) for t in range(graph.num_types))

    def overheads(self, graph: DataflowGraph) -> tuple[float, ...] | None:
        """Returns the cost of one more chunk of each type.

        Args:
            graph: A graph.

        Returns:
            The cost in rows, by type id; None if all are `sizes.chunk_overhead`.
        """
        table, least = graph.types, self.sizes.chunk_overhead

        def make(types: Sequence[NodeType]) -> tuple[float, ...] | None:
            found = tuple(_chunk_overhead(each, table, least) for each in types)
            return None if set(found) <= {least} else found

        return graph.derived((_chunk_overhead, least), make)

    def of(self, type_id: int) -> Widths:
        """Returns the widths of a type."""
        with self.lock:
            return self._decided.get(type_id, self.sizes.widths)

    def _without_sample(self, most: int) -> Widths:
        widths = self.sizes.widths
        wide = _up_to(widths, most)[-1]
        return tuple(
            sorted({_first(widths, most), min(widths[-(-len(widths) // 2)], wide)})
        )

    def _find_batches(
        self, graph: DataflowGraph, schedule: Schedule, types: Sequence[int]
    ) -> dict[int, TypeBatches]:
        """Returns the batches of some types in a sample."""
        sizes = np.diff(schedule.batch_start).astype(np.int64)
        scales = sorted({1, max(1, _NOMINAL // graph.num_instances)})
        found = {}
        for t in types:
            node_type = graph.types.types[t]
            own = sizes[schedule.batch_type == t]
            scaled = np.minimum(np.concatenate([s * own for s in scales]), _LARGEST)
            size, count = np.unique(scaled, return_counts=True)
            found[t] = TypeBatches(
                size,
                count,
                max(1.0, row_work(node_type, graph.types)),
                read_work(node_type, graph.types),
                () if node_type.family is None else self._more(size, count),
                widest(node_type, graph.types),
            )
        return found

    def _more(self, size: np.ndarray, count: np.ndarray) -> Widths:
        """Returns the additional widths that a family may have, by its batches."""
        least = self.sizes.widths[0]
        small = size <= least
        narrow = 2 * (size * count)[small].sum() > (size * count).sum()
        return tuple(each for each in self.member_widths if narrow or each > least)


def choose_widths(
    batches: dict[int, TypeBatches], sizes: Sizes, budget: int
) -> dict[int, Widths]:
    """Chooses the widths of types by a sample.

    Args:
        batches: The batches of each type.
        sizes: The widths to choose from.
        budget: How many widths to choose beyond the first one of each type.

    Returns:
        The widths of each type.

    Example:
        >>> few = TypeBatches(np.array([3, 64]), np.array([9, 1]), work=1e5)
        >>> choose_widths({0: few}, Sizes(widths=(4, 8, 32, 64)), 8)
        {0: (4, 8, 64)}
    """
    overhead = sizes.chunk_overhead
    chosen: dict[int, Widths] = {
        t: (_first(sizes.widths, own.most),) for t, own in batches.items()
    }
    cost = {t: own.cost(chosen[t], overhead) for t, own in batches.items()}
    least = _LEAST_GAIN * sum(cost.values())

    def best(t: int) -> tuple[float, int, Widths]:
        """The largest gain of one more width (negated), the type, and its widths."""
        options = [
            tuple(sorted((*chosen[t], width)))
            for width in (*sizes.widths, *batches[t].more)
            if width not in chosen[t] and width <= batches[t].most
        ]
        costs = [batches[t].cost(option, overhead) for option in options]
        if not options:
            return 0.0, t, ()
        k = int(np.argmin(costs))
        return costs[k] - cost[t], t, options[k]

    heap = [best(t) for t in batches]
    heapq.heapify(heap)
    while budget > 0 and heap and -heap[0][0] > least:
        gain, t, chosen[t] = heap[0]
        cost[t] += gain
        budget -= 1
        heapq.heapreplace(heap, best(t))
    return chosen


def widest(node_type: NodeType, types: TypeTable) -> int:
    """Returns the maximum width of a type's chunks, given by the bytes of its rows.

    Args:
        node_type: The type.
        types: The table that it is in.

    Returns:
        Rows, at least 1.
    """
    kinds = types.kinds
    slots = (
        *node_type.operand_kinds,
        *node_type.external_kinds,
        *node_type.output_kinds,
    )
    row_bytes = sum(kinds.row_bytes(kind) for kind in slots)
    return max(1, _MOST_BYTES // max(1, row_bytes))


def _up_to(widths: Widths, most: int) -> Widths:
    """Returns the widths up to ``most`` rows, but at least the smallest width."""
    return tuple(each for each in widths if each <= most) or widths[:1]


def _first(widths: Widths, most: int) -> int:
    """Returns a type's first width: at least `_FIRST` rows if ``most`` allows it."""
    allowed = _up_to(widths, most)
    return next((each for each in allowed if each >= _FIRST), allowed[-1])


def _chunk_overhead(node_type: NodeType, types: TypeTable, least: float) -> float:
    """Returns the cost of one more chunk of a type, in rows."""
    read = read_work(node_type, types)
    return least + read / max(1.0, row_work(node_type, types)) if read else least
