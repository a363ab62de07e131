"""Decides from a sample which types are worth an aligned layout.

An aligned layout takes longer to plan than the order of the schedule, and saves the
program from gathering rows one by one. For the nodes of chains it saves more than it
costs, because nearly all their operands become slices. For the nodes of trees it does
not: fewer than half of their operands become slices, and the loops that read them as
slices are additional loops to compile and to iterate over.

A type is aligned if gathering the rows that alignment turns into slices takes longer
than aligning its nodes, by the numbers of the `Target` (`docs/results-memory.md`). Of a
wide chunk only the first rows count, because a gather of many rows takes less time per
row.

Gain on 64 instances at hidden 64 (docs/results-memory.md, "Speed"): the forward pass of
taggers takes 5.7 ms instead of 6.6, or 7.2 ms instead of 7.4 including the plan. Trees
keep a plan that takes 0.29 ms, where an aligned one takes 0.81.
"""

from collections.abc import Callable, Sequence

import numpy as np

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.memory_planner.layout import Layout
from edbatch.stream.slice_variants import Slices, SliceVariants
from edbatch.stream.type_decisions import TypeDecisions
from edbatch.target import Target

# Lays out with the given types aligned, ``[T] bool``; in schedule order if None.
LayOut = Callable[[np.ndarray | None], Layout]


class LayoutChoice(TypeDecisions[bool]):
    """Which types of a model are aligned; types without a sample are not.

    Attributes:
        least_share: As for the `SliceVariants` of the same model.
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
        """Lays out a graph; decides about types that occur here for the first time.

        Args:
            graph: The graph.
            used: The types of its nodes, each once.
            lay_out: Function that lays the graph out.
            target: The kind of device that will run the layout.

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
        """Returns the number of rows read through slices, by type; ``[T]``."""
        slices = SliceVariants(self.least_share).choose(graph, layout)
        return count_sliced_rows(graph, layout, slices, target.wide_chunk)


def count_sliced_rows(
    graph: DataflowGraph, layout: Layout, slices: Slices, most: int
) -> np.ndarray:
    """Counts the rows that nodes read through slices.

    Args:
        graph: The graph.
        layout: Its layout.
        slices: The slices that its chunks read.
        most: Maximum number of rows to count per chunk.

    Returns:
        The rows by type, padding rows excluded; ``[T] int64``.
    """
    slots = np.array([len(each) for each in slices.variants])[slices.chunk_variant]
    types = graph.node_type[layout.order[layout.chunk_start]]
    rows = slots * np.minimum(layout.chunk_size, most)
    return np.bincount(types, rows, graph.num_types).astype(np.int64)
