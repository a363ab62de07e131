"""Scheduling in plain Python, straight from the definitions: slow and obvious."""

import functools
from collections.abc import Callable
from fractions import Fraction

from edbatch.graph.structure import GraphStructure
from edbatch.schedule import FrontierState, Schedule

Batches = list[tuple[int, frozenset[int]]]


class Naive:
    """A graph as lists and sets."""

    def __init__(self, structure: GraphStructure) -> None:
        self.n = structure.num_nodes
        self.num_types = structure.num_types
        self.types = structure.node_type.tolist()
        start = structure.operand_start
        self.reads = [
            {u for u in structure.operand_node[start[v] : start[v + 1]].tolist()} - {-1}
            for v in range(self.n)
        ]

    @functools.cached_property
    def ancestors(self) -> list[set[int]]:
        found: list[set[int]] = []
        for v in range(self.n):
            found.append(set().union(self.reads[v], *(found[u] for u in self.reads[v])))
        return found

    def frontier(self, done: set[int]) -> dict[int, frozenset[int]]:
        """The frontier's nodes by type, without types that have none."""
        ready = [v for v in range(self.n) if v not in done and self.reads[v] <= done]
        return {
            t: frozenset(v for v in ready if self.types[v] == t)
            for t in range(self.num_types)
            if any(self.types[v] == t for v in ready)
        }

    def heads(self, done: set[int], t: int) -> set[int]:
        """Remaining nodes of a type that have no remaining ancestor of that type."""
        left = {v for v in range(self.n) if v not in done and self.types[v] == t}
        return {v for v in left if not self.ancestors[v] & left}

    def ratio(self, done: set[int], t: int) -> Fraction:
        ready = self.frontier(done).get(t, ())
        return Fraction(len(ready), len(self.heads(done, t))) if ready else Fraction(0)

    def depths(self) -> list[int]:
        found: list[int] = []
        for v in range(self.n):
            found.append(max((found[u] + 1 for u in self.reads[v]), default=0))
        return found

    def run(self, choose: Callable[[set[int]], int]) -> Batches:
        done: set[int] = set()
        batches = []
        while len(done) < self.n:
            t = choose(done)
            batches.append((t, self.frontier(done)[t]))
            done |= batches[-1][1]
        return batches


def depth_batches(graph: Naive) -> Batches:
    places = list(zip(graph.depths(), graph.types, strict=True))
    return [
        (key[1], frozenset(v for v, place in enumerate(places) if place == key))
        for key in sorted(set(places))
    ]


def agenda_batches(graph: Naive) -> Batches:
    """DyNet's agenda: mean depth over all nodes of a type, including finished ones."""
    depths = graph.depths()
    mean = {
        t: Fraction(sum(d for d, k in zip(depths, graph.types, strict=True) if k == t))
        / graph.types.count(t)
        for t in set(graph.types)
    }
    return graph.run(lambda done: min(graph.frontier(done), key=lambda t: (mean[t], t)))


def agenda_remaining_batches(graph: Naive) -> Batches:
    depths = graph.depths()

    def mean_depth(done: set[int], t: int) -> Fraction:
        left = [v for v in range(graph.n) if v not in done and graph.types[v] == t]
        return Fraction(sum(depths[v] for v in left), len(left))

    return graph.run(
        lambda done: min(graph.frontier(done), key=lambda t: (mean_depth(done, t), t))
    )


def greedy_batches(graph: Naive) -> Batches:
    return graph.run(
        lambda done: max(graph.frontier(done), key=lambda t: (graph.ratio(done, t), -t))
    )


def brute_lower_bound(graph: Naive) -> int:
    """The sum over types of the maximum number of nodes of the type on any path."""
    best = [0] * graph.num_types

    def follow(path: list[int]) -> None:
        for t in range(graph.num_types):
            best[t] = max(best[t], sum(graph.types[v] == t for v in path))
        for v in range(graph.n):
            if path[-1] in graph.reads[v]:
                follow([*path, v])

    for v in range(graph.n):
        follow([v])
    return sum(best)


def fewest_batches(graph: Naive) -> Callable[[frozenset[int]], int]:
    """The minimum number of batches for the remaining nodes, by exhaustive search."""

    @functools.cache
    def fewest(done: frozenset[int]) -> int:
        if len(done) == graph.n:
            return 0
        return 1 + min(fewest(done | ready) for ready in graph.frontier(done).values())

    return fewest


def batches_of(schedule: Schedule) -> Batches:
    """A schedule in the oracles' format."""
    return [
        (int(t), frozenset(schedule.order[first:last].tolist()))
        for t, first, last in zip(
            schedule.batch_type,
            schedule.batch_start[:-1],
            schedule.batch_start[1:],
            strict=True,
        )
    ]


def frontier_of(state: FrontierState) -> dict[int, frozenset[int]]:
    """A compiled frontier in the oracles' format."""
    queues = {
        t: state.queue[first + head : first + tail].tolist()
        for t, (first, head, tail) in enumerate(
            zip(state.type_start[:-1], state.head, state.tail, strict=True)
        )
    }
    assert all(len(set(queue)) == len(queue) for queue in queues.values())
    return {t: frozenset(queue) for t, queue in queues.items() if queue}
