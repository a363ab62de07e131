"""Encoding: a layout as the stream of integers that the program reads.

The program executes chunks in the order of the stream. The record of one chunk of
width w is, all int32:

* one row per output of the type: where its first output row is written;
* how many of its lanes hold nodes; the rest is padding;
* for each external slot, w rows of the pool;
* for each operand slot, w rows of the arena, or one, the first, where the chunk's loop
  reads a slice.

Its length follows from the loop, so the program finds the next record by adding.
Padding lanes repeat the chunk's last node: they compute something finite and harmless.
In a slice they are whatever follows.

Consecutive chunks of one `Loop` form a run. Loops have a fixed order; a *step* is one
pass over all loops, and ``trips[s, p]`` says how often loop p turns in step s. A run
whose loop comes later in the order than the one before it joins that step, another
opens a new one. The chunks of one batch run in the order of their loops.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.merge import check_rows
from edbatch.memory_planner.layout import Layout
from edbatch.stream.loop import Loop, order_loops


@dataclass(frozen=True, eq=False)
class Stream:
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
    forms: tuple[tuple[int, ...], ...] = ((),),
    chunk_form: np.ndarray | None = None,
) -> Stream:
    """Encodes a layout as a stream of records.

    Args:
        graph: The graph.
        layout: Its layout.
        forms: Sets of operand slots that are read as slices.
        chunk_form: Which of them each chunk of the layout has; the first if None.
            ``[C] int32``.

    Returns:
        The stream. Time O(C + E) for C chunks and E slots, padding included.

    Raises:
        PlanError: The stream would be longer than int32 can count.
    """
    operands, externals, outputs = graph.types.counts
    if chunk_form is None:
        chunk_form = np.zeros(len(layout.chunk_start), np.int32)
    types = graph.node_type[layout.order[layout.chunk_start]]
    loops, chunk_loop = _find_loops(types, layout.chunk_width, forms, chunk_form)
    batch = np.searchsorted(layout.batch_start, layout.chunk_start, side="right")
    order = np.lexsort((chunk_loop, batch))
    is_sliced = np.zeros((len(forms), operands.max(initial=0)), np.bool_)
    for row, slots in zip(is_sliced, forms, strict=True):
        row[list(slots)] = True
    slices = is_sliced.sum(axis=1)[chunk_form]
    lengths = (outputs[types] + 1 + slices).astype(np.int64) + layout.chunk_width * (
        (operands + externals)[types] - slices
    )
    check_rows(int(lengths.sum()), "operands of padded batches")
    records = _write(
        order, layout.order, layout.chunk_start, layout.chunk_size, layout.chunk_width,
        is_sliced, chunk_form, layout.value_row, graph.value_start,
        graph.operand_start, graph.operands, graph.external_start, graph.external_rows,
        int(lengths.sum()),
    )  # fmt: skip
    return Stream(records, loops, chunk_loop[order])


def _find_loops(
    types: np.ndarray,
    widths: np.ndarray,
    forms: tuple[tuple[int, ...], ...],
    chunk_form: np.ndarray,
) -> tuple[tuple[Loop, ...], np.ndarray]:
    """Returns the loops in use, in order, and the position of each chunk's."""
    codes = (types.astype(np.int64) << 32 | widths) * len(forms) + chunk_form
    used, inverse = np.unique(codes, return_inverse=True)
    found = []
    for code in used.tolist():
        pair, form = divmod(code, len(forms))
        found.append(Loop(pair >> 32, pair & 0xFFFFFFFF, forms[form]))
    loops = order_loops(found)
    place = {loop: k for k, loop in enumerate(loops)}
    rank = np.array([place[loop] for loop in found], np.int32)
    return loops, rank[inverse]


def count_trips(stream: Stream, loops: tuple[Loop, ...], steps: int) -> np.ndarray:
    """Counts how often each loop turns in each step.

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


@njit(cache=True, nogil=True)
def _write(
    chunks, order, chunk_start, chunk_size, chunk_width, is_sliced, chunk_form,
    value_row, value_start, operand_start, operands, external_start, external_rows,
    length,
):  # fmt: skip
    stream = np.empty(length, np.int32)
    at = 0
    for c in chunks:
        first = chunk_start[c]
        size = chunk_size[c]
        width = chunk_width[c]
        node = order[first]
        for value in range(value_start[node], value_start[node + 1]):
            stream[at] = value_row[value]
            at += 1
        stream[at] = size
        at += 1
        for slot in range(external_start[node + 1] - external_start[node]):
            for lane in range(width):
                v = order[first + min(lane, size - 1)]
                # Rows of pools count from 1; a missing one (-1) becomes row 0.
                stream[at] = external_rows[external_start[v] + slot] + 1
                at += 1
        for slot in range(operand_start[node + 1] - operand_start[node]):
            lanes = 1 if is_sliced[chunk_form[c], slot] else width
            for lane in range(lanes):
                v = order[first + min(lane, size - 1)]
                value = operands[operand_start[v] + slot]
                stream[at] = value_row[value] if value >= 0 else 0
                at += 1
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
