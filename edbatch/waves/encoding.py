"""Encodes a scheduled wave as the stream of integers that its program reads.

The host has a fraction of a millisecond for a wave, so this is one pass over its
batches in compiled code, instead of `edbatch.memory_planner` and
`edbatch.stream.encode`: batches are cut into chunks, outputs take the next rows of
their arenas, and operands are gathered. The records have the format of
`edbatch.stream.format`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from edbatch.graph.node_type import NodeType
from edbatch.kernel import kernel
from edbatch.memory_planner.sizes import Widths, cut_tables
from edbatch.stream.format import field_starts, record_formats
from edbatch.stream.loop import Loop
from edbatch.waves.wave_nodes import WaveNodes

NO_ROOM = -2  # returned in place of a node


class LoopTables(NamedTuple):
    """Look-up tables for encoding waves of a program with ``P`` loops and ``T`` types.

    Attributes:
        known: Whether a type has loops.
        cut: Width of the first chunk, by type and number of remaining rows.
        loop: Position of the loop, by type and width; -1 where there is none.
        width: Rows of a chunk of each loop.
        starts: Start of each field in each loop's records, and the records' length.
        output_start: First output slot of each type, and the end.
        output_kind: Array kind of each output slot of all types.
        member: Family member whose parameters a type reads; -1 if it has no family.
    """

    known: np.ndarray  # [T] bool
    cut: np.ndarray  # [T, L + 1] int32
    loop: np.ndarray  # [T, W + 1] int32
    width: np.ndarray  # [P] int32
    starts: np.ndarray  # [P, F + 1] int64
    output_start: np.ndarray  # [T + 1] int32
    output_kind: np.ndarray  # [O] int32
    member: np.ndarray  # [T] int32


class ValueRows(NamedTuple):
    """Arena rows of ``V`` values of ``K`` array kinds; encoding a wave updates them.

    Attributes:
        first_value: Number of the first value.
        row: Row of each value; a wave's rows are written before they are read.
        kind_of: Array kind of each value; a wave's kinds are written.
        next_row: Next free row by array kind; updated.
    """

    first_value: int
    row: np.ndarray  # [V] int32
    kind_of: np.ndarray  # [V] int32
    next_row: np.ndarray  # [K] int64


class WaveChunks(NamedTuple):
    """The ``C`` chunks of a wave, in the order of their records.

    Attributes:
        first: Position of each chunk's first node in the schedule's order.
        size: Nodes in each chunk.
        loop: Position of each chunk's loop.
        length: Integers of all records.
        steps: Passes over the loops.
        rows: Rows that the chunks compute, padding included.
    """

    first: np.ndarray  # [C] int32
    size: np.ndarray  # [C] int32
    loop: np.ndarray  # [C] int32
    length: int
    steps: int
    rows: int


def loop_tables(
    types: Sequence[NodeType],
    run_as: tuple[np.ndarray, np.ndarray],
    loops: Sequence[Loop],
    overhead: float,
) -> LoopTables:
    """Makes the tables of a program.

    Args:
        types: All types that run, by their ids.
        run_as: For each recorded type, the type that runs in its place and the family
            member whose parameters it reads; see `HoistedTypes.run_as`.
        loops: The program's loops, in order.
        overhead: Cost of running one more chunk, in rows.

    Returns:
        The tables.
    """
    widths: dict[int, Widths] = {}
    for each in loops:
        widths[each.type_id] = tuple(
            sorted((*widths.get(each.type_id, ()), each.width))
        )
    places, member = run_as
    lists = tuple(widths.get(t, (1,)) for t in places.tolist())
    outputs = [types[t].output_kinds for t in places.tolist()]
    loop = np.full((len(places), 1 + max(each[-1] for each in lists)), -1, np.int32)
    for place, each in enumerate(loops):
        loop[places == each.type_id, each.width] = place
    return LoopTables(
        np.array([t in widths for t in places.tolist()], np.bool_),
        _same_length(lists, overhead),
        loop,
        np.array([each.width for each in loops], np.int32),
        field_starts(record_formats(types, loops)),
        np.cumsum([0, *map(len, outputs)], dtype=np.int32),
        np.array([kind for each in outputs for kind in each], np.int32),
        member,
    )


def _same_length(lists: tuple[Widths, ...], overhead: float) -> np.ndarray:
    """Tables of cuts, padded to one length with each type's largest width."""
    known = {each: cut_tables((each,), overhead)[0] for each in set(lists)}
    tables = [known[each] for each in lists]
    length = max(map(len, tables))
    rows = [np.pad(each, (0, length - len(each)), mode="edge") for each in tables]
    return np.stack(rows).astype(np.int32)


@kernel(nogil=False)
def cut_batches(
    batch_start: np.ndarray, batch_type: np.ndarray, tables: LoopTables
) -> WaveChunks:
    """Cuts the batches of a schedule into chunks, in compiled code.

    Args:
        batch_start: First position of each batch, and the end; ``[S + 1] int32``.
        batch_type: Type of each batch; ``[S] int32``. All types have loops.
        tables: The program's tables.

    Returns:
        The chunks.
    """
    most = batch_start[-1] if len(batch_type) else 0
    first = np.empty(most, np.int32)
    size = np.empty(most, np.int32)
    loop = np.empty(most, np.int32)
    limit = tables.cut.shape[1] - 1
    count = 0
    length = 0
    steps = 0
    computed = 0
    last = tables.starts.shape[0]
    for b in range(len(batch_type)):
        t = batch_type[b]
        at = batch_start[b]
        while at < batch_start[b + 1]:
            rows = batch_start[b + 1] - at
            width = tables.cut[t, min(rows, limit)]
            place = tables.loop[t, width]
            first[count] = at
            size[count] = min(rows, width)
            loop[count] = place
            length += tables.starts[place, -1]
            computed += width
            if place < last:
                steps += 1
            last = place
            at += size[count]
            count += 1
    return WaveChunks(
        first[:count], size[:count], loop[:count], length, steps, computed
    )


@kernel(nogil=False)
def write_wave(
    chunks: WaveChunks,
    order: np.ndarray,
    nodes: WaveNodes,
    tables: LoopTables,
    values: ValueRows,
    records: np.ndarray,
    trips: np.ndarray,
) -> int:
    """Assigns a row to each value and writes the records, in compiled code.

    Args:
        chunks: The chunks.
        order: The schedule's order, of all or some nodes; ``[n] int32``.
        nodes: The nodes.
        tables: The program's tables.
        values: The rows of values; those of the wave are written.
        records: Output; at least `WaveChunks.length` integers.
        trips: Output; ``[steps or more, P] int32``, zeros before.

    Returns:
        A node that reads a value which has not been computed before, or whose own
        values are no longer in use; -1 if there is none.
    """
    first_value, row, kind_of, next_row = values
    unready = -1
    at = 0
    step = -1
    last = trips.shape[1]
    for c in range(len(chunks.loop)):
        place = chunks.loop[c]
        if place < last:
            step += 1
        last = place
        trips[step, place] += 1
        begin = chunks.first[c]
        size = chunks.size[c]
        node = order[begin]
        t = nodes.node_type[node]
        width = tables.width[place]
        fields = tables.starts[place]
        field = 0
        for slot in range(tables.output_start[t + 1] - tables.output_start[t]):
            kind = tables.output_kind[tables.output_start[t] + slot]
            start = next_row[kind]
            next_row[kind] += _rows_taken(tables, t, slot, size, width)
            records[at + fields[field]] = start
            field += 1
            for k in range(size):
                value = nodes.first_value[order[begin + k]] + slot - first_value
                if value < 0:  # it is no longer in use, and not in the table
                    return node
                row[value] = start + k
                kind_of[value] = kind
        records[at + fields[field]] = size
        field += 1
        if tables.member[t] >= 0:
            records[at + fields[field]] = tables.member[t]
            field += 1
        for slot in range(nodes.external_start[node + 1] - nodes.external_start[node]):
            for k in range(width):
                v = order[begin + min(k, size - 1)]
                found = nodes.external_rows[nodes.external_start[v] + slot]
                records[at + fields[field] + k] = found + 1
            field += 1
        for slot in range(nodes.operand_start[node + 1] - nodes.operand_start[node]):
            for k in range(width):
                v = order[begin + min(k, size - 1)]
                value = nodes.operands[nodes.operand_start[v] + slot]
                found = 0
                if value >= 0:
                    found = row[value - first_value] if value >= first_value else -1
                if found < 0:
                    unready = v
                records[at + fields[field] + k] = found
            field += 1
        at += fields[-1]
    return unready


@kernel(nogil=False)
def rows_needed(
    chunks: WaveChunks,
    order: np.ndarray,
    nodes: WaveNodes,
    tables: LoopTables,
    next_row: np.ndarray,
) -> np.ndarray:
    """Returns the rows that arenas need for a wave, in compiled code.

    Args:
        chunks: The chunks.
        order: The schedule's order, of all or some nodes; ``[n] int32``.
        nodes: The nodes.
        tables: The program's tables.
        next_row: Next free row by array kind; ``[K] int64``.

    Returns:
        Rows by array kind, including the padding rows of the last chunks; 0 where the
        wave writes none. ``[K] int64``.
    """
    end = next_row.copy()
    needed = np.zeros_like(next_row)
    for c in range(len(chunks.loop)):
        t = nodes.node_type[order[chunks.first[c]]]
        width = tables.width[chunks.loop[c]]
        for slot in range(tables.output_start[t + 1] - tables.output_start[t]):
            kind = tables.output_kind[tables.output_start[t] + slot]
            needed[kind] = max(needed[kind], end[kind] + width)
            end[kind] += _rows_taken(tables, t, slot, chunks.size[c], width)
    return needed


@kernel(nogil=False)
def write_if_fits(
    batch_start: np.ndarray,
    batch_type: np.ndarray,
    order: np.ndarray,
    nodes: WaveNodes,
    tables: LoopTables,
    values: tuple[int, np.ndarray, np.ndarray, np.ndarray],
    arena_rows: np.ndarray,
    records: np.ndarray,
    trips: np.ndarray,
) -> tuple[int, int, int, int]:
    """Cuts and writes a wave if a program has room for it, in one compiled call.

    Args:
        batch_start: As for `cut_batches`.
        batch_type: As for `cut_batches`.
        order: As for `write_wave`.
        nodes: As for `write_wave`.
        tables: The program's tables.
        values: The fields of `ValueRows`; passing the tuple itself takes 1.6 µs more.
        arena_rows: Rows of the program's arenas, by array kind; ``[K] int64``.
        records: As for `write_wave`.
        trips: As for `write_wave`.

    Returns:
        The result of `write_wave`, or `NO_ROOM` if nothing was written; and the numbers
        of chunks, steps and computed rows.
    """
    chunks = cut_batches(batch_start, batch_type, tables)
    count, steps, rows = len(chunks.loop), chunks.steps, chunks.rows
    if chunks.length > len(records) or chunks.steps > len(trips):
        return NO_ROOM, count, steps, rows
    own = ValueRows(values[0], values[1], values[2], values[3])
    needed = rows_needed(chunks, order, nodes, tables, own.next_row)
    for kind in range(len(needed)):
        if needed[kind] > (arena_rows[kind] if kind < len(arena_rows) else 0):
            return NO_ROOM, count, steps, rows
    unready = write_wave(chunks, order, nodes, tables, own, records, trips)
    return unready, count, steps, rows


@kernel(nogil=False)
def _rows_taken(tables, t, slot, size, width):
    """Rows that an output of a chunk takes.

    They include padding if another output of the chunk follows in the same arena:
    coarse programs run a chunk in parts, and the last part's padding would overwrite
    the first part's rows of that output.
    """
    first, last = tables.output_start[t], tables.output_start[t + 1]
    for other in range(first + slot + 1, last):
        if tables.output_kind[other] == tables.output_kind[first + slot]:
            return width
    return size
