"""Merging recordings into one minibatch, from arrays, with no Python per node."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numba import njit

from edbatch.errors import PlanError
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.node_keys import is_key
from edbatch.graph.output_tree import align, join
from edbatch.graph.type_checks import require_same
from edbatch.graph.type_table import TypeTable

_LIMIT = np.iinfo(np.int32).max


def merge(graphs: Sequence[DataflowGraph]) -> DataflowGraph:
    """Joins graphs of one model into one graph of all their instances.

    Args:
        graphs: At least one recording; the same one may appear several times.

    Returns:
        The graph whose instances are theirs, in order. Linear in nodes, operands and
        bytes of external inputs.

    Raises:
        PlanError: There is no graph, or they belong to different models, or the
            minibatch has more rows than int32 can count.
        RecordingError: Their outputs differ in structure.
    """
    if not graphs:
        raise PlanError(
            "a minibatch needs at least one instance but is empty; leave empty"
            " minibatches out"
        )
    if len(graphs) == 1:
        return graphs[0]
    types = graphs[0].types
    for graph in graphs[1:]:
        require_same(types, graph.types, "a recording")
    outputs = align([each.outputs for each in graphs])
    num_operands, num_externals, _ = types.counts
    node_type = np.concatenate([each.node_type for each in graphs])
    nodes = np.array([each.num_nodes for each in graphs], np.int64)
    values = np.array([each.num_values for each in graphs], np.int64)
    check_rows(int(values.sum()), "values")
    kinds = sorted({kind for each in graphs for kind in each.externals})
    externals, first_row = _merge_externals(graphs, types, kinds)
    operands = np.concatenate([each.operands for each in graphs])
    rows = np.concatenate([each.external_rows for each in graphs])
    first_value = np.concatenate([[0], np.cumsum(values)])
    slot_start, slot_kind = _external_slots(types)
    _shift(
        nodes, node_type, num_operands, num_externals, first_value,
        first_row, slot_start, slot_kind, operands, rows,
    )  # fmt: skip
    return DataflowGraph(
        types=types,
        node_type=node_type,
        operands=operands,
        external_rows=rows,
        externals=externals,
        outputs=join(outputs, first_value[:-1], first_row),
        instance_nodes=np.concatenate([each.instance_nodes for each in graphs]),
        num_values=int(values.sum()),
    )


def at_places(graph: DataflowGraph, places: Sequence[int]) -> DataflowGraph:
    """Gives the instances of a part of a minibatch their keys of the whole.

    Args:
        graph: The graph of some instances of a minibatch.
        places: The place of each of them in the whole minibatch.

    Returns:
        The graph, whose cells draw the random numbers that the whole's would draw.
    """
    externals = dict(graph.externals)
    for kind, pool in externals.items():
        if is_key(graph.types.avals[kind].dtype):
            instance, call = pool.T
            own = np.asarray(places, pool.dtype)[instance]
            externals[kind] = np.stack([own, call], axis=1)
    return replace(graph, externals=externals)


def check_rows(rows: int, what: str) -> None:
    """Checks that a minibatch can be numbered with int32.

    Args:
        rows: How many there are.
        what: What is counted, for the message.

    Raises:
        PlanError: There are more than int32 can count.
    """
    if rows >= _LIMIT:
        raise PlanError(
            f"a minibatch may have at most {_LIMIT:,} {what} (int32) but this one has"
            f" {rows:,}; use smaller minibatches"
        )


def _merge_externals(
    graphs: Sequence[DataflowGraph], types: TypeTable, kinds: list[int]
) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """Joins pools; also returns the first row of each graph and kind."""
    first_row = np.zeros((len(graphs), len(types.avals)), np.int64)
    instances = np.cumsum([0] + [each.num_instances for each in graphs[:-1]])
    first_instance = instances.astype(np.uint32)
    externals = {}
    for kind in kinds:
        pools = [each.externals.get(kind) for each in graphs]
        lengths = [0 if pool is None else len(pool) for pool in pools]
        first_row[1:, kind] = np.cumsum(lengths)[:-1]
        check_rows(sum(lengths), "external inputs")
        externals[kind] = np.concatenate([p for p in pools if p is not None])
        if is_key(types.avals[kind].dtype):
            externals[kind][:, 0] += np.repeat(first_instance, lengths)
    return externals, first_row


def _external_slots(types: TypeTable) -> tuple[np.ndarray, np.ndarray]:
    kinds = [each.external_kinds for each in types.types]
    starts = np.concatenate([[0], np.cumsum([len(each) for each in kinds])])
    flat = np.array([kind for each in kinds for kind in each], np.int64)
    return starts.astype(np.int64), flat


@njit(cache=True, nogil=True)
def _shift(
    nodes, node_type, num_operands, num_externals, first_value,
    first_row, slot_start, slot_kind, operands, rows,
):  # fmt: skip
    """Renumbers operands and external rows of each graph in place."""
    node = 0
    operand = 0
    row = 0
    for graph in range(len(nodes)):
        for _ in range(nodes[graph]):
            t = node_type[node]
            node += 1
            for _ in range(num_operands[t]):
                if operands[operand] >= 0:
                    operands[operand] += first_value[graph]
                operand += 1
            for slot in range(slot_start[t], slot_start[t] + num_externals[t]):
                if rows[row] >= 0:
                    rows[row] += first_row[graph, slot_kind[slot]]
                row += 1
