"""A bounded cache of plans, keyed by the structure of their minibatch."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar, cast

from edbatch.graph.dataflow_graph import DataflowGraph

Key = tuple[object, ...]


class CacheInfo(NamedTuple):
    """State of a cache.

    Attributes:
        hits: Plans found.
        misses: Plans made.
        entries: Plans in the cache.
        num_bytes: Memory that they take, in bytes.
        max_bytes: Memory that they may take, in bytes.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> batched = eb.batch(double, params=2.0)
        >>> plan = batched.plan([1.0]), batched.plan([5.0])
        >>> batched.cache_info.hits, batched.cache_info.misses
        (1, 1)
    """

    hits: int
    misses: int
    entries: int
    num_bytes: int
    max_bytes: int


class Sized(Protocol):
    """A cache entry with a known size."""

    @property
    def num_bytes(self) -> int:
        """Memory that it keeps alive, in bytes."""


Kept = TypeVar("Kept", bound=Sized)


def plan_identity(graph: DataflowGraph, *more: object) -> Key:
    """Returns a key that two graphs share only if their plans are the same.

    The key contains the arrays themselves, so hash collisions cannot mix up plans.

    Args:
        graph: The graph.
        *more: Everything else that the plan depends on.

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
    return (parts, counts, graph.outputs.tree, graph.num_instances, *more)


class PlanCache:
    """LRU cache of the plans of one state, bounded by the bytes that they take.

    Attributes:
        max_bytes: Memory that the plans may take, in bytes; 0 keeps none.

    Example:
        >>> cache = PlanCache(max_bytes=1024)
        >>> cache.info.entries, cache.info.max_bytes
        (0, 1024)
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._plans: OrderedDict[Key, Sized] = OrderedDict()
        self._num_bytes = 0
        self._hits = 0
        self._misses = 0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        """Summary in one line."""
        return f"<PlanCache: {self.info}>"

    def get_or_make(
        self, key_of: Callable[[], Key], make: Callable[[], Kept]
    ) -> tuple[Kept, bool]:
        """Finds a plan, or makes it and keeps it.

        The least recently used plans are dropped to make room.

        Args:
            key_of: Returns the key: everything that the plan depends on. Different
                kinds of plans never have equal keys. It is called again after ``make``,
                because making a plan may change the state that is part of the key.
            make: Makes the plan; several threads may call it at the same time.

        Returns:
            The plan, and whether it was in the cache.
        """
        key = key_of()
        with self._lock:
            found = self._plans.get(key)
            if found is not None:
                self._hits += 1
                self._plans.move_to_end(key)
                return cast(Kept, found), True
            self._misses += 1
        made = make()
        self._put(key_of(), made)
        return made, False

    def _put(self, key: Key, plan: Sized) -> None:
        with self._lock:
            size = _num_bytes(key, plan)
            if key in self._plans or size > self.max_bytes:
                return
            self._plans[key] = plan
            self._num_bytes += size
            while self._num_bytes > self.max_bytes:
                self._num_bytes -= _num_bytes(*self._plans.popitem(last=False))

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


def _num_bytes(key: Key, plan: Sized) -> int:
    return plan.num_bytes + _bytes_of(key)


def _bytes_of(part: object) -> int:
    if isinstance(part, bytes):
        return len(part)
    return sum(map(_bytes_of, part)) if type(part) is tuple else 0
