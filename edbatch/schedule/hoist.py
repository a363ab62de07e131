"""Hoists the products of external inputs out of the nodes of a scheduled graph.

Each node of a divided type (see `edbatch.cell.hoisted_types`) gets an additional node
before it, which precomputes from the external inputs the values that the rest of the
cell needs. The new nodes run first, one batch per type, in the order in which the
schedule runs their readers, so each batch reads its precomputed values as one slice.
Policies see none of this.
"""

from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.merge import check_rows
from edbatch.graph.type_table import TypeTable
from edbatch.kernel import kernel
from edbatch.schedule.schedule import Schedule

NONE = -1


class TypePositions(NamedTuple):
    """The positions of a model's ``T`` types in the table of types as they run.

    Attributes:
        rest: Position of each type, or of the part of it that is not hoisted.
        hoisted: Position of the hoisted part of each type, or `NONE`.
    """

    rest: np.ndarray  # [T] int32
    hoisted: np.ndarray  # [T] int32


class DividedTypes(Protocol):
    """The types of a model as they run."""

    @property
    def table(self) -> TypeTable:
        """The table of these types."""

    def decide_and_place(
        self, batch_type: np.ndarray, batch_size: np.ndarray
    ) -> TypePositions | None:
        """Returns the position of each recorded type among the types as they run.

        Args:
            batch_type: The type of each of a minibatch's batches; ``[S] int32``.
            batch_size: The number of nodes of each batch; ``[S]``.

        Returns:
            The positions; None if no type is divided or shared.
        """

    def node_members(self, graph: DataflowGraph) -> np.ndarray | None:
        """Returns which member's parameters each node of a recorded graph reads.

        Args:
            graph: The graph.

        Returns:
            The member of each node, by its position in the family; None if no type has
            a family. ``[N] int32``.
        """


def hoist(
    graph: DataflowGraph, schedule: Schedule, types: DividedTypes
) -> tuple[DataflowGraph, Schedule]:
    """Hoists the products of external inputs.

    Args:
        graph: The graph, of recorded types.
        schedule: Its schedule.
        types: The types as they run.

    Returns:
        The graph of the types as they run, and its schedule; the same graph and
        schedule if no type is divided or shared. Nodes and values keep their numbers.
        New nodes are numbered after them, although they run before, and belong to no
        instance, so the number of nodes of each instance is unchanged.
    """
    start, kind = schedule.batch_start, schedule.batch_type
    sizes = np.diff(start)
    numbers = types.decide_and_place(kind, sizes)
    if numbers is None:
        return graph, schedule
    rest, hoisted = numbers
    member = types.node_members(graph)
    before = hoisted[kind]
    batches = np.flatnonzero(before != NONE)
    batches = batches[np.argsort(before[batches], kind="stable")].astype(np.int32)
    table = types.table
    outputs = table.counts[2]  # other threads may add types meanwhile
    nodes = np.bincount(before[batches], sizes[batches], len(outputs)).astype(np.int64)
    new_types = np.flatnonzero(nodes)
    ends = np.cumsum(nodes[new_types])
    added = int(sizes[batches].sum())
    check_rows(graph.num_values + int(nodes @ outputs), "values")
    node_type, operands, external_rows, num_values, origin = _divide(
        schedule.order,
        start,
        batches,
        added,
        _KernelTypes(rest, hoisted, outputs),
        graph.arrays,
    )
    new = np.arange(graph.num_nodes, graph.num_nodes + added, dtype=np.int32)
    running = replace(
        graph,
        types=table,
        node_type=node_type,
        operands=operands,
        external_rows=external_rows,
        num_values=num_values,
        node_member=None if member is None else member[origin],
    )
    divided = replace(
        schedule,
        order=np.concatenate([new, schedule.order]),
        batch_start=np.concatenate([ends - nodes[new_types], start + added]).astype(
            np.int32
        ),
        batch_type=np.concatenate([new_types, rest[kind]]).astype(np.int32),
    )
    return running, split_members(running, divided)


def split_members(graph: DataflowGraph, schedule: Schedule) -> Schedule:
    """Splits batches whose nodes read the parameters of several members of a family.

    Args:
        graph: The graph, of types as they run.
        schedule: Its schedule.

    Returns:
        A schedule in which each batch reads the parameters of one member; nodes of one
        member keep their order. Time O(N log N).
    """
    if graph.node_member is None or not schedule.num_batches:
        return schedule
    batch = np.repeat(np.arange(schedule.num_batches), np.diff(schedule.batch_start))
    member = graph.node_member[schedule.order]
    place = np.lexsort((member, batch))
    batch, member = batch[place], member[place]
    new = (batch[1:] != batch[:-1]) | (member[1:] != member[:-1])
    first = np.concatenate([[0], np.flatnonzero(new) + 1])
    return replace(
        schedule,
        order=schedule.order[place],
        batch_start=np.append(first, len(place)).astype(np.int32),
        batch_type=schedule.batch_type[batch[first]],
    )


class _KernelTypes(NamedTuple):
    """`TypePositions` and output counts: ``T`` types were recorded, ``R`` run."""

    rest: np.ndarray  # [T] int32, type that runs in place of a recorded type
    hoisted: np.ndarray  # [T] int32, type that is hoisted out of it, or NONE
    outputs: np.ndarray  # [R] int32, number of outputs of each type that runs


@kernel
def _divide(order, start, batches, added, numbers, nodes):
    """Builds the arrays of the divided graph; new nodes in the order of ``batches``."""
    rest, hoisted, outputs = numbers
    node_type, operand_start, operands, external_start, external_rows = nodes[:5]
    n = len(node_type)
    num_values = nodes.value_start[n]
    types = np.empty(n + added, np.int32)
    origin = np.arange(n + added).astype(np.int32)  # the recorded node of each node
    first_value = np.full(n, -1, np.int32)  # of the node that is hoisted out of it
    rows = len(external_rows)
    slots = len(operands)
    node = n
    for b in batches:
        for place in range(start[b], start[b + 1]):
            v = order[place]
            t = hoisted[node_type[v]]
            types[node] = t
            origin[node] = v
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
        types[v] = rest[node_type[v]]
        for slot in range(operand_start[v], operand_start[v + 1]):
            all_operands[at] = operands[slot]
            at += 1
        if first_value[v] >= 0:
            for k in range(outputs[hoisted[node_type[v]]]):
                all_operands[at] = first_value[v] + k
                at += 1
    row = len(external_rows)
    for b in batches:
        for place in range(start[b], start[b + 1]):
            v = order[place]
            for slot in range(external_start[v], external_start[v + 1]):
                all_rows[row] = external_rows[slot]
                row += 1
    return types, all_operands, all_rows, num_values, origin
