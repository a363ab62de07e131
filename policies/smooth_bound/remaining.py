"""The lower bound on the remaining batches, updated during execution.

The bound of `edbatch.schedule.lower_bound` for the nodes that have not run: the sum
over types of the most nodes of that type on one remaining path. The remaining part of a
path is always its end, so a node's `below`, the most nodes of its own type on a path
from it, never changes. The bound follows from how many nodes of each type remain with
each value of `below`. A batch lowers the bound by 0 or 1; a batch that does not lower
it is one batch in excess of the bound. Time O(T (N + E)) for `below`, then O(N) in all;
space O(N).
"""

from typing import NamedTuple

import numpy as np

from edbatch.kernel import kernel
from edbatch.schedule.frontier import FrontierState


class RemainingBound(NamedTuple):
    """State for an execution of ``N`` nodes of ``T`` types; updated in place.

    Attributes:
        below: For each node, the most nodes of its own type on one path that starts
            there, itself included.
        remaining: Remaining nodes of type t whose ``below`` is k, at
            ``type_start[t] + k - 1``.
        longest: Largest ``below`` among the remaining nodes of each type.
    """

    below: np.ndarray  # [N] int32
    remaining: np.ndarray  # [N] int32
    longest: np.ndarray  # [T] int32


@kernel
def chains_below(
    node_type: np.ndarray,
    consumer_start: np.ndarray,
    consumers: np.ndarray,
    num_types: int,
) -> np.ndarray:
    """Counts, for each node, the nodes of its type on a path that starts there.

    Args:
        node_type: Type of each node; ``[N]``.
        consumer_start: Index of each node's first reader, and the end; ``[N + 1]``.
        consumers: Readers; ``[E]``.
        num_types: How many types there are.

    Returns:
        The largest count over these paths; ``[N] int32``.
    """
    n = len(node_type)
    below = np.zeros(n, np.int32)
    chain = np.empty(n, np.int32)
    for t in range(num_types):
        for v in range(n - 1, -1, -1):
            best = 0
            for e in range(consumer_start[v], consumer_start[v + 1]):
                best = max(best, chain[consumers[e]])
            if node_type[v] == t:
                best += 1
                below[v] = best
            chain[v] = best
    return below


@kernel
def new_bound(state: FrontierState, below: np.ndarray) -> RemainingBound:
    """Computes the bound for the start of an execution."""
    num_types = len(state.head)
    bound = RemainingBound(
        below, np.zeros(len(below), np.int32), np.zeros(num_types, np.int32)
    )
    for v in range(len(below)):
        t = state.node_type[v]
        bound.remaining[state.type_start[t] + below[v] - 1] += 1
        bound.longest[t] = max(bound.longest[t], below[v])
    return bound


@kernel
def update_bound(
    bound: RemainingBound, state: FrontierState, chosen: int, first: int, last: int
) -> int:
    """Updates the bound after one call of `run_type`.

    Args:
        bound: `RemainingBound`; updated.
        state: The `FrontierState` after the call.
        chosen: The type that ran.
        first: First place of the batch in ``state.queue``.
        last: End of the batch in ``state.queue``.

    Returns:
        By how much the batch lowered the bound: 0 or 1.
    """
    base = state.type_start[chosen] - 1
    for place in range(first, last):
        bound.remaining[base + bound.below[state.queue[place]]] -= 1
    before = bound.longest[chosen]
    after = before
    while after > 0 and bound.remaining[base + after] == 0:
        after -= 1
    bound.longest[chosen] = after
    return before - after
