"""Types that are worth an aligned layout, decided from a sample.

An aligned layout takes longer to plan than the order of the schedule, and saves the
program from gathering rows one by one. For the nodes of chains it saves more than it
costs: nearly all their operands become slices. For those of trees it does not: less
than half of them do, and the loops that read these as slices are loops more to compile
and to pass.

A type is aligned if the rows that its nodes no longer gather take longer than it takes
to align its nodes, by the numbers of the `Target` (`docs/results-memory.md`). Of a wide
chunk only the first rows count, since a gather of many rows takes less time for each.

Gain on 64 instances at hidden 64 (docs/results-memory.md, "Speed"): the forward pass of
taggers takes 5.7 in place of 6.6 ms, with the plan 7.2 in place of 7.4; and trees keep
a plan of 0.29 ms where an aligned one takes 0.81.
"""

from collections.abc import Callable, Sequence

import numpy as np

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.memory_planner.layout import Layout
from edbatch.stream.slice_variants import Slices, SliceVariants
from edbatch.stream.type_decisions import TypeDecisions
from edbatch.target import Target

# Lays out with some types aligned, ``[T] bool``; in the order of the schedule if None.
LayOut = Callable[[np.ndarray | None], Layout]


class LayoutChoice(TypeDecisions[bool]):
    """Types of a model that are aligned; those without a sample are not.

    Attributes:
        least_share: As of the `SliceVariants` of the same model.
    """

    def __init__(self, least_share: float) -> None:
        super().__init__()
        self.least_share = least_share

    def lay_out(
        self,
        graph: DataflowGraph,
        used: Sequence[int],
        lay_out: LayOut,
        target: Target,
    ) -> Layout:
        """Lays out a graph; decides about types that it is the first to have.

        Args:
            graph: The graph.
            used: The types of its nodes, each once.
            lay_out: Lays it out.
            target: The kind of device that will run it.

        Returns:
            The layout.
        """
        with self.lock:
            new = [] if self._frozen else [t for t in used if t not in self._decided]
            if new:
                found = self._decide(graph, new, lay_out, target)
                self._decided |= zip(new, found, strict=True)
            aligned = [t for t in used if self._decided.get(t)]
        if not aligned:
            return lay_out(None)
        mask = np.zeros(graph.num_types, np.bool_)
        mask[aligned] = True
        return lay_out(mask)

    def _decide(
        self, graph: DataflowGraph, new: list[int], lay_out: LayOut, target: Target
    ) -> list[bool]:
        nodes = np.bincount(graph.node_type, minlength=graph.num_types)
        masks = (None, np.ones(graph.num_types, np.bool_))
        rows = [self._sliced_rows(graph, lay_out(mask), target) for mask in masks]
        gain = target.gather_row_ns * (rows[1] - rows[0]) - target.align_node_ns * nodes
        return (gain[new] > 0).tolist()

    def _sliced_rows(
        self, graph: DataflowGraph, layout: Layout, target: Target
    ) -> np.ndarray:
        """Returns how many rows nodes of each type read through slices; ``[T]``."""
        slices = SliceVariants(self.least_share).choose(graph, layout)
        return count_sliced_rows(graph, layout, slices, target.wide_chunk)


def count_sliced_rows(
    graph: DataflowGraph, layout: Layout, slices: Slices, most: int
) -> np.ndarray:
    """Counts the rows that nodes read through slices.

    Args:
        graph: The graph.
        layout: Its layout.
        slices: What its chunks read as slices.
        most: How many rows of a chunk count.

    Returns:
        The rows by type, those of padding aside; ``[T] int64``.
    """
    slots = np.array([len(each) for each in slices.variants])[slices.chunk_variant]
    types = graph.node_type[layout.order[layout.chunk_start]]
    rows = slots * np.minimum(layout.chunk_size, most)
    return np.bincount(types, rows, graph.num_types).astype(np.int64)
