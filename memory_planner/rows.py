"""The rows of arenas: where the blocks of batches lie, and what is read in place.

The values that a batch writes as one output form a *block* of consecutive rows, in the
batch's own order. A type may have several outputs of one array kind. The first of them
form one *lane* of the kind's arena, the second ones the next lane. Blocks have the same
order in all lanes, so what is read across the border of two blocks is one slice for a
cell's first output (h, say) and for its second (c) alike.

A chunk writes as many rows as it is wide. Rows of padding that it writes may belong to
blocks behind its own if these are written later; else a gap is left.
"""

import numpy as np
from numba import njit

from edbatch.graph.type_table import TypeTable

NO_LANE = -1


def lane_tables(types: TypeTable) -> tuple[np.ndarray, np.ndarray]:
    """Finds the lanes of a model with ``T`` types.

    Args:
        types: The types.

    Returns:
        The array kind of each of ``L`` lanes, ascending, ``[L] int32``; and the output
        that a type has in each lane, or `NO_LANE`, ``[T, L] int32``.
    """
    found: dict[tuple[int, int], dict[int, int]] = {}
    for t, node_type in enumerate(types.types):
        met: dict[int, int] = {}
        for leaf, kind in enumerate(node_type.output_kinds):
            lane = met.get(kind, 0)
            met[kind] = lane + 1
            found.setdefault((kind, lane), {})[t] = leaf
    lanes = sorted(found)
    lane_leaf = np.full((len(types), len(lanes)), NO_LANE, np.int32)
    for column, each in enumerate(lanes):
        for t, leaf in found[each].items():
            lane_leaf[t, column] = leaf
    return np.array([kind for kind, _ in lanes], np.int32), lane_leaf


def slot_tables(types: TypeTable) -> tuple[np.ndarray, np.ndarray]:
    """Describes the operand slots of a model with ``T`` types.

    Args:
        types: The types.

    Returns:
        Bytes of a row that can be read in a slice, ``[T, most slots] int64``: 0 for the
        slots of padded lists, which are stacked and therefore gathered, and for those
        that a type does not have; and the array kind, ``[T, most slots] int32``.
    """
    most = max((len(each.operand_kinds) for each in types.types), default=0)
    slot_bytes = np.zeros((len(types), most), np.int64)
    slot_kind = np.zeros((len(types), most), np.int32)
    for t, node_type in enumerate(types.types):
        slot_kind[t, : len(node_type.operand_kinds)] = node_type.operand_kinds
        for group in node_type.template.operands:
            if not group.stacked:
                slot = group.slots[0]
                kind = node_type.operand_kinds[slot]
                slot_bytes[t, slot] = types.avals[kind].num_bytes
    return slot_bytes, slot_kind


@njit(cache=True, nogil=True)
def place_blocks(
    block_order: np.ndarray,
    tight: bool,
    order: np.ndarray,
    batch_start: np.ndarray,
    batch_type: np.ndarray,
    batch_rows: np.ndarray,
    value_start: np.ndarray,
    lane_kind: np.ndarray,
    lane_leaf: np.ndarray,
    num_kinds: int,
    num_values: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Gives each value its row.

    Args:
        block_order: Batches in the order of their blocks, ``[S]``.
        tight: Whether rows of padding may belong to other blocks as well.
        order: Nodes in the order in which they run, ``[N]``.
        batch_start: First position in ``order`` of each batch, and the end.
        batch_type: Type of each batch.
        batch_rows: Rows that the chunks of each batch write, ``[S]``.
        value_start: First value of each node, and the end.
        lane_kind: As from `lane_tables`.
        lane_leaf: As from `lane_tables`.
        num_kinds: Number of array kinds, K.
        num_values: Number of values, V.

    Returns:
        Row of each value, ``[V] int32``, and rows of each arena, ``[K] int64``.
    """
    value_row = np.zeros(num_values, np.int32)
    arena_rows = np.ones(num_kinds, np.int64)  # row 0 stays zero
    # Blocks whose padding reaches behind them: where it ends, and when it is written.
    end = np.empty(len(block_order), np.int64)
    written = np.empty(len(block_order), np.int32)
    for lane in range(len(lane_kind)):
        at = top = arena_rows[lane_kind[lane]]
        count = 0
        for b in block_order:
            leaf = lane_leaf[batch_type[b], lane]
            if leaf == NO_LANE:
                continue
            latest = -1
            kept = 0
            for k in range(count):
                if end[k] > at:
                    end[kept] = end[k]
                    written[kept] = written[k]
                    latest = max(latest, written[k])
                    kept += 1
            if not tight or latest > b:
                at = top
                kept = 0
            for place in range(batch_start[b], batch_start[b + 1]):
                row = at + place - batch_start[b]
                value_row[value_start[order[place]] + leaf] = row
            end[kept] = at + batch_rows[b]
            written[kept] = b
            count = kept + 1
            top = max(top, end[kept])
            at += batch_start[b + 1] - batch_start[b]
        arena_rows[lane_kind[lane]] = top
    return value_row, arena_rows


@njit(cache=True, nogil=True)
def find_in_place(
    order: np.ndarray,
    chunk_start: np.ndarray,
    chunk_size: np.ndarray,
    chunk_width: np.ndarray,
    node_type: np.ndarray,
    operand_start: np.ndarray,
    operands: np.ndarray,
    value_row: np.ndarray,
    slot_bytes: np.ndarray,
    slot_kind: np.ndarray,
    arena_rows: np.ndarray,
) -> tuple[np.ndarray, int]:
    """Finds the operands that are slices.

    Args:
        order: Nodes in the order in which they run, ``[N]``.
        chunk_start: First position in ``order`` of each chunk, ``[C]``.
        chunk_size: Nodes in each chunk.
        chunk_width: Rows that each chunk computes.
        node_type: Type of each node.
        operand_start: First operand slot of each node, and the end.
        operands: Value in each operand slot, or `MISSING`.
        value_row: Row of each value.
        slot_bytes: As from `slot_tables`.
        slot_kind: As from `slot_tables`.
        arena_rows: Rows of each arena; raised where a slice of full width needs more.

    Returns:
        Whether a chunk reads a slot in place, ``[C, most slots] bool``; and how many
        bytes all nodes together read so.
    """
    in_place = np.zeros((len(chunk_start), slot_bytes.shape[1]), np.bool_)
    num_bytes = 0
    for c in range(len(chunk_start)):
        first = chunk_start[c]
        size = chunk_size[c]
        node = order[first]
        t = node_type[node]
        for slot in range(operand_start[node + 1] - operand_start[node]):
            if slot_bytes[t, slot] == 0:
                continue
            value = operands[operand_start[node] + slot]
            row = value_row[value] if value >= 0 else -1
            same = row >= 0
            lane = 1
            while same and lane < size:
                value = operands[operand_start[order[first + lane]] + slot]
                same = value >= 0 and value_row[value] == row + lane
                lane += 1
            in_place[c, slot] = same
            if same:
                num_bytes += size * slot_bytes[t, slot]
                kind = slot_kind[t, slot]
                arena_rows[kind] = max(arena_rows[kind], row + chunk_width[c])
    return in_place, num_bytes


@njit(cache=True, nogil=True)
def value_lanes(
    node_type: np.ndarray,
    value_start: np.ndarray,
    lane_leaf: np.ndarray,
    num_values: int,
) -> np.ndarray:
    """Finds the lane of each value; ``[V] int32``."""
    lanes = np.empty(num_values, np.int32)
    for v in range(len(node_type)):
        for lane in range(lane_leaf.shape[1]):
            leaf = lane_leaf[node_type[v], lane]
            if leaf != NO_LANE:
                lanes[value_start[v] + leaf] = lane
    return lanes
