"""A smooth lower bound on the batches that remain, kept up to date during execution.

`edbatch.schedule.lower_bound` takes, for each type, the *largest* over the instances of
a minibatch of their longest chain of that type. It says nothing about the instances
below the largest, so most batches look alike to it. Here the p-norm over the instances
stands for the largest (p is 8 by default; infinity would be the bound itself):

    value = Σ over types t of weight[t] · ‖chain of t in instance i‖ over i
            + weight[T] · ‖longest path in instance i‖ over i

in units of batches. The *marginal gain* of a type is how far running it would lower the
value. Always taking the type of largest gain, with all weights 1, runs 1.20 times the
lower bound on the word lattices of 32 sentences of Weibo, where the greedy ratio of
ED-Batch's sufficient condition runs 1.30 (docs/results-policies.md has all workloads).
Training tunes the weights and then learns when to take the runner-up.

Chains: the nodes of one type in one instance from which equally long chains start are a
*chain level*. Levels become ready from the longest down, so running a fully ready level
shortens its chain by one. The gain is counted once, when the level becomes ready.

Paths: the *critical-path front* of an instance is its remaining nodes from which the
longest path starts. They are always ready, but may be of several types; running a type
shortens the path by one where the front is of this type alone.

Powers are taken by squaring and roots by `sqrt`, so values are the same on every
machine. Time O(T (N + E)) to start, T being the types of one instance here that have
several nodes, with a small constant (rows of T numbers), then O(N + E) in all and O(1)
per gain; space O(N + T L), L being the nodes of the largest instance.
"""

import math

import numpy as np

from edbatch.kernel import kernel
from edbatch.policies.smooth_bound.arrays import (
    CHAIN,
    CHAIN_GAIN,
    CHAIN_LEVEL,
    CHAIN_VALUE,
    FIRST_LEVEL,
    FLOOR,
    GROUP,
    HEIGHT,
    IS_FRONT,
    LONGEST,
    PATH_GAIN,
    PATH_LEVEL,
    TOTAL,
    TYPE,
    TYPE_SUM,
    TYPES,
    SmoothedBound,
    measure,
)
from edbatch.schedule.frontier import FrontierState

_SMALL = 1e-4  # of a sum: adding it up anew pays


@kernel
def powers(longest: int, log2_p: int) -> np.ndarray:
    """Returns ``k ** (2 ** log2_p)`` for k from 0 on; ``[longest + 1] float64``."""
    power = np.arange(longest + 1).astype(np.float64)
    for _ in range(log2_p):
        power *= power
    return power


@kernel(counting=False)
def root(value: float, log2_p: int) -> float:
    """Takes a square root as often; of what rounding made negative, too."""
    value = max(value, 0.0)
    for _ in range(log2_p):
        value = math.sqrt(value)
    return value


@kernel
def new_smoothed_bound(
    state: FrontierState,
    instance_nodes: np.ndarray,
    weight: np.ndarray,
    log2_p: int,
) -> SmoothedBound:
    """Computes the smoothed bound at the start of an execution; for compiled callers.

    Args:
        state: A `FrontierState` at its start.
        instance_nodes: Number of nodes of each instance; ``[B]``.
        weight: Weight of each type's chains, and of the path; ``[T + 1]``.
        log2_p: Base-2 logarithm of the norm's p.
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
    power = powers(longest, log2_p)
    rise = power.copy()
    for length in range(1, len(power)):
        rise[length] -= power[length - 1]
    smooth = SmoothedBound(
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
        log2_p,
    )
    for p in range(len(pair)):
        sums[pair[p, TYPE], TOTAL] += power[pair[p, LONGEST]]
    for t in range(num_types):
        sums[t, FLOOR] = sums[t, TOTAL] * _SMALL
    _sum_paths(smooth)
    _meet_frontier(smooth, state)
    return smooth


def start_smoothed_bound(
    state: FrontierState,
    instance_nodes: np.ndarray,
    weight: np.ndarray,
    log2_p: int,
) -> SmoothedBound:
    """As `new_smoothed_bound`, for callers in Python."""
    # Compiled functions return plain tuples to Python, see `new_frontier`.
    return SmoothedBound(*_as_tuple(state, instance_nodes, weight, log2_p))


@kernel
def _as_tuple(state, instance_nodes, weight, log2_p):
    return new_smoothed_bound(state, instance_nodes, weight, log2_p)[:]


@kernel
def no_smoothed_bound() -> SmoothedBound:
    """Makes a placeholder for compiled callers that do without."""
    numbers = np.empty((0, 4), np.uint32)
    counts = np.empty(0, np.int32)
    values = np.empty(0)
    return SmoothedBound(
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


@kernel(counting=False)
def advance(
    smooth: SmoothedBound, state: FrontierState, chosen: int
) -> tuple[int, int]:
    """Runs all frontier nodes of a type as one batch, as `run_type` does.

    Args:
        smooth: `SmoothedBound`; updated.
        state: `FrontierState`; updated.
        chosen: The type; at least one of its nodes is on the frontier.

    Returns:
        First and last (exclusive) place of the batch in ``state.queue``.
    """
    sums = smooth.sums
    paths = len(state.head)
    first = state.type_start[chosen] + state.head[chosen]
    last = state.type_start[chosen] + state.tail[chosen]
    _shorten(smooth, state, chosen, first, last)
    if last == state.type_start[chosen + 1]:
        sums[chosen, TOTAL] = 0.0  # exactly
    elif sums[chosen, TOTAL] < sums[chosen, FLOOR]:
        _sum_chains(smooth, chosen)
    if sums[paths, TOTAL] < sums[paths, FLOOR]:
        _sum_paths(smooth)
    _run(smooth, state, chosen, first, last)
    return first, last


@kernel(counting=False)
def _shorten(smooth, state, chosen, first, last):
    """Shortens the chains and paths that a batch ends."""
    sums, left, level = smooth.sums, smooth.left, smooth.level
    paths = len(state.head)
    sums[chosen, TOTAL] -= sums[chosen, CHAIN_GAIN]
    sums[chosen, CHAIN_GAIN] = 0.0
    smooth.is_stale[chosen] = 1
    sums[paths, TOTAL] -= sums[chosen, PATH_GAIN]
    sums[chosen, PATH_GAIN] = 0.0
    for place in range(first, last):
        v = state.queue[place]
        group = smooth.node[v, GROUP]
        left[group] -= 1
        if left[group] > 0:
            continue
        here = smooth.node[v, PATH_LEVEL]
        level[here, TYPES] -= 1
        level[here, TYPE_SUM] -= chosen
        if level[here, IS_FRONT]:
            if level[here, TYPES] == 0:
                here -= 1
                level[here, IS_FRONT] = 1
            if level[here, TYPES] == 1:
                t = level[here, TYPE_SUM]
                sums[t, PATH_GAIN] += smooth.rise[level[here, HEIGHT]]


@kernel(counting=False)
def _run(smooth, state, chosen, first, last):
    """As `run_type`, and counts what becomes ready."""
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
                _become_ready(smooth, t, reader)


@kernel(counting=False)
def _meet_frontier(smooth, state):
    """Counts the nodes that are ready at the start."""
    for t in range(len(state.head)):
        for place in range(state.type_start[t], state.type_start[t] + state.tail[t]):
            _become_ready(smooth, t, state.queue[place])


@kernel(inline="always", counting=False)
def _become_ready(smooth, t, v):
    """Counts a node of type `t` that joined the frontier."""
    level = smooth.node[v, CHAIN_LEVEL]
    smooth.waiting[level] -= 1
    if smooth.waiting[level] == 0:
        smooth.sums[t, CHAIN_GAIN] += smooth.rise[smooth.node[v, CHAIN]]
        smooth.is_stale[t] = 1


@kernel(counting=False)
def _sum_chains(smooth, t):
    """Sums the powers of a type's chains; no node of it is on the frontier."""
    total = 0.0
    for p in range(len(smooth.pair)):
        if smooth.pair[p, TYPE] == t:
            longest = smooth.pair[p, LONGEST]
            first = smooth.pair[p, FIRST_LEVEL]
            while longest > 0 and smooth.waiting[first + longest - 1] == 0:
                longest -= 1
            smooth.pair[p, LONGEST] = longest
            total += smooth.power[longest]
    smooth.sums[t, TOTAL] = total
    smooth.sums[t, FLOOR] = total * _SMALL


@kernel(counting=False)
def _sum_paths(smooth):
    """Sums the powers of the paths, and each type's gain in that sum."""
    total = 0.0
    smooth.sums[:, PATH_GAIN] = 0.0
    for here in range(len(smooth.level)):
        if smooth.level[here, IS_FRONT] and smooth.level[here, TYPES]:
            height = smooth.level[here, HEIGHT]
            total += smooth.power[height]
            if smooth.level[here, TYPES] == 1:
                t = smooth.level[here, TYPE_SUM]
                smooth.sums[t, PATH_GAIN] += smooth.rise[height]
    smooth.sums[-1, TOTAL] = total
    smooth.sums[-1, FLOOR] = total * _SMALL


@kernel(counting=False)
def path_value(smooth: SmoothedBound) -> float:
    """Returns the norm of the longest paths, without its weight."""
    return root(smooth.sums[-1, TOTAL], smooth.log2_p)


@kernel(inline="always", counting=False)
def marginal_gain(smooth: SmoothedBound, t: int, paths: float) -> float:
    """Computes by how much running a type would lower the smoothed bound.

    Args:
        smooth: The `SmoothedBound`.
        t: The type; some of its nodes are on the frontier.
        paths: `path_value`.
    """
    if smooth.is_stale[t]:
        smooth.is_stale[t] = 0
        smooth.sums[t, CHAIN_VALUE] = 0.0
        if smooth.sums[t, CHAIN_GAIN] > 0:
            total = smooth.sums[t, TOTAL]
            after = root(total - smooth.sums[t, CHAIN_GAIN], smooth.log2_p)
            smooth.sums[t, CHAIN_VALUE] = root(total, smooth.log2_p) - after
    value = smooth.weight[t] * smooth.sums[t, CHAIN_VALUE]
    if smooth.sums[t, PATH_GAIN] > 0:
        total = smooth.sums[-1, TOTAL]
        after = root(total - smooth.sums[t, PATH_GAIN], smooth.log2_p)
        value += smooth.weight[-1] * (paths - after)
    return value


@kernel
def smoothed_value(smooth: SmoothedBound) -> float:
    """Returns the smoothed bound, in batches."""
    value = 0.0
    for t in range(len(smooth.sums)):
        value += smooth.weight[t] * root(smooth.sums[t, TOTAL], smooth.log2_p)
    return value
