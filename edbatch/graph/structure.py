"""The part of a dataflow graph that scheduling reads."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from edbatch.graph.node_type import TypeKey
from edbatch.kernel import kernel


@dataclass(frozen=True, eq=False)
class GraphStructure:
    """Types and dependencies of ``N`` nodes with ``E`` operands of ``T`` types.

    Attributes:
        type_keys: Identity of each type, ``T`` of them.
        node_type: Type of each node.
        operand_start: First operand of each node, and the end.
        operand_node: Node that each operand reads; negative where it is missing.
            Nodes are in topological order: an operand's node has a smaller number.
        instance_nodes: Number of nodes of each of ``B`` independent instances, whose
            nodes are stored one instance after the other.

    Example:
        >>> from edbatch.schedule.examples import tree
        >>> structure = tree("(ab)c")
        >>> structure.num_nodes, structure.num_types, structure.operand_node.tolist()
        (3, 3, [0, 1])
    """

    type_keys: tuple[TypeKey, ...]
    node_type: np.ndarray  # [N] int32
    operand_start: np.ndarray  # [N + 1] int32
    operand_node: np.ndarray  # [E] int32
    instance_nodes: np.ndarray  # [B] int32

    def __repr__(self) -> str:
        """Summary in one line."""
        return f"<GraphStructure: {self.num_nodes} nodes of {self.num_types} types>"

    @property
    def num_nodes(self) -> int:
        """Number of nodes, N."""
        return len(self.node_type)

    @property
    def num_types(self) -> int:
        """Number of types, T; some may have no node in this graph."""
        return len(self.type_keys)

    @cached_property
    def consumers(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Readers of each node (start offsets and readers), and the nodes' indegrees.

        ``[N + 1]``, ``[E]`` and ``[N] int32``; missing operands do not count.
        """
        return invert(self.operand_start, self.operand_node)

    @cached_property
    def depth(self) -> np.ndarray:
        """Longest path from a node without operands to each node; ``[N] int32``."""
        return _depths(self.operand_start, self.operand_node)


@kernel
def invert(
    operand_start: np.ndarray, operand_node: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Computes `GraphStructure.consumers`, in compiled code."""
    n = len(operand_start) - 1
    start = np.zeros(n + 1, np.int32)
    indegree = np.zeros(n, np.int32)
    for e in range(len(operand_node)):
        if operand_node[e] >= 0:
            start[operand_node[e] + 1] += 1
    for v in range(n):
        start[v + 1] += start[v]
    fill = start[:n].copy()
    readers = np.empty(start[n], np.int32)
    for v in range(n):
        for e in range(operand_start[v], operand_start[v + 1]):
            u = operand_node[e]
            if u >= 0:
                readers[fill[u]] = v
                fill[u] += 1
                indegree[v] += 1
    return start, readers, indegree


@kernel
def _depths(operand_start: np.ndarray, operand_node: np.ndarray) -> np.ndarray:
    n = len(operand_start) - 1
    depth = np.zeros(n, np.int32)
    for v in range(n):
        for e in range(operand_start[v], operand_start[v + 1]):
            if operand_node[e] >= 0:
                depth[v] = max(depth[v], depth[operand_node[e]] + 1)
    return depth
