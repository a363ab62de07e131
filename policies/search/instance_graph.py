"""A minibatch as arrays for the search: edges and longest paths from each node."""

from typing import NamedTuple

import numpy as np

from edbatch.graph.structure import GraphStructure
from edbatch.kernel import kernel

NONE = -1


class InstanceGraph(NamedTuple):
    """A minibatch of ``B`` instances with ``N`` nodes of ``T`` types.

    Attributes:
        node_type: Type of each node.
        operand_start: Index of each node's first operand, and the end.
        operands: Node that each operand reads; negative where it is missing.
        consumer_start: Index of each node's first reader, and the end.
        consumers: Readers.
        chains: For each node and type, the most nodes of the type on one path from the
            node, itself included.
        height: Nodes on the longest path from each node, itself included.
        settled: Minimum, over each node and all later nodes of its instance, of the
            node's last ancestor of its own type. Until that ancestor or a later node
            has run, none of these nodes is a head.
        first_node: First node of each instance, and the end.
    """

    node_type: np.ndarray  # [N] int32
    operand_start: np.ndarray  # [N + 1] int32
    operands: np.ndarray  # [E] int32
    consumer_start: np.ndarray  # [N + 1] int32
    consumers: np.ndarray  # [E] int32
    chains: np.ndarray  # [N, T] int32
    height: np.ndarray  # [N] int32
    settled: np.ndarray  # [N] int32
    first_node: np.ndarray  # [B + 1] int64


def instance_graph(structure: GraphStructure) -> InstanceGraph:
    """Builds the arrays of a minibatch."""
    start, consumers, _ = structure.consumers
    node_type = structure.node_type
    first_node = np.concatenate([[0], np.cumsum(structure.instance_nodes)])
    chains, height = _reach(node_type, start, consumers, structure.num_types)
    return InstanceGraph(
        node_type,
        structure.operand_start,
        structure.operand_node,
        start,
        consumers,
        chains,
        height,
        _settled(
            node_type,
            structure.operand_start,
            structure.operand_node,
            first_node,
            structure.num_types,
        ),
        first_node,
    )


@kernel
def _settled(node_type, operand_start, operands, first_node, num_types):
    n = len(node_type)
    latest = np.full((n, num_types), NONE, np.int32)  # of a node and its ancestors
    settled = np.empty(n, np.int32)
    for v in range(n):
        for e in range(operand_start[v], operand_start[v + 1]):
            if operands[e] >= 0:
                for t in range(num_types):
                    latest[v, t] = max(latest[v, t], latest[operands[e], t])
        settled[v] = latest[v, node_type[v]]
        latest[v, node_type[v]] = v
    for i in range(len(first_node) - 1):
        for v in range(first_node[i + 1] - 2, first_node[i] - 1, -1):
            settled[v] = min(settled[v], settled[v + 1])
    return settled


@kernel
def _reach(
    node_type: np.ndarray,
    consumer_start: np.ndarray,
    consumers: np.ndarray,
    num_types: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Computes `chains` and `height`; arguments as in `FrontierState`."""
    n = len(node_type)
    chains = np.zeros((n, num_types), np.int32)
    height = np.zeros(n, np.int32)
    for v in range(n - 1, -1, -1):
        highest = 0
        for e in range(consumer_start[v], consumer_start[v + 1]):
            reader = consumers[e]
            highest = max(highest, height[reader])
            for t in range(num_types):
                chains[v, t] = max(chains[v, t], chains[reader, t])
        chains[v, node_type[v]] += 1
        height[v] = highest + 1
    return chains, height
