"""A bounded memory of plans by the structure of their minibatch."""

import threading
from collections import OrderedDict
from dataclasses import dataclass

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.plan.plan import Encoded

Key = tuple[object, ...]


@dataclass(frozen=True)
class CacheInfo:
    """State of a cache.

    Attributes:
        hits: Plans found.
        misses: Plans made.
        entries: Plans kept.
        num_bytes: Memory that they take.
        max_bytes: Memory that they may take.
    """

    hits: int
    misses: int
    entries: int
    num_bytes: int
    max_bytes: int


def structure_key(graph: DataflowGraph, *more: object) -> Key:
    """Returns a key that two graphs share only if their plans are the same.

    The key holds the arrays themselves, so no collision of hashes can mix up plans.

    Args:
        graph: The graph.
        *more: Whatever else the plan depends on.

    Returns:
        The key. Values of external inputs are not part of it.
    """
    arrays = (
        graph.node_type,
        graph.operands,
        graph.external_rows,
        *graph.outputs.columns,
        *graph.outputs.lengths,
    )
    counts = tuple((kind, len(pool)) for kind, pool in graph.externals.items())
    parts = tuple(each.tobytes() for each in arrays)
    return (parts, counts, graph.outputs.skeleton, graph.num_instances, *more)


class PlanCache:
    """Least recently used plans, bounded by the bytes that they take.

    Attributes:
        max_bytes: Memory that the plans may take; 0 keeps none.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._plans: OrderedDict[Key, Encoded] = OrderedDict()
        self._num_bytes = 0
        self._hits = 0
        self._misses = 0
        self._lock = threading.Lock()

    def get(self, key: Key) -> Encoded | None:
        """Returns the plan of a key, or None."""
        with self._lock:
            found = self._plans.get(key)
            if found is None:
                self._misses += 1
            else:
                self._hits += 1
                self._plans.move_to_end(key)
            return found

    def put(self, key: Key, plan: Encoded) -> None:
        """Keeps a plan, and drops those used longest ago if there is no room."""
        with self._lock:
            if key in self._plans or self._size(key, plan) > self.max_bytes:
                return
            self._plans[key] = plan
            self._num_bytes += self._size(key, plan)
            while self._num_bytes > self.max_bytes:
                self._num_bytes -= self._size(*self._plans.popitem(last=False))

    @staticmethod
    def _size(key: Key, plan: Encoded) -> int:
        parts = key[0]
        assert isinstance(parts, tuple)
        return plan.num_bytes + sum(map(len, parts))

    @property
    def info(self) -> CacheInfo:
        """Hits, misses and memory."""
        with self._lock:
            return CacheInfo(
                self._hits,
                self._misses,
                len(self._plans),
                self._num_bytes,
                self.max_bytes,
            )
