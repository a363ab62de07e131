"""Nodes of waves as arrays: made from a tape, joined, and selected."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from edbatch.graph.dataflow_graph import slot_starts
from edbatch.graph.tape import Tape
from edbatch.graph.type_table import TypeTable
from edbatch.kernel import kernel

Pools = dict[int, np.ndarray]  # array kind -> external inputs, [rows, ...]


class WaveNodes(NamedTuple):
    """``N`` nodes with their operands and external inputs, for compiled code.

    Attributes:
        node_type: Type of each node.
        operand_start: First operand slot of each node, and the end.
        operands: Number of the value that each operand slot reads, counted over all
            waves; negative if there is none.
        external_start: First external slot of each node, and the end.
        external_rows: Pool row that each external slot reads; negative if there is
            none.
        first_value: Number of each node's first value, counted over all waves;
            ascending.
        owner: The `InstanceRun.number` of each node's instance.
    """

    node_type: np.ndarray  # [N] int32
    operand_start: np.ndarray  # [N + 1] int32
    operands: np.ndarray  # [E] int64
    external_start: np.ndarray  # [N + 1] int32
    external_rows: np.ndarray  # [X] int32
    first_value: np.ndarray  # [N] int64
    owner: np.ndarray  # [N] int32


@dataclass(frozen=True, eq=False)
class RecordedNodes:
    """Nodes and their external inputs.

    Attributes:
        nodes: The nodes.
        pools: Their external inputs, by array kind.
    """

    nodes: WaveNodes
    pools: Pools

    def __len__(self) -> int:
        return len(self.nodes.node_type)


def no_nodes() -> RecordedNodes:
    """Returns an empty set of nodes."""
    none, start = np.zeros(0, np.int32), np.zeros(1, np.int32)
    large = np.zeros(0, np.int64)
    nodes = WaveNodes(none, start, large, start, none, large, none)
    return RecordedNodes(nodes, {})


def nodes_of(tape: Tape, parts: Sequence[tuple[int, int]]) -> RecordedNodes:
    """Makes arrays of the nodes recorded on a tape.

    Args:
        tape: The tape.
        parts: Parts of the tape, in order: the number of an instance, and how many
            nodes it recorded.

    Returns:
        The nodes.
    """
    # A compiled tape's columns are used without a copy: clearing it makes new ones.
    node_type = np.asarray(tape.node_type, np.int32)
    flat = np.fromiter(chain.from_iterable(parts), np.int32, 2 * len(parts))
    operand, external, value, owner = _slots_of(
        node_type, *tape.types.counts, tape.num_values, flat
    )
    nodes = WaveNodes(
        node_type,
        operand,
        np.asarray(tape.operands, np.int64),
        external,
        np.asarray(tape.external_rows, np.int32),
        value,
        owner,
    )
    return RecordedNodes(nodes, tape.pools(parts))


@kernel(nogil=False)
def _slots_of(node_type, num_operands, num_externals, num_outputs, end, parts):
    """First operand slot, external slot and value of each node, and its owner."""
    operand, external, before = slot_starts(
        node_type, num_operands, num_externals, num_outputs
    )
    count = len(node_type)
    value = np.empty(count, np.int64)
    for v in range(count):
        value[v] = before[v] + (end - before[count])
    owner = np.empty(count, np.int32)
    v = 0
    for k in range(0, len(parts), 2):
        owner[v : v + parts[k + 1]] = parts[k]
        v += parts[k + 1]
    return operand, external, value, owner


def join_nodes(parts: Sequence[RecordedNodes], types: TypeTable) -> WaveNodes:
    """Joins nodes that were recorded one after the other.

    Args:
        parts: Nodes.
        types: The model's types.

    Returns:
        All nodes; rows of external inputs are counted over the pools of all parts.
    """
    every = [part.nodes for part in parts]
    node_type = np.concatenate([each.node_type for each in every])
    before = np.zeros((len(parts) + 1, len(types.avals)), np.int32)  # rows of pools
    for k, part in enumerate(parts, start=1):
        for kind, pool in part.pools.items():
            before[k, kind] = len(pool)
    slots = np.cumsum([0, *(len(each.external_rows) for each in every)])
    return WaveNodes(
        node_type,
        _join_starts([each.operand_start for each in every]),
        np.concatenate([each.operands for each in every]),
        _join_starts([each.external_start for each in every]),
        _join_rows(
            np.concatenate([each.external_rows for each in every]),
            external_kinds(node_type, types),
            slots,
            np.cumsum(before, axis=0),
        ),
        np.concatenate([each.first_value for each in every]),
        np.concatenate([each.owner for each in every]),
    )


@kernel(nogil=False)
def _join_rows(rows, kinds, slots, before):
    """Offsets pool rows by the sizes of the preceding parts' pools; changes `rows`."""
    for k in range(len(slots) - 1):
        for e in range(slots[k], slots[k + 1]):
            if rows[e] >= 0:
                rows[e] += before[k, kinds[e]]
    return rows


def _join_starts(starts: Sequence[np.ndarray]) -> np.ndarray:
    sizes = np.diff(np.concatenate(starts))
    # The difference between one part's end and the next part's start is no node.
    inside = np.ones(len(sizes), np.bool_)
    inside[np.cumsum([len(each) for each in starts[:-1]], dtype=np.int64) - 1] = False
    found = np.zeros(inside.sum() + 1, np.int32)
    np.cumsum(sizes[inside], out=found[1:])
    return found


def select_nodes(
    nodes: WaveNodes, kept: np.ndarray, pools: Sequence[Pools], types: TypeTable
) -> RecordedNodes:
    """Takes some of the nodes, and the external inputs that they read.

    Args:
        nodes: Nodes.
        kept: The nodes to take; ``[n] int32``.
        pools: External inputs of all nodes; their rows are counted over all pools.
        types: The model's types.

    Returns:
        The taken nodes and their external inputs.
    """
    operand_start, operands = take_slots(kept, nodes.operand_start, nodes.operands)
    external_start, rows = take_slots(kept, nodes.external_start, nodes.external_rows)
    part = WaveNodes(
        nodes.node_type[kept],
        operand_start,
        operands,
        external_start,
        rows,
        nodes.first_value[kept],
        nodes.owner[kept],
    )
    kinds = external_kinds(part.node_type, types)
    start = np.zeros(len(types.avals) + 1, np.int32)
    of_kind: dict[int, list[np.ndarray]] = {}
    for own in pools:
        for kind, pool in own.items():
            start[kind + 1] += len(pool)
            of_kind.setdefault(kind, []).append(pool)
    read, first = _renumber_rows(rows, kinds, np.cumsum(start))
    return RecordedNodes(
        part,
        {
            kind: _rows_of(found, read[first[kind] : first[kind + 1]])
            for kind, found in of_kind.items()
            if first[kind + 1] > first[kind]
        },
    )


def _rows_of(pools: Sequence[np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Takes ascending rows that are counted over all pools; copies no other rows."""
    begins = np.cumsum([0, *map(len, pools)])
    cuts = np.searchsorted(rows, begins)
    return np.concatenate(
        [
            pool[rows[cuts[k] : cuts[k + 1]] - begins[k]]
            for k, pool in enumerate(pools)
            if cuts[k + 1] > cuts[k]
        ]
    )


@kernel(nogil=False)
def _renumber_rows(rows, kinds, start):
    """Renumbers the rows that are read, separately for each pool; changes `rows`.

    Pools are concatenated, each from its `start` on. Returns the rows that are read,
    ascending and grouped by kind, and the start of each kind.
    """
    is_read = np.zeros(start[-1], np.bool_)
    for e in range(len(rows)):
        if rows[e] >= 0:
            is_read[start[kinds[e]] + rows[e]] = True
    number = np.empty(start[-1], np.int32)
    read = np.empty(start[-1], np.int32)
    first = np.zeros(len(start), np.int32)
    count = 0
    for kind in range(len(start) - 1):
        first[kind] = count
        for place in range(start[kind], start[kind + 1]):
            if is_read[place]:
                number[place] = count - first[kind]
                read[count] = place - start[kind]
                count += 1
    first[-1] = count
    for e in range(len(rows)):
        if rows[e] >= 0:
            rows[e] = number[start[kinds[e]] + rows[e]]
    return read, first


def external_kinds(node_type: np.ndarray, types: TypeTable) -> np.ndarray:
    """Returns the array kind of each external slot of nodes.

    Args:
        node_type: Type of each node; ``[N] int32``.
        types: The model's types.

    Returns:
        ``[X] int32``.
    """
    found: np.ndarray = _kinds_of(node_type, *types.external_kinds)
    return found


@kernel(nogil=False)
def _kinds_of(node_type, starts, kinds):
    count = 0
    for t in node_type:
        count += starts[t + 1] - starts[t]
    found = np.empty(count, np.int32)
    at = 0
    for t in node_type:
        for slot in range(starts[t], starts[t + 1]):
            found[at] = kinds[slot]
            at += 1
    return found


@kernel(nogil=False)
def take_slots(
    chosen: np.ndarray, start: np.ndarray, slots: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Takes the slots of some nodes, in compiled code.

    Args:
        chosen: The nodes; ``[n] int32``.
        start: First slot of each node, and the end; ``[N + 1] int32``.
        slots: Content of each slot; ``[E]``.

    Returns:
        First slot of each chosen node, and the end; and the contents of their slots.
    """
    own = np.zeros(len(chosen) + 1, np.int32)
    for k in range(len(chosen)):
        own[k + 1] = own[k] + start[chosen[k] + 1] - start[chosen[k]]
    found = np.empty(own[-1], slots.dtype)
    for k in range(len(chosen)):
        found[own[k] : own[k + 1]] = slots[start[chosen[k]] : start[chosen[k] + 1]]
    return own, found
