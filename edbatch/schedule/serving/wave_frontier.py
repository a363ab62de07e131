"""Frontier of a real server while a wave is being decided, compiled.

The counterpart of the simulation's queues (`kernels.py`), over pending nodes: recorded,
needed, and not run. Both show policies the same state for the same history: queues are
in the order in which nodes became ready, and a batch takes the first nodes of its
type's queue. A wave is decided as a whole before it runs, so the clock stands still
within it. Once the wave has run, nodes that became ready in one of its batches get the
time at which that batch ended (`edbatch.serving.decisions`).
"""

from typing import NamedTuple

import numpy as np

from edbatch.kernel import kernel
from edbatch.schedule.serving.kernels import View

# Indices into `WaveFrontier.counts`: batches of the wave, their nodes, the next rank.
BATCHES, ROWS, RANK = range(3)
BEFORE = -1  # `ready_in` of nodes that were ready before the wave


class WaveFrontier(NamedTuple):
    """``N`` nodes of ``R`` requests and ``T`` types; updated in place.

    Attributes:
        node_type: Type of each node.
        owner: The request of each node.
        consumer_start: First reader of each node, and the end.
        consumers: The readers.
        missing: Number of operands of each node that are not computed.
        ready_ms: When each node became ready, on the server's clock; for nodes that
            become ready in the wave, the beginning of the wave.
        ready_in: Batch of the wave in which each node became ready, or `BEFORE`.
        rank: Order in which the nodes became ready; negative for nodes that are not.
        queue: Nodes that are ready or have run, by type.
        type_start: First place of each type in ``queue``, and the end.
        head: Number of nodes of each type in ``queue`` that have run.
        tail: Number of nodes of each type in ``queue``.
        remaining: Number of nodes of each type that have not run.
        arrival_ms: When each request arrived.
        deadline_ms: Deadline of each request, infinite for none.
        blocked: See `edbatch.schedule.sufficient_condition`; empty if heads are not
            counted.
        heads: Heads of each type.
        stack: Scratch.
        order: The nodes of the wave's batches.
        batch_start: First position in ``order`` of each batch, and the end.
        batch_type: Type of each batch.
        counts: Batches, their nodes, and the next rank.
    """

    node_type: np.ndarray  # [N] int32
    owner: np.ndarray  # [N] int32
    consumer_start: np.ndarray  # [N + 1] int32
    consumers: np.ndarray  # [E] int32
    missing: np.ndarray  # [N] int32
    ready_ms: np.ndarray  # [N] float64
    ready_in: np.ndarray  # [N] int32
    rank: np.ndarray  # [N] int64
    queue: np.ndarray  # [N] int32
    type_start: np.ndarray  # [T + 1] int32
    head: np.ndarray  # [T] int32
    tail: np.ndarray  # [T] int32
    remaining: np.ndarray  # [T] int32
    arrival_ms: np.ndarray  # [R] float64
    deadline_ms: np.ndarray  # [R] float64
    blocked: np.ndarray  # [T, N] int32
    heads: np.ndarray  # [T] int32
    stack: np.ndarray  # [N] int32
    order: np.ndarray  # [N] int32
    batch_start: np.ndarray  # [N + 1] int32
    batch_type: np.ndarray  # [N] int32
    counts: np.ndarray  # [3] int64


@kernel
def start_wave(
    node_type: np.ndarray,
    owner: np.ndarray,
    readers: tuple[np.ndarray, np.ndarray, np.ndarray],
    known: tuple[np.ndarray, np.ndarray, int],
    requests: tuple[np.ndarray, np.ndarray],
    num_types: int,
    now_ms: float,
    with_heads: bool,
) -> WaveFrontier:
    """Builds the frontier at the beginning of a wave.

    Args:
        node_type: Type of each node, in an order in which they can run; ``[N] int32``.
        owner: The request of each node; ``[N] int32``.
        readers: First reader of each node, readers, and number of operands of each node
            that have not run: `GraphStructure.consumers`.
        known: When each node became ready, and its rank, negative if it was not ready
            when it was last seen, ``[N]``; and the next rank.
        requests: Arrival times and deadlines; ``[R] float64``.
        num_types: Number of types, T.
        now_ms: The clock.
        with_heads: Whether to count heads.

    Returns:
        The frontier.
    """
    n = len(node_type)
    consumer_start, consumers, indegree = readers
    ready_ms, rank, next_rank = known
    frontier = WaveFrontier(
        node_type,
        owner,
        consumer_start,
        consumers,
        indegree.copy(),
        ready_ms.copy(),
        np.full(n, BEFORE, np.int32),
        rank.copy(),
        np.empty(n, np.int32),
        np.zeros(num_types + 1, np.int32),
        np.zeros(num_types, np.int32),
        np.zeros(num_types, np.int32),
        np.zeros(num_types, np.int32),
        requests[0],
        requests[1],
        np.zeros((num_types, n if with_heads else 0), np.int32),
        np.zeros(num_types, np.int32),
        np.empty(n, np.int32),
        np.empty(n, np.int32),
        np.zeros(n + 1, np.int32),
        np.empty(n, np.int32),
        np.zeros(3, np.int64),
    )
    frontier.counts[RANK] = next_rank
    for v in range(n):
        frontier.remaining[node_type[v]] += 1
    for t in range(num_types):
        frontier.type_start[t + 1] = frontier.type_start[t] + frontier.remaining[t]
    for v in np.argsort(rank, kind="mergesort"):
        if rank[v] >= 0:
            _place(frontier, v)
    for v in range(n):
        if rank[v] < 0 and frontier.missing[v] == 0:
            _push(frontier, v, now_ms, BEFORE)
    if with_heads:
        _count_heads(frontier)
    return frontier


@kernel
def _place(frontier, v):
    """Puts a node at the end of its type's queue."""
    t = frontier.node_type[v]
    frontier.queue[frontier.type_start[t] + frontier.tail[t]] = v
    frontier.tail[t] += 1


@kernel
def _push(frontier, v, now_ms, batch):
    """Marks a node as ready."""
    frontier.ready_ms[v] = now_ms
    frontier.ready_in[v] = batch
    frontier.rank[v] = frontier.counts[RANK]
    frontier.counts[RANK] += 1
    _place(frontier, v)


@kernel
def _count_heads(frontier):
    for a in range(len(frontier.head)):
        if frontier.remaining[a] == 0:
            continue
        for v in range(len(frontier.node_type)):
            is_a = frontier.node_type[v] == a
            if is_a and frontier.blocked[a, v] == 0:
                frontier.heads[a] += 1
            if is_a or frontier.blocked[a, v] > 0:
                first, last = frontier.consumer_start[v], frontier.consumer_start[v + 1]
                for e in range(first, last):
                    frontier.blocked[a, frontier.consumers[e]] += 1


@kernel
def add_batch(frontier: WaveFrontier, chosen: int, max_rows: int, now_ms: float) -> int:
    """Adds a batch of the first nodes in a type's queue to the wave.

    Args:
        frontier: The frontier; updated.
        chosen: The type.
        max_rows: Maximum number of nodes.
        now_ms: The clock.

    Returns:
        Number of nodes in the batch.
    """
    counts = frontier.counts
    rows = min(frontier.tail[chosen] - frontier.head[chosen], max_rows)
    first = frontier.type_start[chosen] + frontier.head[chosen]
    batch = counts[BATCHES]
    frontier.head[chosen] += rows
    frontier.remaining[chosen] -= rows
    with_heads = frontier.blocked.shape[1] > 0
    if with_heads:
        frontier.heads[chosen] -= rows
    for place in range(first, first + rows):
        v = frontier.queue[place]
        frontier.order[counts[ROWS]] = v
        counts[ROWS] += 1
        for e in range(frontier.consumer_start[v], frontier.consumer_start[v + 1]):
            reader = frontier.consumers[e]
            frontier.missing[reader] -= 1
            if frontier.missing[reader] == 0:
                _push(frontier, reader, now_ms, batch)
        if with_heads:
            _clear(frontier, chosen, v)
    frontier.batch_type[batch] = chosen
    frontier.batch_start[batch + 1] = counts[ROWS]
    counts[BATCHES] += 1
    return rows


@kernel
def _clear(frontier, chosen, node):
    """Updates heads after a node ran, as `sufficient_condition.update_heads` does."""
    frontier.stack[0] = node
    size = 1
    while size:
        size -= 1
        v = frontier.stack[size]
        for e in range(frontier.consumer_start[v], frontier.consumer_start[v + 1]):
            reader = frontier.consumers[e]
            frontier.blocked[chosen, reader] -= 1
            if frontier.blocked[chosen, reader] == 0:
                if frontier.node_type[reader] == chosen:
                    frontier.heads[chosen] += 1
                else:
                    frontier.stack[size] = reader
                    size += 1


@kernel
def describe(frontier: WaveFrontier, now_ms: float, view: View) -> None:
    """Describes what is waiting, as `kernels.look` does in simulation.

    Args:
        frontier: The frontier.
        now_ms: The clock.
        view: The arrays to fill.
    """
    for t in range(len(frontier.head)):
        first = frontier.type_start[t] + frontier.head[t]
        last = frontier.type_start[t] + frontier.tail[t]
        arrival = now_ms
        deadline = np.inf
        for place in range(first, last):
            r = frontier.owner[frontier.queue[place]]
            arrival = min(arrival, frontier.arrival_ms[r])
            deadline = min(deadline, frontier.deadline_ms[r])
        view.waiting[t] = last - first
        view.remaining[t] = frontier.remaining[t]
        view.oldest_ms[t] = now_ms - arrival
        view.waited_ms[t] = 0.0
        if last > first:
            since = frontier.ready_ms[frontier.queue[first]]
            view.waited_ms[t] = max(0.0, now_ms - since)
        view.slack_ms[t] = deadline - now_ms
        view.heads[t] = frontier.heads[t]
