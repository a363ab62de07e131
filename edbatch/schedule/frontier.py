"""The frontier: the nodes whose operands are all computed, by type.

Every node enters the frontier once, so each type keeps its frontier nodes in a queue
inside one array: ``queue[type_start[t] + head[t] : type_start[t] + tail[t]]``. Running
a type takes its whole queue as one batch. All policies, the environment and training
share these functions; running a whole schedule is linear in nodes and edges.

Nodes join a queue in the order in which their last operand was computed, so the
operands of a batch tend to be in the batch's own order.
"""

from typing import NamedTuple

import numpy as np

from edbatch.graph.structure import GraphStructure
from edbatch.kernel import kernel


class FrontierState(NamedTuple):
    """State of an execution of ``N`` nodes of ``T`` types; updated in place.

    Attributes:
        node_type: Type of each node.
        consumer_start: First reader of each node, and the end.
        consumers: Readers, one entry per operand.
        missing: Number of operands of each node that are not computed yet.
        queue: Nodes by type, in the order in which they became ready.
        type_start: First place of each type in ``queue``, and the end.
        head: Number of nodes of each type that have run.
        tail: Number of nodes of each type that have become ready, including those that
            have run.

    Example:
        >>> from edbatch.schedule.examples import tree
        >>> state = start_frontier(tree("(ab)c"))
        >>> (state.tail - state.head).tolist()  # nodes on the frontier, by type
        [1, 1, 0]
    """

    node_type: np.ndarray  # [N] int32
    consumer_start: np.ndarray  # [N + 1] int32
    consumers: np.ndarray  # [E] int32
    missing: np.ndarray  # [N] int32
    queue: np.ndarray  # [N] int32
    type_start: np.ndarray  # [T + 1] int32
    head: np.ndarray  # [T] int32
    tail: np.ndarray  # [T] int32

    def __repr__(self) -> str:
        """Summary in one line."""
        ready, ran = int((self.tail - self.head).sum()), int(self.head.sum())
        return f"<FrontierState: {ready} nodes are ready, {ran} have run>"


def start_frontier(structure: GraphStructure) -> FrontierState:
    """Starts the execution of a graph.

    Args:
        structure: The graph.

    Returns:
        The state in which the nodes without operands are on the frontier.

    Example:
        >>> from edbatch.schedule.examples import tree
        >>> state = start_frontier(tree("(ab)c"))
        >>> (state.tail - state.head).tolist()
        [1, 1, 0]
    """
    start, consumers, indegree = structure.consumers
    return new_frontier(
        structure.node_type, start, consumers, indegree, structure.num_types
    )


def new_frontier(
    node_type: np.ndarray,
    consumer_start: np.ndarray,
    consumers: np.ndarray,
    indegree: np.ndarray,
    num_types: int,
) -> FrontierState:
    """As `start_frontier`, from arrays; arguments as in `FrontierState`."""
    # Compiled functions return plain tuples to Python: Numba crashes the process if a
    # signal (Ctrl-C) arrives while it builds a named tuple.
    return FrontierState(
        *_start(node_type, consumer_start, consumers, indegree, num_types)
    )


@kernel
def compiled_frontier(
    node_type: np.ndarray,
    operand_start: np.ndarray,
    operand_node: np.ndarray,
    num_types: int,
) -> FrontierState:
    """As `start_frontier`, for compiled callers; arguments as in `GraphStructure`.

    Saves a pass over the nodes compared with `GraphStructure.consumers` and
    `start_frontier`.
    """
    n = len(node_type)
    start = np.zeros(n + 1, np.int32)
    missing = np.zeros(n, np.int32)
    for v in range(n):
        for e in range(operand_start[v], operand_start[v + 1]):
            if operand_node[e] >= 0:
                start[operand_node[e] + 1] += 1
                missing[v] += 1
    for v in range(n):
        start[v + 1] += start[v]
    fill = start[:n].copy()
    consumers = np.empty(start[n], np.int32)
    for v in range(n):
        for e in range(operand_start[v], operand_start[v + 1]):
            u = operand_node[e]
            if u >= 0:
                consumers[fill[u]] = v
                fill[u] += 1
    queues = _queues(node_type, missing, num_types)
    return FrontierState(node_type, start, consumers, missing, *queues)


@kernel
def _start(node_type, consumer_start, consumers, indegree, num_types):
    queue, type_start, head, tail = _queues(node_type, indegree, num_types)
    missing = indegree.copy()
    return node_type, consumer_start, consumers, missing, queue, type_start, head, tail


@kernel
def _queues(node_type, missing, num_types):
    """Returns the initial queues, the start of each, and the heads and tails."""
    n = len(node_type)
    type_start = np.zeros(num_types + 1, np.int32)
    for v in range(n):
        type_start[node_type[v] + 1] += 1
    for t in range(num_types):
        type_start[t + 1] += type_start[t]
    queue = np.empty(n, np.int32)
    head = np.zeros(num_types, np.int32)
    tail = np.zeros(num_types, np.int32)
    for v in range(n):
        if missing[v] == 0:
            t = node_type[v]
            queue[type_start[t] + tail[t]] = v
            tail[t] += 1
    return queue, type_start, head, tail


@kernel
def run_type(state: FrontierState, chosen: int) -> tuple[int, int]:
    """Runs all frontier nodes of a type as one batch.

    Args:
        state: `FrontierState`; updated.
        chosen: The type; at least one of its nodes is on the frontier.

    Returns:
        First and last (exclusive) place of the batch in ``state.queue``.

    Example:
        >>> from edbatch.schedule.examples import tree
        >>> state = start_frontier(tree("(ab)c"))
        >>> run_type(state, 0)  # from and up to where its nodes stand in the queue
        (0, 1)
    """
    first = state.type_start[chosen] + state.head[chosen]
    last = state.type_start[chosen] + state.tail[chosen]
    state.head[chosen] = state.tail[chosen]
    for place in range(first, last):
        node = state.queue[place]
        for e in range(state.consumer_start[node], state.consumer_start[node + 1]):
            reader = state.consumers[e]
            state.missing[reader] -= 1
            if state.missing[reader] == 0:
                t = state.node_type[reader]
                state.queue[state.type_start[t] + state.tail[t]] = reader
                state.tail[t] += 1
    return first, last


@kernel
def frontier_size(state: FrontierState, t: int) -> int:
    """Number of frontier nodes of a type."""
    return state.tail[t] - state.head[t]


@kernel
def remaining_size(state: FrontierState, t: int) -> int:
    """Number of nodes of a type that have not run."""
    return state.type_start[t + 1] - state.type_start[t] - state.head[t]


@kernel
def collect(
    state: FrontierState, batches: np.ndarray, num_batches: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Turns executed batches into the arrays of a `Schedule`.

    Args:
        state: `FrontierState` after all nodes have run.
        batches: ``[*, 3]``: type, first and last place in the queue of each batch.
        num_batches: How many rows of ``batches`` are used.

    Returns:
        ``order``, ``batch_start`` and ``batch_type``.
    """
    order = np.empty(len(state.queue), np.int32)
    start = np.zeros(num_batches + 1, np.int32)
    kind = np.empty(num_batches, np.int32)
    done = 0
    for b in range(num_batches):
        kind[b] = batches[b, 0]
        for place in range(batches[b, 1], batches[b, 2]):
            order[done] = state.queue[place]
            done += 1
        start[b + 1] = done
    return order, start, kind
