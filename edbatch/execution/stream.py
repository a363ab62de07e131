"""Encoding: a layout as the stream of integers that the program reads.

The program executes chunks in the order of the stream. The record of one chunk of
width w is, all int32:

* one row per output of the type: where its first output row is written;
* for each external slot, w rows of the pool;
* for each operand slot, w rows of the arena.

Its length follows from type and width, so the program finds the next record by adding.
Padding lanes repeat the chunk's last node: they compute something finite and harmless.

Consecutive chunks of one (type, width), a *pair*, form a run. Pairs have a fixed order,
in which the program holds one loop each; a *step* is one pass over all loops, and
``trips[s, p]`` says how often loop p turns in step s. A run whose pair comes later in
the order than the one before it joins that step, another opens a new one.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.merge import check_rows
from edbatch.memory_planner.layout import Layout

Pair = tuple[int, int]  # type id, width


@dataclass(frozen=True, eq=False)
class Stream:
    """A minibatch as ``I`` integers; ``C`` chunks in ``S`` steps.

    Attributes:
        records: Records of all chunks.
        chunk_type: Type of each chunk.
        chunk_width: Width of each chunk.
    """

    records: np.ndarray  # [I] int32
    chunk_type: np.ndarray  # [C] int32
    chunk_width: np.ndarray  # [C] int32

    @property
    def pairs(self) -> set[Pair]:
        """The (type, width) pairs in use."""
        codes = np.unique(self.chunk_type.astype(np.int64) << 32 | self.chunk_width)
        return {(int(code >> 32), int(code & 0xFFFFFFFF)) for code in codes}

    @property
    def num_steps(self) -> int:
        """Number of steps; it depends on the order of pairs, not on which exist."""
        rank = (self.chunk_type.astype(np.int64) << 32) - self.chunk_width
        return int((np.diff(rank) < 0).sum()) + min(1, len(rank))


def order_pairs(pairs: set[Pair]) -> tuple[Pair, ...]:
    """Returns the order of a program's loops: by type, wide chunks first."""
    return tuple(sorted(pairs, key=lambda pair: (pair[0], -pair[1])))


def encode(graph: DataflowGraph, layout: Layout) -> Stream:
    """Encodes a layout as a stream of records.

    Args:
        graph: The graph.
        layout: Its layout.

    Returns:
        The stream. Time O(C + E) for C chunks and E slots, padding included.

    Raises:
        PlanError: The stream would be longer than int32 can count.
    """
    operands, externals, outputs = graph.types.counts
    types = graph.node_type[layout.order[layout.chunk_start]]
    lengths = (
        outputs[types].astype(np.int64)
        + layout.chunk_width * (operands + externals)[types]
    )
    check_rows(int(lengths.sum()), "operands of padded batches")
    records = _write(
        layout.order, layout.chunk_start, layout.chunk_size, layout.chunk_width,
        layout.value_row, graph.value_start, graph.operand_start, graph.operands,
        graph.external_start, graph.external_rows, int(lengths.sum()),
    )  # fmt: skip
    return Stream(records, types, layout.chunk_width)


def count_trips(stream: Stream, pairs: tuple[Pair, ...], steps: int) -> np.ndarray:
    """Counts how often each loop turns in each step.

    Args:
        stream: The encoded schedule.
        pairs: The program's loops in their order; a superset of ``stream.pairs``.
        steps: Rows to return, at least ``stream.num_steps``; the rest is zero.

    Returns:
        ``[steps, P] int32``.
    """
    types = max((each for each, _ in pairs), default=0)
    widths = max((width for _, width in pairs), default=0)
    pair_of = np.full((types + 1, widths + 1), -1, np.int32)
    for k, (node_type, width) in enumerate(pairs):
        pair_of[node_type, width] = k
    trips = np.zeros((steps, len(pairs)), np.int32)
    _fill_trips(pair_of[stream.chunk_type, stream.chunk_width], trips)
    return trips


@njit(cache=True, nogil=True)
def _write(
    order, chunk_start, chunk_size, chunk_width, value_row, value_start,
    operand_start, operands, external_start, external_rows, length,
):  # fmt: skip
    stream = np.empty(length, np.int32)
    at = 0
    for c in range(len(chunk_start)):
        first = chunk_start[c]
        size = chunk_size[c]
        width = chunk_width[c]
        node = order[first]
        for value in range(value_start[node], value_start[node + 1]):
            stream[at] = value_row[value]
            at += 1
        for slot in range(external_start[node + 1] - external_start[node]):
            for lane in range(width):
                v = order[first + min(lane, size - 1)]
                # Rows of pools count from 1; a missing one (-1) becomes row 0.
                stream[at] = external_rows[external_start[v] + slot] + 1
                at += 1
        for slot in range(operand_start[node + 1] - operand_start[node]):
            for lane in range(width):
                v = order[first + min(lane, size - 1)]
                value = operands[operand_start[v] + slot]
                stream[at] = value_row[value] if value >= 0 else 0
                at += 1
    return stream


@njit(cache=True, nogil=True)
def _fill_trips(chunk_pair, trips):
    step = -1
    last = trips.shape[1]
    for pair in chunk_pair:
        if pair < last:
            step += 1
        last = pair
        trips[step, pair] += 1
