"""A smooth lower bound on the batches that remain, kept up to date during execution.

`edbatch.schedule.lower_bound` takes, for each type, the *largest* over the instances of
a minibatch of their longest chain of that type. It says nothing about the instances
below the largest, so most batches look alike to it. Here the p-norm over the instances
stands for the largest (p is 8 by default; infinity would be the bound itself):

    value = Σ over types t of weight[t] · ‖chain of t in instance i‖ over i
            + weight[T] · ‖longest path in instance i‖ over i

in units of batches. How far running a type would lower it, its *fall*, tells how much
that batch is worth. Taking the type of largest fall, with all weights 1, runs 1.20
times the lower bound on the word lattices of 32 sentences of Weibo, where the greedy
ratio of ED-Batch's sufficient condition runs 1.30; training tunes the weights and then
learns when to take the runner-up.

A type's chain in an instance gets shorter if all its nodes from which the longest one
starts run. A chain's next node waits for the one before, so the *rungs* of a pair of
instance and type (nodes with equally long chains) become ready from the longest down,
each as a whole only after those above have run: a rung of which no node waits any more
is worth a step, once, and no node needs to be looked at when it runs.

A path gets shorter if all of the *summit* runs, the remaining nodes from which the
longest path starts; these are always ready, but may be of several types, and only a
summit of one type falls by one batch.

Powers are taken by squaring and roots by `sqrt`, so values are the same on every
machine. Time O(T (N + E)) to start, T being the types of one instance here that have
several nodes, with a small constant (rows of T numbers), then O(N + E) in all and O(1)
per fall; space O(N + T L), L being the nodes of the largest instance.
"""

import numpy as np
from numba import njit

from edbatch.policies.compiled import without_counting
from edbatch.policies.smooth_bound.arrays import (
    CHAIN,
    CHAIN_FALL,
    CHAIN_VALUE,
    FIRST_RUNG,
    FLOOR,
    GROUP,
    HEIGHT,
    IS_SUMMIT,
    LEVEL,
    LONGEST,
    PATH_FALL,
    RUNG,
    TOTAL,
    TYPE,
    TYPE_SUM,
    TYPES,
    SoftBound,
    measure,
)
from edbatch.policies.smooth_bound.powers import powers, root
from edbatch.schedule.frontier import FrontierState

_SMALL = 1e-4  # of a sum: adding it up anew pays


@njit(cache=True, nogil=True)
def new_soft_bound(
    state: FrontierState,
    instance_nodes: np.ndarray,
    weight: np.ndarray,
    squarings: int,
) -> SoftBound:
    """Computes the soft bound at the start of an execution; for compiled callers.

    Args:
        state: A `FrontierState` at its start.
        instance_nodes: Number of nodes of each instance; ``[B]``.
        weight: Weight of each type's chains, and of the path; ``[T + 1]``.
        squarings: The power is two to this.

    Returns:
        `SoftBound` for it.
    """
    num_types = len(state.head)
    node, pair, waiting, left, level, longest = measure(
        state.node_type,
        state.consumer_start,
        state.consumers,
        instance_nodes,
        num_types,
    )
    sums = np.zeros((num_types + 1, 5))
    is_stale = np.ones(num_types, np.uint8)
    power = powers(longest, squarings)
    rise = power.copy()
    for length in range(1, len(power)):
        rise[length] -= power[length - 1]
    soft = SoftBound(
        node,
        pair,
        waiting,
        left,
        level,
        sums,
        is_stale,
        power,
        rise,
        weight,
        squarings,
    )
    for p in range(len(pair)):
        sums[pair[p, TYPE], TOTAL] += power[pair[p, LONGEST]]
    for t in range(num_types):
        sums[t, FLOOR] = sums[t, TOTAL] * _SMALL
    _sum_paths(soft)
    _meet_frontier(soft, state)
    return soft


def start_soft_bound(
    state: FrontierState,
    instance_nodes: np.ndarray,
    weight: np.ndarray,
    squarings: int,
) -> SoftBound:
    """As `new_soft_bound`, for callers in Python."""
    # Compiled functions return plain tuples to Python, see `new_frontier`.
    return SoftBound(*_as_tuple(state, instance_nodes, weight, squarings))


@njit(cache=True, nogil=True)
def _as_tuple(state, instance_nodes, weight, squarings):
    return new_soft_bound(state, instance_nodes, weight, squarings)[:]


@njit(cache=True, nogil=True)
def no_soft_bound() -> SoftBound:
    """Makes a placeholder for compiled callers that do without."""
    numbers = np.empty((0, 4), np.uint32)
    counts = np.empty(0, np.int32)
    values = np.empty(0)
    return SoftBound(
        numbers,
        numbers,
        counts,
        counts,
        numbers,
        np.zeros((1, 5)),
        np.empty(0, np.uint8),
        values,
        values,
        values,
        0,
    )


@without_counting()
def advance(soft: SoftBound, state: FrontierState, chosen: int) -> tuple[int, int]:
    """Runs all frontier nodes of a type as one batch, as `run_type` does.

    Args:
        soft: `SoftBound`; updated.
        state: `FrontierState`; updated.
        chosen: The type; at least one of its nodes is on the frontier.

    Returns:
        First and last (exclusive) place of the batch in ``state.queue``.
    """
    sums = soft.sums
    paths = len(state.head)
    first = state.type_start[chosen] + state.head[chosen]
    last = state.type_start[chosen] + state.tail[chosen]
    _shorten(soft, state, chosen, first, last)
    if last == state.type_start[chosen + 1]:
        sums[chosen, TOTAL] = 0.0  # exactly
    elif sums[chosen, TOTAL] < sums[chosen, FLOOR]:
        _sum_chains(soft, chosen)
    if sums[paths, TOTAL] < sums[paths, FLOOR]:
        _sum_paths(soft)
    _run(soft, state, chosen, first, last)
    return first, last


@without_counting()
def _shorten(soft, state, chosen, first, last):
    """Takes a batch off the chains and paths."""
    sums, left, level = soft.sums, soft.left, soft.level
    paths = len(state.head)
    sums[chosen, TOTAL] -= sums[chosen, CHAIN_FALL]
    sums[chosen, CHAIN_FALL] = 0.0
    soft.is_stale[chosen] = 1
    sums[paths, TOTAL] -= sums[chosen, PATH_FALL]
    sums[chosen, PATH_FALL] = 0.0
    for place in range(first, last):
        v = state.queue[place]
        group = soft.node[v, GROUP]
        left[group] -= 1
        if left[group] > 0:
            continue
        here = soft.node[v, LEVEL]
        level[here, TYPES] -= 1
        level[here, TYPE_SUM] -= chosen
        if level[here, IS_SUMMIT]:
            if level[here, TYPES] == 0:
                here -= 1
                level[here, IS_SUMMIT] = 1
            if level[here, TYPES] == 1:
                t = level[here, TYPE_SUM]
                sums[t, PATH_FALL] += soft.rise[level[here, HEIGHT]]


@without_counting()
def _run(soft, state, chosen, first, last):
    """As `run_type`; what becomes ready is worth something to the bound."""
    state.head[chosen] = state.tail[chosen]
    for place in range(first, last):
        v = state.queue[place]
        for e in range(state.consumer_start[v], state.consumer_start[v + 1]):
            reader = state.consumers[e]
            state.missing[reader] -= 1
            if state.missing[reader] == 0:
                t = state.node_type[reader]
                state.queue[state.type_start[t] + state.tail[t]] = reader
                state.tail[t] += 1
                _become_ready(soft, t, reader)


@without_counting()
def _meet_frontier(soft, state):
    """Takes the nodes that are ready at the start into account."""
    for t in range(len(state.head)):
        for place in range(state.type_start[t], state.type_start[t] + state.tail[t]):
            _become_ready(soft, t, state.queue[place])


@without_counting(inline="always")
def _become_ready(soft, t, v):
    """Takes into account that a node of type `t` is on the frontier."""
    rung = soft.node[v, RUNG]
    soft.waiting[rung] -= 1
    if soft.waiting[rung] == 0:
        soft.sums[t, CHAIN_FALL] += soft.rise[soft.node[v, CHAIN]]
        soft.is_stale[t] = 1


@without_counting()
def _sum_chains(soft, t):
    """Sums the powers of a type's chains; no node of it is on the frontier."""
    total = 0.0
    for p in range(len(soft.pair)):
        if soft.pair[p, TYPE] == t:
            longest = soft.pair[p, LONGEST]
            first = soft.pair[p, FIRST_RUNG]
            while longest > 0 and soft.waiting[first + longest - 1] == 0:
                longest -= 1
            soft.pair[p, LONGEST] = longest
            total += soft.power[longest]
    soft.sums[t, TOTAL] = total
    soft.sums[t, FLOOR] = total * _SMALL


@without_counting()
def _sum_paths(soft):
    """Sums the powers of the paths, and by how much each type would lower them."""
    total = 0.0
    soft.sums[:, PATH_FALL] = 0.0
    for here in range(len(soft.level)):
        if soft.level[here, IS_SUMMIT] and soft.level[here, TYPES]:
            height = soft.level[here, HEIGHT]
            total += soft.power[height]
            if soft.level[here, TYPES] == 1:
                t = soft.level[here, TYPE_SUM]
                soft.sums[t, PATH_FALL] += soft.rise[height]
    soft.sums[-1, TOTAL] = total
    soft.sums[-1, FLOOR] = total * _SMALL


@without_counting()
def path_value(soft: SoftBound) -> float:
    """Returns the norm of the longest paths, without its weight."""
    return root(soft.sums[-1, TOTAL], soft.squarings)


@without_counting(inline="always")
def fall(soft: SoftBound, t: int, paths: float) -> float:
    """Computes by how much the soft bound would fall if a type ran.

    Args:
        soft: The `SoftBound`.
        t: The type; some of its nodes are on the frontier.
        paths: `path_value`.

    Returns:
        The fall, in batches.
    """
    if soft.is_stale[t]:
        soft.is_stale[t] = 0
        soft.sums[t, CHAIN_VALUE] = 0.0
        if soft.sums[t, CHAIN_FALL] > 0:
            total = soft.sums[t, TOTAL]
            after = root(total - soft.sums[t, CHAIN_FALL], soft.squarings)
            soft.sums[t, CHAIN_VALUE] = root(total, soft.squarings) - after
    value = soft.weight[t] * soft.sums[t, CHAIN_VALUE]
    if soft.sums[t, PATH_FALL] > 0:
        total = soft.sums[-1, TOTAL]
        after = root(total - soft.sums[t, PATH_FALL], soft.squarings)
        value += soft.weight[-1] * (paths - after)
    return value


@njit(cache=True, nogil=True)
def soft_value(soft: SoftBound) -> float:
    """Returns the soft bound, in batches."""
    value = 0.0
    for t in range(len(soft.sums)):
        value += soft.weight[t] * root(soft.sums[t, TOTAL], soft.squarings)
    return value
