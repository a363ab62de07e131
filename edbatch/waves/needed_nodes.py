"""Finds the nodes that a wave has to run and the edges among them, in compiled code.

The host has a fraction of a millisecond for a wave, so the nodes and their structure
are found in one call.
"""

import numpy as np

from edbatch.kernel import kernel
from edbatch.waves.wave_nodes import WaveNodes, take_slots


@kernel(nogil=False)
def nodes_of_values(
    nodes: WaveNodes, num_outputs: np.ndarray, values: np.ndarray
) -> np.ndarray:
    """Finds the nodes that compute values, in compiled code.

    Args:
        nodes: ``N`` nodes.
        num_outputs: Outputs of each type; ``[T] int32``.
        values: Numbers of values; ``[n] int64``.

    Returns:
        The nodes, -1 where a value is missing or from another node; ``[n] int32``.
    """
    found = np.full(len(values), -1, np.int32)
    for k in range(len(values)):
        found[k] = _node_of(values[k], nodes, num_outputs)
    return found


@kernel(nogil=False)
def _node_of(value, nodes, num_outputs):
    first = nodes.first_value
    if not len(first) or value < first[0]:
        return -1
    v = np.searchsorted(first, value, side="right") - 1
    # Nodes without outputs have the first value of the next node.
    return v if value < first[v] + num_outputs[nodes.node_type[v]] else -1


@kernel(nogil=False)
def find_needed(
    nodes: WaveNodes,
    num_outputs: np.ndarray,
    values: np.ndarray,
    first: int,
    row: np.ndarray,
) -> tuple[
    np.ndarray, np.ndarray, bool, np.ndarray, np.ndarray, np.ndarray, np.ndarray
]:
    """Finds the nodes that values depend on, in compiled code.

    Args:
        nodes: ``N`` nodes.
        num_outputs: Outputs of each type; ``[T] int32``.
        values: Numbers of values; ``[n] int64``.
        first: Number of the first value in `row`.
        row: Row of each value, -1 where it has none; ``[V] int32``.

    Returns:
        The needed nodes, ascending, ``[m] int32``; the node that each operand slot
        reads, or -1, ``[E] int32``; whether needed nodes, or the caller, read values of
        earlier recorded nodes that have no rows yet; and the `part_structure` of the
        needed nodes.
    """
    count = len(nodes.node_type)
    begin = nodes.first_value[0] if count else first + len(row)
    operand_node = nodes_of_values(nodes, num_outputs, nodes.operands)
    needed = np.zeros(count, np.bool_)
    reads = False
    total = 0
    for value in values:
        v = _node_of(value, nodes, num_outputs)
        if v >= 0:
            needed[v] = True
        elif value < begin and row[value - first] < 0:
            reads = True
    for v in range(count - 1, -1, -1):
        if not needed[v]:
            continue
        total += 1
        for e in range(nodes.operand_start[v], nodes.operand_start[v + 1]):
            value = nodes.operands[e]
            if operand_node[e] >= 0:
                needed[operand_node[e]] = True
            elif 0 <= value < begin and row[value - first] < 0:
                reads = True
    chosen = np.empty(total, np.int32)
    at = 0
    for v in range(count):
        if needed[v]:
            chosen[at] = v
            at += 1
    node_type, start, slots, together = part_structure(chosen, nodes, operand_node)
    return chosen, operand_node, reads, node_type, start, slots, together


@kernel(nogil=False)
def nodes_left(count: int, ran: np.ndarray) -> np.ndarray:
    """Returns the nodes that did not run, in compiled code.

    Args:
        count: Number of nodes.
        ran: The nodes that ran, without duplicates; ``[n] int32``.

    Returns:
        The other nodes, ascending; ``[count - n] int32``.
    """
    left = np.ones(count, np.bool_)
    for v in ran:
        left[v] = False
    found = np.empty(count - len(ran), np.int32)
    at = 0
    for v in range(count):
        if left[v]:
            found[at] = v
            at += 1
    return found


@kernel(nogil=False)
def part_structure(
    chosen: np.ndarray, nodes: WaveNodes, operand_node: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Makes the structure of some nodes, in compiled code.

    Args:
        chosen: The nodes, in a topological order; ``[n] int32``.
        nodes: All nodes.
        operand_node: The node that each operand slot reads, or -1; ``[E] int32``.

    Returns:
        Their types, first operand slots, the chosen node that each slot reads, and the
        sizes of runs of nodes of one instance; as in `GraphStructure`.
    """
    place = np.full(len(nodes.node_type), -1, np.int32)
    node_type = np.empty(len(chosen), np.int32)
    together = np.zeros(len(chosen), np.int32)
    groups = 0
    last = -1
    for k in range(len(chosen)):
        v = chosen[k]
        place[v] = k
        node_type[k] = nodes.node_type[v]
        if nodes.owner[v] != last:
            last = nodes.owner[v]
            groups += 1
        together[groups - 1] += 1
    start, slots = take_slots(chosen, nodes.operand_start, operand_node)
    for e in range(len(slots)):
        if slots[e] >= 0:
            slots[e] = place[slots[e]]
    return node_type, start, slots, together[:groups].copy()
