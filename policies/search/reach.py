"""How far the nodes of a graph reach towards its end, by type."""

from typing import NamedTuple

import numpy as np
from numba import njit


class Reach(NamedTuple):
    """How far ``N`` nodes of ``T`` types reach towards the end of their graph.

    Attributes:
        chains: Nodes of each type on the path from each node that has most of them,
            the node itself included.
        height: Nodes on the longest path from each node, itself included.
    """

    chains: np.ndarray  # [N, T] int32
    height: np.ndarray  # [N] int32


@njit(cache=True, nogil=True)
def reach(
    node_type: np.ndarray,
    consumer_start: np.ndarray,
    consumers: np.ndarray,
    num_types: int,
) -> Reach:
    """Computes `Reach`; arguments as in `FrontierState`."""
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
    return Reach(chains, height)
