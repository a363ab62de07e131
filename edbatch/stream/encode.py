"""Encoding: a laid out minibatch as the stream of integers that the program reads.

`edbatch.stream.format` defines the records of chunks. Padding rows of a chunk repeat
its last node: they compute something finite and harmless. In a slice they are whatever
follows.

Consecutive chunks of one `Loop` form a run. Loops have a fixed order; a step is one
pass over all loops. A run whose loop comes later in the order than the one before it
joins that step, another opens a new one. The chunks of one batch run in the order of
their loops.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.merge import check_rows
from edbatch.memory_planner.layout import Layout
from edbatch.stream.format import field_starts, record_formats
from edbatch.stream.loop import Loop, order_loops
from edbatch.stream.stream import Stream


@dataclass(frozen=True, eq=False)
class UnpaddedStream:
    """A minibatch as ``I`` integers; ``C`` chunks in ``S`` steps.

    Attributes:
        records: Records of all chunks.
        loops: The loops in use, in order.
        chunk_loop: Position in ``loops`` of each chunk's, in the order of the records.
    """

    records: np.ndarray  # [I] int32
    loops: tuple[Loop, ...]
    chunk_loop: np.ndarray  # [C] int32

    @property
    def num_steps(self) -> int:
        """Number of steps; it depends on the order of loops, not on which exist."""
        return int((np.diff(self.chunk_loop) < 0).sum()) + min(1, len(self.chunk_loop))


def encode(
    graph: DataflowGraph,
    layout: Layout,
    variants: tuple[tuple[int, ...], ...] = ((),),
    chunk_variant: np.ndarray | None = None,
) -> UnpaddedStream:
    """Encodes a layout as a stream of records.

    Args:
        graph: The graph.
        layout: Its layout.
        variants: Sets of operand slots that are read as slices.
        chunk_variant: Which of them each chunk of the layout has; the first if None.
            ``[C] int32``.

    Returns:
        The stream. Time O(C + E) for C chunks and E slots, padding included.

    Raises:
        PlanError: The stream would be longer than int32 can count.
    """
    if chunk_variant is None:
        chunk_variant = np.zeros(len(layout.chunk_start), np.int32)
    types = graph.node_type[layout.order[layout.chunk_start]]
    loops, chunk_loop = _find_loops(types, layout.chunk_width, variants, chunk_variant)
    batch = np.searchsorted(layout.batch_start, layout.chunk_start, side="right")
    order = np.lexsort((chunk_loop, batch))
    formats = record_formats(graph.types.types, loops)
    starts = field_starts(formats)
    has_member = np.array([each.has_member for each in formats], np.bool_)
    member = graph.node_member
    if member is None:
        member = np.zeros(graph.num_nodes if has_member.any() else 0, np.int32)
    length = int(starts[chunk_loop, -1].sum())
    check_rows(length, "operands of padded batches")
    chunks = _Chunks(layout.order, layout.chunk_start, layout.chunk_size, chunk_loop)
    records = _write(
        order,
        chunks,
        _Formats(starts, has_member),
        member,
        layout.value_row,
        graph.arrays,
        length,
    )
    return UnpaddedStream(records, loops, chunk_loop[order])


def _find_loops(
    types: np.ndarray,
    widths: np.ndarray,
    variants: tuple[tuple[int, ...], ...],
    chunk_variant: np.ndarray,
) -> tuple[tuple[Loop, ...], np.ndarray]:
    """Returns the loops in use, in order, and the position of each chunk's."""
    codes = (types.astype(np.int64) << 32 | widths) * len(variants) + chunk_variant
    used, inverse = np.unique(codes, return_inverse=True)
    found = []
    for code in used.tolist():
        pair, variant = divmod(code, len(variants))
        found.append(Loop(pair >> 32, pair & 0xFFFFFFFF, variants[variant]))
    loops = order_loops(found)
    place = {loop: k for k, loop in enumerate(loops)}
    rank = np.array([place[loop] for loop in found], np.int32)
    return loops, rank[inverse]


def count_trips(
    stream: UnpaddedStream, loops: tuple[Loop, ...], steps: int
) -> np.ndarray:
    """Counts the iterations of each loop in each step.

    Args:
        stream: The encoded schedule.
        loops: The program's loops in their order; a superset of ``stream.loops``.
        steps: Rows to return, at least ``stream.num_steps``; the rest is zero.

    Returns:
        ``[steps, P] int32``.
    """
    place = {loop: k for k, loop in enumerate(loops)}
    own = np.array([place[loop] for loop in stream.loops], np.int32)
    trips = np.zeros((steps, len(loops)), np.int32)
    _fill_trips(own[stream.chunk_loop], trips)
    return trips


def pad_stream(
    stream: UnpaddedStream, loops: tuple[Loop, ...], length: int, steps: int
) -> Stream:
    """Pads a stream to a bucket.

    Args:
        stream: The stream.
        loops: The program's loops in their order; a superset of ``stream.loops``.
        length: Integers of the bucket, at least as many as of the stream.
        steps: Steps of the bucket, at least as many as of the stream.

    Returns:
        The stream, arrays of NumPy.
    """
    records = np.zeros(length, np.int32)
    records[: len(stream.records)] = stream.records
    trips = count_trips(stream, loops, steps)
    return Stream(records, trips, np.int32(stream.num_steps))


class _Chunks(NamedTuple):
    """``C`` chunks of ``N`` nodes."""

    order: np.ndarray  # [N] int32, the nodes in the order in which they run
    first: np.ndarray  # [C] int32, the first position of each chunk
    size: np.ndarray  # [C] int32, nodes in each
    loop: np.ndarray  # [C] int32, the position of its loop


class _Formats(NamedTuple):
    """Formats of the records of ``P`` loops."""

    starts: np.ndarray  # [P, F + 1] int64, where each field starts
    has_member: np.ndarray  # [P] bool, whether records name a member


@njit(cache=True, nogil=True)
def _write(chunk_order, chunks, formats, member, value_row, nodes, length):
    order, chunk_start, chunk_size, chunk_loop = chunks
    starts, has_member = formats
    operand_start, operands = nodes.operand_start, nodes.operands
    external_start, external_rows = nodes.external_start, nodes.external_rows
    value_start = nodes.value_start
    stream = np.empty(length, np.int32)
    at = 0
    for c in chunk_order:
        fields = at + starts[chunk_loop[c]]
        first = chunk_start[c]
        size = chunk_size[c]
        node = order[first]
        field = 0
        for value in range(value_start[node], value_start[node + 1]):
            stream[fields[field]] = value_row[value]
            field += 1
        stream[fields[field]] = size
        field += 1
        if has_member[chunk_loop[c]]:
            stream[fields[field]] = member[node]
            field += 1
        for slot in range(external_start[node + 1] - external_start[node]):
            for k in range(fields[field + 1] - fields[field]):
                v = order[first + min(k, size - 1)]
                # Rows of pools count from 1; a missing one (-1) becomes row 0.
                row = external_rows[external_start[v] + slot] + 1
                stream[fields[field] + k] = row
            field += 1
        for slot in range(operand_start[node + 1] - operand_start[node]):
            for k in range(fields[field + 1] - fields[field]):
                v = order[first + min(k, size - 1)]
                value = operands[operand_start[v] + slot]
                stream[fields[field] + k] = value_row[value] if value >= 0 else 0
            field += 1
        at = fields[-1]
    return stream


@njit(cache=True, nogil=True)
def _fill_trips(chunk_loop, trips):
    step = -1
    last = trips.shape[1]
    for loop in chunk_loop:
        if loop < last:
            step += 1
        last = loop
        trips[step, loop] += 1
