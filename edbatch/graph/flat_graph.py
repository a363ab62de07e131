"""Graphs as one array of integers each, so that many are joined in one pass.

A minibatch of cached recordings has dozens of graphs with a handful of arrays each. The
overhead of Python and NumPy per array exceeds the cost of joining, and so does the cost
of memory access: the recordings of a data set are scattered in memory, and for each
array the processor has to wait for two locations.

The array of a graph begins with eight counts: nodes, operands, external rows, values,
instances, array kinds of external inputs, columns and lists of the outputs. Then come,
for each of these array kinds, its number, the rows of its pool, and how many 32-bit
words of a row are in the array; the length of each column and of each list; the types
of nodes, operands, external rows, nodes of each instance, columns and lists themselves;
and the words of the pools. Only pools of small rows are included (`words_of_row`), such
as word ids.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from edbatch.graph.node_type import Aval
from edbatch.kernel import kernel

_COUNTS = 8
_MOST_VALUES = np.iinfo(np.int32).max
_MOST_WORDS = 4  # of a row: copying more costs more than reading another array


class Joined(NamedTuple):
    """Concatenated graphs: ``N`` nodes, ``B`` instances, ``K`` array kinds.

    Attributes:
        node_type: As in `DataflowGraph`.
        operands: As in `DataflowGraph`.
        external_rows: As in `DataflowGraph`.
        instance_nodes: As in `DataflowGraph`.
        starts: First operand slot, external slot and value of each node, and the end.
        operand_node: Node that each operand slot reads, negative where there is none.
        parts: Columns and then lists of the outputs, concatenated.
        part_start: First element of each column and list, and the end.
        num_values: Number of values, possibly more than int32 can count.
        pool_rows: Number of external inputs of each kind, possibly more than int32 can
            count; 0 if its pools are empty, -1 if there is no pool of the kind.
        words: The words of the pools that are in the arrays, concatenated.
        word_start: First word of each kind, and the end.
    """

    node_type: np.ndarray  # [N] int32
    operands: np.ndarray  # [E] int32
    external_rows: np.ndarray  # [X] int32
    instance_nodes: np.ndarray  # [B] int32
    starts: tuple[np.ndarray, np.ndarray, np.ndarray]  # [N + 1] int32
    operand_node: np.ndarray  # [E] int32
    parts: np.ndarray  # [all parts] int32
    part_start: np.ndarray  # [parts + 1] int64
    num_values: int
    pool_rows: np.ndarray  # [K] int64
    words: np.ndarray  # [words] int32
    word_start: np.ndarray  # [K + 1] int64


def words_of_row(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Returns the number of 32-bit words of a pool row in the array of a graph.

    Args:
        shape: Shape of a row.
        dtype: Dtype of a row.

    Returns:
        The words; 0 if pools of this kind are kept separately.
    """
    words = math.prod(shape)
    return words if dtype.itemsize == 4 and words <= _MOST_WORDS else 0


def flatten(
    nodes: Sequence[np.ndarray],
    num_values: int,
    pools: Mapping[int, np.ndarray],
    avals: Mapping[int, Aval],
    columns: Sequence[np.ndarray],
    lengths: Sequence[np.ndarray],
) -> np.ndarray:
    """Writes the integers of a graph into one array.

    Args:
        nodes: Types of nodes, operands, external rows and nodes of each instance, as in
            `DataflowGraph`.
        num_values: Number of values.
        pools: External inputs by array kind.
        avals: Shape and dtype of a row of each pool.
        columns: Columns of the outputs.
        lengths: Lengths of the outputs' lists.

    Returns:
        The array, ``[n] int32``.
    """
    num_nodes, num_operands, num_rows, num_instances = map(len, nodes)
    head = [num_nodes, num_operands, num_rows, num_values, num_instances]
    head += len(pools), len(columns), len(lengths)
    words = []
    for kind, pool in pools.items():
        aval = avals[kind]
        own = words_of_row(aval.shape, aval.dtype) if pool.dtype == aval.dtype else 0
        head += kind, len(pool), own
        if own:
            words.append(np.ascontiguousarray(pool).reshape(-1).view(np.int32))
    parts = (*columns, *lengths)
    head += map(len, parts)
    return np.concatenate(
        [np.array(head, np.int32), *nodes, *parts, *words], dtype=np.int32
    )


def join_flat(
    flat: np.ndarray,
    count: int,
    num_kinds: int,
    part_kind: np.ndarray,
    num_operands: np.ndarray,
    num_externals: np.ndarray,
    num_outputs: np.ndarray,
    external_slots: tuple[np.ndarray, np.ndarray],
) -> Joined:
    """Joins graphs whose outputs have the same structure.

    Args:
        flat: The graphs' arrays, concatenated; ``[n] int32``.
        count: Number of graphs; at least one.
        num_kinds: Array kinds of the model, K.
        part_kind: For each column and list of the outputs: -1 for values, -2 for
            lengths, otherwise the array kind of its pool rows; ``[parts] int64``.
        num_operands: Operands of each type; ``[T] int32``.
        num_externals: External slots of each type; ``[T] int32``.
        num_outputs: Outputs of each type; ``[T] int32``.
        external_slots: First external slot of each type, and the array kind of each
            slot.

    Returns:
        The joined graphs, renumbered.
    """
    counts = num_operands, num_externals, num_outputs
    return Joined(*_join(flat, count, num_kinds, part_kind, *counts, *external_slots))


@kernel
def _join(
    flat, count, num_kinds, part_kind, num_operands, num_externals, num_outputs,
    slot_start, slot_kind,
):  # fmt: skip
    """Returns the fields of a `Joined`; the arguments are those of `join_flat`."""
    num_parts = len(part_kind)
    totals, part_start, word_start = _count(flat, count, num_parts, num_kinds)
    node_type = np.empty(totals[0], np.int32)
    operands = np.empty(totals[1], np.int32)
    external_rows = np.empty(totals[2], np.int32)
    instance_nodes = np.empty(totals[4], np.int32)
    # The caller rejects more values than int32 can count.
    value_node = np.empty(min(totals[3], _MOST_VALUES), np.int32)
    operand_node = np.empty(totals[1], np.int32)
    operand_start = np.zeros(totals[0] + 1, np.int32)
    external_start = np.zeros(totals[0] + 1, np.int32)
    value_start = np.zeros(totals[0] + 1, np.int32)
    parts = np.empty(part_start[num_parts], np.int32)
    pool_words = np.empty(word_start[num_kinds], np.int32)
    word_at = word_start[:num_kinds].copy()
    pool_rows = np.full(num_kinds, -1, np.int64)
    first_row = np.zeros(num_kinds, np.int64)
    part_at = part_start[:num_parts].copy()
    first_value = np.int64(0)
    node = operand = row = instance = values = 0
    at = 0
    for _ in range(count):
        head = at
        lengths = at + _COUNTS + 3 * flat[head + 5]
        own_types = lengths + num_parts
        own_operands = own_types + flat[head]
        own_rows = own_operands + flat[head + 1]
        own_instances = own_rows + flat[head + 2]
        at = own_instances + flat[head + 4]
        e = own_operands
        x = own_rows
        for v in range(own_types, own_operands):
            t = flat[v]
            node_type[node] = t
            for _ in range(num_operands[t]):
                value = flat[e]
                if value >= 0:
                    value += first_value
                    operand_node[operand] = value_node[value]
                else:
                    operand_node[operand] = value
                operands[operand] = value
                e += 1
                operand += 1
            for slot in range(slot_start[t], slot_start[t] + num_externals[t]):
                own = flat[x]
                shifted = own + first_row[slot_kind[slot]] if own >= 0 else own
                external_rows[row] = shifted
                x += 1
                row += 1
            for _ in range(num_outputs[t]):
                if values < len(value_node):
                    value_node[values] = node
                values += 1
            node += 1
            operand_start[node] = operand
            external_start[node] = row
            value_start[node] = values
        for place in range(own_instances, at):
            instance_nodes[instance] = flat[place]
            instance += 1
        at = _copy_parts(
            flat, at, lengths, part_kind, first_value, first_row, parts, part_at
        )
        first_value += flat[head + 3]
        at = _copy_words(
            flat, at, head, lengths, first_row, pool_rows, pool_words, word_at
        )
    return (
        node_type,
        operands,
        external_rows,
        instance_nodes,
        (operand_start, external_start, value_start),
        operand_node,
        parts,
        part_start,
        first_value,
        pool_rows,
        pool_words,
        word_start,
    )


@kernel
def _count(flat, count, num_parts, num_kinds):
    """Returns the sums of all counts, and where parts and words of pools start."""
    totals = np.zeros(_COUNTS, np.int64)
    part_start = np.zeros(num_parts + 1, np.int64)
    word_start = np.zeros(num_kinds + 1, np.int64)
    at = 0
    for _ in range(count):
        size = at + _COUNTS + 3 * flat[at + 5]
        own = np.int64(0)
        for part in range(num_parts):
            part_start[part + 1] += flat[size + part]
            own += flat[size + part]
        for k in range(_COUNTS):
            totals[k] += flat[at + k]
        own += flat[at] + flat[at + 1] + flat[at + 2] + flat[at + 4]
        for place in range(at + _COUNTS, size, 3):
            words = np.int64(flat[place + 1]) * flat[place + 2]
            word_start[flat[place] + 1] += words
            own += words
        at = size + num_parts + own
    for part in range(num_parts):
        part_start[part + 1] += part_start[part]
    for kind in range(num_kinds):
        word_start[kind + 1] += word_start[kind]
    return totals, part_start, word_start


@kernel
def _copy_parts(flat, at, lengths, part_kind, first_value, first_row, parts, part_at):
    """Appends a graph's columns and lists, renumbered; returns where they end."""
    for part in range(len(part_kind)):
        shift = np.int64(0)
        if part_kind[part] == -1:
            shift = first_value
        elif part_kind[part] >= 0:
            shift = first_row[part_kind[part]]
        for place in range(at, at + flat[lengths + part]):
            parts[part_at[part]] = flat[place] + shift
            part_at[part] += 1
        at += flat[lengths + part]
    return at


@kernel
def _copy_words(flat, at, head, lengths, first_row, pool_rows, words, word_at):
    """Appends a graph's pool words and counts its pool rows; returns their end."""
    for place in range(head + _COUNTS, lengths, 3):
        kind = flat[place]
        first_row[kind] += flat[place + 1]
        pool_rows[kind] = first_row[kind]
        for _ in range(np.int64(flat[place + 1]) * flat[place + 2]):
            words[word_at[kind]] = flat[at]
            word_at[kind] += 1
            at += 1
    return at
