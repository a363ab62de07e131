"""The lower bound on the number of batches of any schedule.

Nodes of one type on one path depend on each other, so they need one batch of that type
each. Summed over types, the largest number of such nodes on any path is a lower bound
(ED-Batch, Chen et al., ICML 2023, section 2). Time O(T (N + E)), space O(N + T).
"""

import numpy as np

from edbatch.errors import PlanError
from edbatch.graph.structure import GraphStructure
from edbatch.graph.structure_arguments import check_structure
from edbatch.kernel import kernel


def longest_chains(structure: GraphStructure) -> np.ndarray:
    """Returns, for each type, the largest number of its nodes on any path.

    Args:
        structure: A graph of T types.

    Returns:
        ``[T] int32``. For independent graphs run together, the maximum over the graphs.

    Raises:
        PlanError: ``structure`` is not a graph.

    Example:
        >>> from edbatch.schedule.examples import chain
        >>> longest_chains(chain("abab")).tolist()
        [2, 2]
    """
    check_structure(PlanError, "what has a lower bound", structure)
    return _longest_chains(
        structure.node_type,
        structure.operand_start,
        structure.operand_node,
        structure.num_types,
    )


def lower_bound(structure: GraphStructure) -> int:
    """Returns a lower bound on the number of batches of any schedule of a graph.

    Args:
        structure: The graph.

    Returns:
        The sum of `longest_chains`.

    Raises:
        PlanError: ``structure`` is not a graph.

    Example:
        >>> from edbatch.schedule.examples import chain
        >>> lower_bound(chain("aab"))
        3
    """
    return int(longest_chains(structure).sum())


@kernel
def _longest_chains(node_type, operand_start, operand_node, num_types):
    n = len(node_type)
    longest = np.zeros(num_types, np.int32)
    present = np.zeros(num_types, np.bool_)
    for v in range(n):
        present[node_type[v]] = True
    chain = np.empty(n, np.int32)
    for t in range(num_types):
        if not present[t]:
            continue
        for v in range(n):
            best = 0
            for e in range(operand_start[v], operand_start[v + 1]):
                if operand_node[e] >= 0:
                    best = max(best, chain[operand_node[e]])
            chain[v] = best + (1 if node_type[v] == t else 0)
            longest[t] = max(longest[t], chain[v])
    return longest
