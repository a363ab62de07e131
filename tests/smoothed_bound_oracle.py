"""The smoothed bound of the remaining nodes in plain Python, from its definition."""

from collections.abc import Sequence

import numpy as np
from schedule_oracles import Naive

from edbatch.graph.structure import GraphStructure


def parts_of(structure: GraphStructure) -> list[set[int]]:
    """The nodes of each instance."""
    ends = np.cumsum(structure.instance_nodes).tolist()
    sizes = structure.instance_nodes.tolist()
    return [set(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]


def longest(graph: Naive, nodes: set[int], t: int | None) -> int:
    """Maximum number of nodes (of a type) on a path through the given nodes."""
    best: dict[int, int] = {}
    for v in sorted(nodes):
        before = max((best[u] for u in graph.reads[v] & nodes), default=0)
        best[v] = before + (t is None or graph.types[v] == t)
    return max(best.values(), default=0)


def smoothed_bound_of(
    structure: GraphStructure,
    done: set[int],
    weight: Sequence[float] | np.ndarray,
    log2_p: int,
) -> float:
    """The smoothed bound of the nodes that remain after `done`."""
    graph = Naive(structure)
    parts = [part - done for part in parts_of(structure)]
    p = 2**log2_p
    return sum(
        float(weight[k])
        * sum(longest(graph, part, t) ** p for part in parts) ** (1 / p)
        for k, t in enumerate([*range(graph.num_types), None])
    )


def gains_of(
    structure: GraphStructure,
    done: set[int],
    weight: Sequence[float] | np.ndarray,
    log2_p: int,
) -> dict[int, float]:
    """How much running each frontier type would lower the smoothed bound."""
    value = smoothed_bound_of(structure, done, weight, log2_p)
    return {
        t: value - smoothed_bound_of(structure, done | batch, weight, log2_p)
        for t, batch in Naive(structure).frontier(done).items()
    }


def best_two(gains: dict[int, float]) -> list[int]:
    """The types of the two largest gains; of equal ones, the lower type first."""
    found: list[int] = []
    while len(found) < min(2, len(gains)):
        left = sorted(gains.keys() - {*found})
        most = max(gains[t] for t in left)
        found.append(next(t for t in left if gains[t] > most - 1e-9))
    return found
