"""The ratio of ED-Batch's sufficient condition, kept up to date during execution.

For a type a, the *heads* of a are the remaining nodes of type a that have no remaining
ancestor of type a. If all heads are on the frontier (|frontier nodes of a| / |heads of
a| = 1), some optimal schedule runs a next (Chen et al., ICML 2023, section 2.3). The
greedy policy takes the type with the largest ratio, and training rewards it.

A node is *clear* of a if neither the node itself nor any node on a path into it is a
remaining node of type a. ``blocked[a, v]`` counts the operands of v that are not clear
of a, so a node of type a is a head if its count is 0. When nodes of type a run, their
readers may become clear of a, then the readers of these, and so on; each edge is
followed at most once per type: time O(T E) in all, space O(T N).
"""

from typing import NamedTuple

import numpy as np

from edbatch.kernel import kernel
from edbatch.schedule.frontier import FrontierState, frontier_size, remaining_size


class HeadState(NamedTuple):
    """Heads of each of ``T`` types among ``N`` nodes; updated in place.

    Attributes:
        blocked: Operands of each node that are not clear of each type; not kept for
            types all of whose remaining nodes are on the frontier.
        heads: Number of heads of each type.
        stack: Scratch.

    Example:
        >>> HeadState._fields
        ('blocked', 'heads', 'stack')
    """

    blocked: np.ndarray  # [T, N] int32
    heads: np.ndarray  # [T] int32
    stack: np.ndarray  # [N] int32

    def __repr__(self) -> str:
        """Summary in one line."""
        return f"<HeadState: {int(self.heads.sum())} heads of {len(self.heads)} types>"


@kernel
def new_heads(state: FrontierState) -> HeadState:
    """Computes the heads in the current state of an execution; for compiled callers.

    Args:
        state: A `FrontierState`, at its start or later.

    Returns:
        The `HeadState` for this state.
    """
    n = len(state.node_type)
    num_types = len(state.head)
    ran = np.zeros(n, np.bool_)
    for t in range(num_types):
        first = state.type_start[t]
        for place in range(first, first + state.head[t]):
            ran[state.queue[place]] = True
    heads = HeadState(
        np.zeros((num_types, n), np.int32),
        np.zeros(num_types, np.int32),
        np.empty(n, np.int32),
    )
    for a in range(num_types):
        remaining = remaining_size(state, a)
        if remaining == frontier_size(state, a):
            heads.heads[a] = remaining  # all run in one batch, and none remains
            continue
        for v in range(n):
            if ran[v]:
                continue
            is_a = state.node_type[v] == a
            if is_a and heads.blocked[a, v] == 0:
                heads.heads[a] += 1
            if is_a or heads.blocked[a, v] > 0:
                for e in range(state.consumer_start[v], state.consumer_start[v + 1]):
                    heads.blocked[a, state.consumers[e]] += 1
    return heads


def start_heads(state: FrontierState) -> HeadState:
    """As `new_heads`, for callers in Python.

    Args:
        state: A `FrontierState`, at its start or later.

    Returns:
        The `HeadState` for this state.
    """
    return HeadState(*_new_heads_arrays(state))


@kernel
def _new_heads_arrays(state):
    heads = new_heads(state)
    return heads.blocked, heads.heads, heads.stack


@kernel
def update_heads(
    heads: HeadState, state: FrontierState, chosen: int, first: int, last: int
) -> None:
    """Updates the heads after one call of `run_type`.

    Args:
        heads: `HeadState`; updated.
        state: The `FrontierState` after the call.
        chosen: The type that ran.
        first: First place of the batch in ``state.queue``.
        last: End of the batch in ``state.queue``.
    """
    if remaining_size(state, chosen) == 0:
        heads.heads[chosen] = 0
        return
    heads.heads[chosen] -= last - first
    for place in range(first, last):
        heads.stack[0] = state.queue[place]
        size = 1
        while size:
            size -= 1
            node = heads.stack[size]
            for e in range(state.consumer_start[node], state.consumer_start[node + 1]):
                reader = state.consumers[e]
                heads.blocked[chosen, reader] -= 1
                if heads.blocked[chosen, reader] == 0:
                    if state.node_type[reader] == chosen:
                        heads.heads[chosen] += 1
                    else:
                        heads.stack[size] = reader
                        size += 1


@kernel
def ratio(heads: HeadState, state: FrontierState, t: int) -> float:
    """Returns |frontier nodes| / |heads| of a type; 0 if none is on the frontier."""
    size = state.tail[t] - state.head[t]
    return size / heads.heads[t] if size else 0.0


@kernel
def best_ratio(heads: HeadState, state: FrontierState) -> int:
    """Returns the frontier type with the largest ratio; ties go to the first one."""
    best = -1
    best_value = 0.0
    for t in range(len(heads.heads)):
        value = ratio(heads, state, t)
        if value > best_value:
            best_value = value
            best = t
    return best
