"""The smoothed lower bound on the remaining batches, updated during execution.

`edbatch.schedule.lower_bound` takes, for each type, the *maximum* over the instances of
a minibatch of their longest chain of that type. It ignores all instances below the
maximum, so most batches look alike to it. Here the p-norm over the instances replaces
the maximum (p is 8 by default; infinity would give the bound itself):

    value = Σ over types t of weight[t] · ‖chain of t in instance i‖ over i
            + weight[T] · ‖longest path in instance i‖ over i

in units of batches. The *marginal gain* of a type is the amount by which running it
would lower the value. On the word lattices of 32 sentences of Weibo, always running the
type with the largest gain, with all weights 1, gives 1.20 times as many batches as the
lower bound; the greedy ratio of ED-Batch's sufficient condition gives 1.30
(docs/results-policies.md has all workloads). Training tunes the weights and then learns
when to take the runner-up.

Chains: a *chain level* is the set of nodes of one type in one instance from which
chains of the same length start. Levels become ready from the longest down, so running a
fully ready level shortens the longest chain by one. The gain is counted once, when the
level becomes fully ready.

Paths: the *critical-path front* of an instance is the set of its remaining nodes from
which the longest path starts. They are always ready, but may be of several types;
running a type shortens the path by one if all nodes of the front are of that type.

Powers are computed by squaring and roots by `sqrt`, so values are the same on every
machine. Time O(T (N + E)) to start, where T counts the types that have several nodes in
an instance, with a small constant (rows of T numbers); then O(N + E) in all and O(1)
per gain. Space O(N + T L), where L is the number of nodes of the largest instance.
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

_SMALL = 1e-4  # fraction of a sum below which it is recomputed, against rounding


@kernel
def powers(longest: int, log2_p: int) -> np.ndarray:
    """Returns ``k ** (2 ** log2_p)`` for k from 0 on; ``[longest + 1] float64``."""
    power = np.arange(longest + 1).astype(np.float64)
    for _ in range(log2_p):
        power *= power
    return power


@kernel(counting=False)
def root(value: float, log2_p: int) -> float:
    """Returns ``value ** (1 / 2 ** log2_p)``; 0 if rounding made the value negative."""
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

    Returns:
        The smoothed bound.
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
    """Makes a placeholder for compiled callers that use no smoothed bound."""
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
        sums[chosen, TOTAL] = 0.0  # exact, without rounding
    elif sums[chosen, TOTAL] < sums[chosen, FLOOR]:
        _sum_chains(smooth, chosen)
    if sums[paths, TOTAL] < sums[paths, FLOOR]:
        _sum_paths(smooth)
    _run(smooth, state, chosen, first, last)
    return first, last


@kernel(counting=False)
def _shorten(smooth, state, chosen, first, last):
    """Subtracts a batch's gains from the sums, and moves critical-path fronts."""
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
    """Runs a batch as `run_type` does, and counts the nodes that become ready."""
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
    """Sums the powers of a type's chains; none of its nodes may be on the frontier."""
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
    """Returns a type's marginal gain: the decrease of the smoothed bound if it runs.

    Args:
        smooth: The `SmoothedBound`.
        t: The type; some of its nodes are on the frontier.
        paths: Result of `path_value`.
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
