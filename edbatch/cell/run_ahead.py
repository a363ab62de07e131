"""A scheduled graph in which the products of external inputs run ahead.

Each node whose type is split (see `split_types`) gets one node before it, which reads
the external inputs and gives what the rest of the cell needs of them. These run first,
one batch per type, in the order in which the schedule runs the nodes that read them: so
each batch reads its part of them as one slice. The policy sees none of this.
"""

from dataclasses import replace

import numpy as np
from numba import njit

from edbatch.cell.split_types import NONE, SplitTypes
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.merge import check_rows
from edbatch.schedule.schedule import Schedule


def run_ahead(
    graph: DataflowGraph, schedule: Schedule, split: SplitTypes
) -> tuple[DataflowGraph, Schedule]:
    """Divides the nodes of split types.

    Args:
        graph: The graph, of recorded types.
        schedule: Its schedule.
        split: The types as they run.

    Returns:
        The graph of these types, and its schedule; the graph and schedule themselves
        while no type is split. The nodes and values that were there keep their numbers;
        the new ones come after them, though they run before, and belong to no instance,
        so the number of instances' nodes is unchanged.
    """
    start, kind = schedule.batch_start, schedule.batch_type
    sizes = np.diff(start)
    numbers = split.numbers(kind, sizes)
    if numbers is None:
        return graph, schedule
    own, ahead = numbers
    before = ahead[kind]
    batches = np.flatnonzero(before != NONE)
    batches = batches[np.argsort(before[batches], kind="stable")].astype(np.int32)
    table = split.table
    outputs = table.counts[2]  # other threads may add types meanwhile
    nodes = np.bincount(before[batches], sizes[batches], len(outputs)).astype(np.int64)
    types = np.flatnonzero(nodes)
    ends = np.cumsum(nodes[types])
    added = int(sizes[batches].sum())
    check_rows(graph.num_values + int(nodes @ outputs), "values")
    node_type, operands, external_rows, num_values = _divide(
        schedule.order, start, batches, added, own, ahead, outputs, graph.node_type,
        graph.operand_start, graph.operands, graph.external_start, graph.external_rows,
        graph.num_values,
    )  # fmt: skip
    new = np.arange(graph.num_nodes, graph.num_nodes + added, dtype=np.int32)
    return (
        replace(
            graph,
            types=table,
            node_type=node_type,
            operands=operands,
            external_rows=external_rows,
            num_values=num_values,
        ),
        replace(
            schedule,
            order=np.concatenate([new, schedule.order]),
            batch_start=np.concatenate([ends - nodes[types], start + added]).astype(
                np.int32
            ),
            batch_type=np.concatenate([types, own[kind]]).astype(np.int32),
        ),
    )


@njit(cache=True, nogil=True)
def _divide(
    order, start, batches, added, own, ahead, outputs, node_type,
    operand_start, operands, external_start, external_rows, num_values,
):  # fmt: skip
    """Makes the arrays of the divided graph; new nodes by the order of ``batches``."""
    n = len(node_type)
    types = np.empty(n + added, np.int32)
    first_value = np.full(n, -1, np.int32)  # of the node that runs ahead of each
    rows = len(external_rows)
    slots = len(operands)
    node = n
    for b in batches:
        for place in range(start[b], start[b + 1]):
            v = order[place]
            t = ahead[node_type[v]]
            types[node] = t
            first_value[v] = num_values
            num_values += outputs[t]
            slots += outputs[t]
            rows += external_start[v + 1] - external_start[v]
            node += 1
    all_operands = np.empty(slots, np.int32)
    all_rows = np.empty(rows, np.int32)
    all_rows[: len(external_rows)] = external_rows
    at = 0
    for v in range(n):
        types[v] = own[node_type[v]]
        for slot in range(operand_start[v], operand_start[v + 1]):
            all_operands[at] = operands[slot]
            at += 1
        if first_value[v] >= 0:
            for k in range(outputs[ahead[node_type[v]]]):
                all_operands[at] = first_value[v] + k
                at += 1
    row = len(external_rows)
    for b in batches:
        for place in range(start[b], start[b + 1]):
            v = order[place]
            for slot in range(external_start[v], external_start[v + 1]):
                all_rows[row] = external_rows[slot]
                row += 1
    return types, all_operands, all_rows, num_values
