"""The layout problem: a graph, its schedule and its chunks, as arrays.

Compiled code takes them as one tuple.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.node_type import Aval, NodeType
from edbatch.kernel import kernel
from edbatch.memory_planner.sizes import Sizes, Widths, cut_tables
from edbatch.schedule.schedule import Schedule

NO_COLUMN = -1


class LayoutProblem(NamedTuple):
    """``N`` nodes of ``T`` types in ``S`` batches and ``C`` chunks.

    The nodes have ``E`` operands and ``V`` values of ``K`` array kinds.

    Attributes:
        order: Nodes in the order of the schedule.
        batch_start: First position in ``order`` of each batch, and the end.
        batch_type: Type of each batch.
        batch_rows: Rows that the chunks of each batch write.
        chunk_start: First position in ``order`` of each chunk.
        chunk_size: Nodes in each chunk.
        chunk_width: Rows that each chunk writes.
        node_type: Type of each node.
        value_start: First value of each node, and the end.
        operand_start: First operand of each node, and the end.
        operands: Value of each operand, or `MISSING`.
        operand_node: Node of each operand; negative where it is missing.
        value_column: Output column of each value.
        column_kind: Array kind of each output column, ascending; see `rows`.
        column_leaf: Index of each type's output in each column, or `NO_COLUMN`.
        slot_bytes: As returned by `slot_tables`.
        slot_kind: As returned by `slot_tables`.
        num_kinds: Number of array kinds, K.
    """

    order: np.ndarray  # [N] int32
    batch_start: np.ndarray  # [S + 1] int32
    batch_type: np.ndarray  # [S] int32
    batch_rows: np.ndarray  # [S] int32
    chunk_start: np.ndarray  # [C] int32
    chunk_size: np.ndarray  # [C] int32
    chunk_width: np.ndarray  # [C] int32
    node_type: np.ndarray  # [N] int32
    value_start: np.ndarray  # [N + 1] int32
    operand_start: np.ndarray  # [N + 1] int32
    operands: np.ndarray  # [E] int32
    operand_node: np.ndarray  # [E] int32
    value_column: np.ndarray  # [V] int32
    column_kind: np.ndarray  # [columns] int32
    column_leaf: np.ndarray  # [T, columns] int32
    slot_bytes: np.ndarray  # [T, most slots] int64
    slot_kind: np.ndarray  # [T, most slots] int32
    num_kinds: int


def make_problem(
    graph: DataflowGraph,
    schedule: Schedule,
    sizes: Sizes,
    widths: tuple[Widths, ...] | None = None,
    overheads: tuple[float, ...] | None = None,
) -> LayoutProblem:
    """Cuts batches into chunks, and collects all the inputs of layout planning.

    Args:
        graph: The graph.
        schedule: Its schedule.
        sizes: Widths of chunks.
        widths: The widths that each type has; all of ``sizes`` if None.
        overheads: Cost of one more chunk of each type, in rows; the overhead of
            ``sizes`` if None.

    Returns:
        The layout problem.
    """
    start, size, width, batch_rows = cut_batches(
        schedule.batch_start,
        schedule.batch_type,
        *cuts_of_types(graph, sizes, widths, overheads),
    )
    column_kind, column_leaf, slot_bytes, slot_kind = layout_tables(graph)
    value_column = _value_columns(
        graph.node_type, graph.value_start, column_leaf, graph.num_values
    )
    return LayoutProblem(
        schedule.order,
        schedule.batch_start,
        schedule.batch_type,
        batch_rows,
        start,
        size,
        width,
        graph.node_type,
        graph.value_start,
        graph.operand_start,
        graph.operands,
        graph.structure.operand_node,
        value_column,
        column_kind,
        column_leaf,
        slot_bytes,
        slot_kind,
        len(graph.types.avals),
    )


def cuts_of_types(
    graph: DataflowGraph,
    sizes: Sizes,
    widths: tuple[Widths, ...] | None = None,
    overheads: tuple[float, ...] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns how the batches of each type are cut into chunks.

    Args:
        graph: A graph of T types.
        sizes: As for `make_problem`.
        widths: As for `make_problem`.
        overheads: As for `make_problem`.

    Returns:
        Tables as returned by `cut_tables`, and the index of each type's table,
        ``[T] int32``.
    """

    def make(types: Sequence[NodeType]) -> tuple[np.ndarray, np.ndarray]:
        count = len(types)
        own = list(
            zip(
                [sizes.widths] * count if widths is None else widths,
                [sizes.chunk_overhead] * count if overheads is None else overheads,
                strict=True,
            )
        )
        # There is a table even without any type: instances may call no cell.
        cuts = tuple(sorted({*own})) or ((sizes.widths, sizes.chunk_overhead),)
        number = np.array([cuts.index(each) for each in own], np.int32)
        return cut_tables(*zip(*cuts, strict=True)), number

    own = sizes.widths, sizes.chunk_overhead
    return graph.derived((cuts_of_types, own, widths, overheads), make)


def layout_tables(
    graph: DataflowGraph,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns the results of `column_tables` and `slot_tables`, computed once."""
    avals = graph.types.avals
    return graph.derived(
        layout_tables,
        lambda types: (*column_tables(types), *slot_tables(types, avals)),
    )


def column_tables(types: Sequence[NodeType]) -> tuple[np.ndarray, np.ndarray]:
    """Finds the output columns of ``T`` types.

    Args:
        types: The types.

    Returns:
        ``column_kind`` and ``column_leaf`` of `LayoutProblem`.
    """
    found: dict[tuple[int, int], dict[int, int]] = {}
    for t, node_type in enumerate(types):
        met: dict[int, int] = {}
        for leaf, kind in enumerate(node_type.output_kinds):
            column = met.get(kind, 0)
            met[kind] = column + 1
            found.setdefault((kind, column), {})[t] = leaf
    columns = sorted(found)
    column_leaf = np.full((len(types), len(columns)), NO_COLUMN, np.int32)
    for column, each in enumerate(columns):
        for t, leaf in found[each].items():
            column_leaf[t, column] = leaf
    return np.array([kind for kind, _ in columns], np.int32), column_leaf


def bytes_per_slot(types: Sequence[NodeType], avals: Sequence[Aval]) -> np.ndarray:
    """Returns the bytes of one row for each operand slot of ``T`` types.

    Args:
        types: The types.
        avals: Shape and dtype of each array kind.

    Returns:
        ``[T, most slots] int64``; 0 for slots that a type does not have.
    """
    most = max((len(each.operand_kinds) for each in types), default=0)
    found = np.zeros((len(types), most), np.int64)
    for row, node_type in zip(found, types, strict=True):
        kinds = node_type.operand_kinds
        row[: len(kinds)] = [avals[kind].num_bytes for kind in kinds]
    return found


def slot_tables(
    types: Sequence[NodeType], avals: Sequence[Aval]
) -> tuple[np.ndarray, np.ndarray]:
    """Describes the operand slots of ``T`` types.

    Args:
        types: The types.
        avals: Shape and dtype of each array kind.

    Returns:
        Bytes of a row that can be read as a slice, ``[T, most slots] int64``: 0 for
        slots of padded lists, which are stacked and therefore gathered, and for slots
        that a type does not have; and the array kind, ``[T, most slots] int32``.
    """
    slot_bytes = bytes_per_slot(types, avals)
    slot_kind = np.zeros(slot_bytes.shape, np.int32)
    for t, node_type in enumerate(types):
        slot_kind[t, : len(node_type.operand_kinds)] = node_type.operand_kinds
        for group in node_type.template.operands:
            if group.stacked:
                slot_bytes[t, list(group.slots)] = 0
    return slot_bytes, slot_kind


@kernel
def _value_columns(node_type, value_start, column_leaf, num_values):
    """Finds the output column of each value; ``[V] int32``."""
    columns = np.empty(num_values, np.int32)
    for v in range(len(node_type)):
        for column in range(column_leaf.shape[1]):
            leaf = column_leaf[node_type[v], column]
            if leaf != NO_COLUMN:
                columns[value_start[v] + leaf] = column
    return columns


@kernel
def cut_batches(
    batch_start: np.ndarray,
    batch_type: np.ndarray,
    tables: np.ndarray,
    table_of_type: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Cuts batches into chunks, in compiled code.

    Args:
        batch_start: First position of each batch, and the end; ``[S + 1] int32``.
        batch_type: Type of each batch; ``[S] int32``.
        tables: As returned by `cuts_of_types`.
        table_of_type: As returned by `cuts_of_types`.

    Returns:
        Start, size and width of each chunk, and the rows that each batch writes.
    """
    num_batches = len(batch_start) - 1
    num_chunks = 0
    for b in range(num_batches):
        rows = batch_start[b + 1] - batch_start[b]
        table = tables[table_of_type[batch_type[b]]]
        while rows > 0:
            rows -= table[min(rows, len(table) - 1)]
            num_chunks += 1
    start = np.empty(num_chunks, np.int32)
    size = np.empty(num_chunks, np.int32)
    width = np.empty(num_chunks, np.int32)
    batch_rows = np.zeros(num_batches, np.int32)
    c = 0
    for b in range(num_batches):
        place = batch_start[b]
        table = tables[table_of_type[batch_type[b]]]
        while place < batch_start[b + 1]:
            rows = batch_start[b + 1] - place
            width[c] = table[min(rows, len(table) - 1)]
            start[c] = place
            size[c] = min(rows, width[c])
            batch_rows[b] += width[c]
            place += size[c]
            c += 1
    return start, size, width, batch_rows
