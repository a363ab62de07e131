"""Encodes a laid-out minibatch as the stream of integers that the program reads.

`edbatch.stream.format` defines the records of chunks. Padding rows of a chunk repeat
its last node, so they compute finite, harmless values. For operands that are read as a
slice, padding rows are whatever rows follow.

Consecutive chunks of one `Loop` form a run. Loops have a fixed order; a step is one
pass over all loops. A run joins the current step if its loop comes later in that order
than the previous run's loop; otherwise it starts a new step. The chunks of one batch
run in the order of their loops.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from edbatch.errors import PlanError
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.merge import check_rows
from edbatch.graph.type_table import TypeTable
from edbatch.kernel import kernel
from edbatch.memory_planner.layout import Layout
from edbatch.sorting import distinct
from edbatch.stream.loop import Loop
from edbatch.stream.stream import Stream

# Fields of a loop's code, from the lowest bits up: the greatest width minus the loop's
# width, the rank of its sliced slots, and its type. A code is below 2**63.
_WIDTH_BITS, _RANK_BITS, _TYPE_BITS = 31, 12, 20
_WIDEST, _RANKS = (1 << _WIDTH_BITS) - 1, (1 << _RANK_BITS) - 1
_TYPE_SHIFT = _WIDTH_BITS + _RANK_BITS
_MOST = np.iinfo(np.int32).max  # maximum number of integers in a stream


@dataclass(frozen=True, eq=False)
class UnpaddedStream:
    """A minibatch as ``I`` integers; ``C`` chunks in ``S`` steps.

    Attributes:
        records: Records of all chunks.
        loops: The loops in use, in order.
        chunk_loop: Position in ``loops`` of each chunk's loop, in record order.
    """

    records: np.ndarray  # [I] int32
    loops: tuple[Loop, ...]
    chunk_loop: np.ndarray  # [C] int32

    @property
    def num_steps(self) -> int:
        """Number of steps; the same in a program that has further loops."""
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
        chunk_variant: Index in ``variants`` for each chunk of the layout; the first
            variant for all if None. ``[C] int32``.

    Returns:
        The stream. Takes O(C + E) time for C chunks and E slots, padding included.

    Raises:
        PlanError: The stream would have more integers than int32 can count.
    """
    if chunk_variant is None:
        chunk_variant = np.zeros(len(layout.chunk_start), np.int32)
    types, slices = graph.types, sorted(variants)
    if graph.num_types > 1 << _TYPE_BITS or len(slices) > 1 << _RANK_BITS:
        raise PlanError(
            f"a plan may have at most {1 << _TYPE_BITS:,} types of nodes but the model"
            f" has {graph.num_types:,} by now; stack the parameters of layers or"
            " experts and index them in the cells, and declare lists by padded=, so"
            " that calls share types"
        )
    chunks = _Chunks(
        layout.order,
        layout.batch_start,
        layout.chunk_start,
        layout.chunk_size,
        layout.chunk_width,
        np.array([slices.index(each) for each in variants], np.int32)[chunk_variant],
    )
    has_member = graph.derived(
        "types with members",
        lambda own: np.array([each.family is not None for each in own], np.bool_),
    )
    member = graph.node_member
    if member is None:
        member = np.zeros(graph.num_nodes if has_member.any() else 0, np.int32)
    codes, length, records, ran = _encode(
        chunks,
        *types.counts,
        has_member,
        _slot_table(slices),
        member,
        layout.value_row,
        graph.arrays,
    )
    check_rows(length, "operands of padded batches")
    return UnpaddedStream(records, _loops_of(types, codes, tuple(slices)), ran)


def count_trips(
    stream: UnpaddedStream, loops: tuple[Loop, ...], steps: int
) -> np.ndarray:
    """Counts the iterations of each loop in each step.

    Args:
        stream: The encoded schedule.
        loops: The program's loops in their order; a superset of ``stream.loops``.
        steps: Number of rows to return, at least ``stream.num_steps``; extra rows are
            zero.

    Returns:
        ``[steps, P] int32``.
    """
    trips = np.zeros((steps, len(loops)), np.int32)
    _fill_trips(stream.chunk_loop, _places(stream.loops, loops), trips)
    return trips


def pad_stream(
    stream: UnpaddedStream, loops: tuple[Loop, ...], length: int, steps: int
) -> Stream:
    """Pads a stream to a bucket.

    Args:
        stream: The stream.
        loops: The program's loops in their order; a superset of ``stream.loops``.
        length: Integers in the bucket, at least as many as in the stream.
        steps: Steps in the bucket, at least as many as in the stream.

    Returns:
        The padded stream, as NumPy arrays.
    """
    records = np.zeros(length, np.int32)
    records[: len(stream.records)] = stream.records
    trips = count_trips(stream, loops, steps)
    return Stream(records, trips, np.int32(stream.num_steps))


def _slot_table(slices: Sequence[tuple[int, ...]]) -> np.ndarray:
    """Returns the sets of slots as masks; ``[sets, highest slot + 1] bool``."""
    length = max(max(each, default=-1) + 1 for each in slices)
    table = np.zeros((len(slices), length), np.bool_)
    for own, slots in zip(table, slices, strict=True):
        own[list(slots)] = True
    return table


def _loops_of(
    types: TypeTable, codes: np.ndarray, slices: tuple[tuple[int, ...], ...]
) -> tuple[Loop, ...]:
    """Returns the loops of some codes, each created once per type table."""
    known: dict[int, Loop] = types.derived(("loops", slices), dict)
    return tuple([known.get(k) or _add_loop(known, k, slices) for k in codes.tolist()])


def _add_loop(
    known: dict[int, Loop], code: int, slices: tuple[tuple[int, ...], ...]
) -> Loop:
    own_slices = slices[code >> _WIDTH_BITS & _RANKS]
    loop = Loop(code >> _TYPE_SHIFT, _WIDEST - (code & _WIDEST), own_slices)
    return known.setdefault(code, loop)


def _places(own: tuple[Loop, ...], loops: tuple[Loop, ...]) -> np.ndarray:
    """Returns the positions of the loops ``own`` in ``loops``; ``[P] int32``."""
    place = {loop: k for k, loop in enumerate(loops)}
    return np.array([place[loop] for loop in own], np.int32)


class _Chunks(NamedTuple):
    """``C`` chunks of ``N`` nodes in ``S`` batches."""

    order: np.ndarray  # [N] int32, the nodes in the order in which they run
    batch_start: np.ndarray  # [S + 1] int32, the first position of each batch
    first: np.ndarray  # [C] int32, the first position of each chunk, ascending
    size: np.ndarray  # [C] int32, number of nodes in each chunk
    width: np.ndarray  # [C] int32, number of rows in each chunk
    slices: np.ndarray  # [C] int32, rank of each chunk's set of sliced slots


@kernel
def _encode(
    chunks, num_operands, num_externals, num_outputs, has_member, sliced, member,
    value_row, nodes,
):  # fmt: skip
    """Returns loop codes, length in integers, records and the loop of each record.

    The records are empty if they have more integers than int32 can count.
    """
    counts = num_operands, num_externals, num_outputs
    codes, chunk_loop, starts, length = _find_loops(
        chunks, nodes.node_type, *counts, has_member, sliced
    )
    written = length if length < _MOST else 0
    if written == 0:
        return codes, length, np.empty(0, np.int32), chunk_loop
    records, ran = _write(
        chunks, chunk_loop, starts, has_member, member, value_row, nodes, written
    )
    return codes, length, records, ran


@kernel
def _find_loops(
    chunks, node_type, num_operands, num_externals, num_outputs, has_member, sliced
):
    """Returns the codes of loops in use, ascending, and the loop of each chunk.

    A code combines a type, the rank of its sliced slots (a row of ``sliced``) and the
    greatest width minus the loop's width, so codes sort in the order of `order_loops`.
    Also returns the start of each field in each loop's records, as `field_starts` does,
    and the number of integers in all records.
    """
    count = len(chunks.first)
    code = np.empty(count, np.int64)
    for c in range(count):
        t = np.int64(node_type[chunks.order[chunks.first[c]]])
        rank = np.int64(chunks.slices[c])
        distance = _WIDEST - np.int64(chunks.width[c])
        code[c] = t << _TYPE_SHIFT | rank << _WIDTH_BITS | distance
    used, chunk_loop = distinct(code)
    fields = 0
    for each in used:
        t = each >> _TYPE_SHIFT
        own = num_outputs[t] + num_externals[t] + num_operands[t] + 1
        fields = max(fields, own + has_member[t])
    starts = np.empty((len(used), fields + 1), np.int64)
    for p in range(len(used)):
        t = used[p] >> _TYPE_SHIFT
        width = _WIDEST - (used[p] & _WIDEST)
        own_slices = sliced[used[p] >> _WIDTH_BITS & _RANKS]
        scalars = num_outputs[t] + 1 + has_member[t]
        first_operand = scalars + num_externals[t]
        last = first_operand + num_operands[t]
        at = 0
        for field in range(fields + 1):
            starts[p, field] = at
            if field >= last:
                continue
            slot = field - first_operand
            is_slice = 0 <= slot < len(own_slices) and own_slices[slot]
            at += 1 if field < scalars or is_slice else width
    length = 0
    for c in range(count):
        length += starts[chunk_loop[c], fields]
    return used, chunk_loop, starts, length


@kernel
def _by_loop(chunks, chunk_loop):
    """Returns the chunks in the order in which they run: by batch, then by loop."""
    ran = np.arange(len(chunk_loop)).astype(np.int32)
    batch = 0
    begin = 0  # the first chunk of the batch
    for c in range(len(chunk_loop)):
        while chunks.first[c] >= chunks.batch_start[batch + 1]:
            batch += 1
            begin = c
        place = c
        while place > begin and chunk_loop[ran[place - 1]] > chunk_loop[c]:
            ran[place] = ran[place - 1]
            place -= 1
        ran[place] = c
    return ran


@kernel
def _write(chunks, chunk_loop, starts, has_member, member, value_row, nodes, length):
    """Writes the records; also returns the loop of each record."""
    operand_start, operands = nodes.operand_start, nodes.operands
    external_start, external_rows = nodes.external_start, nodes.external_rows
    value_start, order = nodes.value_start, chunks.order
    stream = np.empty(length, np.int32)
    ran = _by_loop(chunks, chunk_loop)
    at = 0
    for c in ran:
        fields = at + starts[chunk_loop[c]]
        first = chunks.first[c]
        size = chunks.size[c]
        node = order[first]
        field = 0
        for value in range(value_start[node], value_start[node + 1]):
            stream[fields[field]] = value_row[value]
            field += 1
        stream[fields[field]] = size
        field += 1
        if has_member[nodes.node_type[node]]:
            stream[fields[field]] = member[node]
            field += 1
        for slot in range(external_start[node + 1] - external_start[node]):
            for k in range(fields[field + 1] - fields[field]):
                v = order[first + min(k, size - 1)]
                # Pool rows count from 1; a missing one (-1) becomes row 0.
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
    return stream, chunk_loop[ran]


@kernel
def _fill_trips(chunk_loop, places, trips):
    step = -1
    last = trips.shape[1]
    for each in chunk_loop:
        loop = places[each]
        if loop < last:
            step += 1
        last = loop
        trips[step, loop] += 1
