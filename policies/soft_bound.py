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

A chain gets shorter if all of its *crest* runs: the remaining nodes of the type, in
one instance, from which its longest chain starts. None of them depends on another, so
it is enough to count how many are ready. Likewise a path gets shorter if all of its
*summit* runs, the remaining nodes from which the longest path starts; these are always
ready, but may be of several types.

Powers are taken by squaring and roots by `sqrt`, so values are the same on every
machine. Time O(T (N + E)) to start, with a small constant (rows of T numbers), then
O(N + E) in all and O(1) per fall; space O(T (N + B)).
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from edbatch.schedule.frontier import FrontierState

_FLOOR = 1e-4


class SoftBound(NamedTuple):
    """State for ``N`` nodes of ``T`` types in ``B`` instances; updated in place.

    Attributes:
        instance: Instance of each node.
        height: Nodes on the longest path that starts at each node.
        below: Nodes of its own type on the path from each node that has most of them.
        chain: Longest remaining chain of each type in each instance.
        chain_start: Where the levels of each such chain begin in ``chain_level``.
        chain_level: Remaining nodes by instance, type and ``below``.
        crest_ready: Nodes of each crest that are on the frontier.
        path: Longest remaining path in each instance.
        path_start: Where the levels of each instance begin in ``path_level``.
        path_level: Remaining nodes by instance and ``height``.
        path_ready: Frontier nodes by instance and ``height``, for each type.
        summit_types: How many types the summit of each instance has.
        summit_sum: Sum of those types: the type itself if it is one.
        total: Sum over instances of the power of each chain, and of the path.
        chain_fall: By how much that sum falls for each type's chain if it runs.
        path_fall: By how much it falls for the path if the type runs.
        seen: Nodes of each type that have been taken into account as ready.
        floor: Below which totals are summed anew: what rounding has lost by then would
            soon count.
        power: Power of each length.
        weight: Weight of each type's chains, and of the path.
        chain_value: By how much each type's chains would lower the soft bound, without
            their weight.
        is_stale: Where that is to be computed anew.
        scratch: For `falls`.
        squarings: The power is two to this.
    """

    instance: np.ndarray  # [N] int32
    height: np.ndarray  # [N] int32
    below: np.ndarray  # [N] int32
    chain: np.ndarray  # [B, T] int32
    chain_start: np.ndarray  # [B, T] int32
    chain_level: np.ndarray  # [sum of (chain + 1)] int32
    crest_ready: np.ndarray  # [B, T] int32
    path: np.ndarray  # [B] int32
    path_start: np.ndarray  # [B] int32
    path_level: np.ndarray  # [sum of (path + 1)] int32
    path_ready: np.ndarray  # [sum of (path + 1), T] int32
    summit_types: np.ndarray  # [B] int32
    summit_sum: np.ndarray  # [B] int32
    total: np.ndarray  # [T + 1] float64
    chain_fall: np.ndarray  # [T] float64
    path_fall: np.ndarray  # [T] float64
    seen: np.ndarray  # [T] int32
    floor: np.ndarray  # [T + 1] float64
    power: np.ndarray  # [longest path + 1] float64
    weight: np.ndarray  # [T + 1] float64
    chain_value: np.ndarray  # [T] float64
    is_stale: np.ndarray  # [T] bool
    scratch: np.ndarray  # [T] float64
    squarings: int


class Reach(NamedTuple):
    """How far ``N`` nodes of ``T`` types reach towards the end of their graph.

    Attributes:
        chains: Nodes of each type on the path from each node that has most of them,
            the node itself included.
        height: Nodes on the longest path from each node, itself included.
    """

    chains: np.ndarray  # [N, T] int32
    height: np.ndarray  # [N] int32


@njit(cache=True, nogil=True)
def reach(
    node_type: np.ndarray,
    consumer_start: np.ndarray,
    consumers: np.ndarray,
    num_types: int,
) -> Reach:
    """Computes `Reach`; arguments as in `FrontierState`."""
    n = len(node_type)
    chains = np.zeros((n, num_types), np.int32)
    height = np.zeros(n, np.int32)
    for v in range(n - 1, -1, -1):
        highest = 0
        for e in range(consumer_start[v], consumer_start[v + 1]):
            reader = consumers[e]
            highest = max(highest, height[reader])
            for t in range(num_types):
                chains[v, t] = max(chains[v, t], chains[reader, t])
        chains[v, node_type[v]] += 1
        height[v] = highest + 1
    return Reach(chains, height)


@njit(cache=True, nogil=True)
def powers(longest: int, squarings: int) -> np.ndarray:
    """Returns ``k ** (2 ** squarings)`` for k from 0 on; ``[longest + 1] float64``."""
    power = np.arange(longest + 1).astype(np.float64)
    for _ in range(squarings):
        power *= power
    return power


@njit(cache=True, nogil=True)
def root(value: float, squarings: int) -> float:
    """Takes a square root as often; of what rounding made negative, too."""
    value = max(value, 0.0)
    for _ in range(squarings):
        value = math.sqrt(value)
    return value


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
    return SoftBound(*_start(state, instance_nodes, weight, squarings))


def start_soft_bound(
    state: FrontierState,
    instance_nodes: np.ndarray,
    weight: np.ndarray,
    squarings: int,
) -> SoftBound:
    """As `new_soft_bound`, for callers in Python."""
    return SoftBound(*_start(state, instance_nodes, weight, squarings))


@njit(cache=True, nogil=True)
def _start(state, instance_nodes, weight, squarings):
    n = len(state.node_type)
    num_types = len(state.head)
    num_instances = len(instance_nodes)
    chains, height = reach(
        state.node_type, state.consumer_start, state.consumers, num_types
    )
    instance = np.empty(n, np.int32)
    below = np.empty(n, np.int32)
    chain = np.zeros((num_instances, num_types), np.int32)
    path = np.zeros(num_instances, np.int32)
    v = 0
    for i in range(num_instances):
        for _ in range(instance_nodes[i]):
            t = state.node_type[v]
            instance[v] = i
            below[v] = chains[v, t]
            chain[i, t] = max(chain[i, t], below[v])
            path[i] = max(path[i], height[v])
            v += 1
    chain_start, chain_level = _levels(chain)
    path_start, path_level = _levels(path.reshape((num_instances, 1)))
    for v in range(n):
        i = instance[v]
        chain_level[chain_start[i, state.node_type[v]] + below[v]] += 1
        path_level[path_start[i, 0] + height[v]] += 1
    soft = SoftBound(
        instance,
        height,
        below,
        chain,
        chain_start,
        chain_level,
        np.zeros((num_instances, num_types), np.int32),
        path,
        path_start[:, 0].copy(),
        path_level,
        np.zeros((len(path_level), num_types), np.int32),
        np.zeros(num_instances, np.int32),
        np.zeros(num_instances, np.int32),
        np.zeros(num_types + 1),
        np.zeros(num_types),
        np.zeros(num_types),
        np.zeros(num_types, np.int32),
        np.zeros(num_types + 1),
        powers(int(np.max(path)) if num_instances else 0, squarings),
        weight,
        np.zeros(num_types),
        np.ones(num_types, np.bool_),
        np.zeros(num_types),
        squarings,
    )
    for i in range(num_instances):
        for t in range(num_types):
            soft.total[t] += soft.power[chain[i, t]]
    for t in range(num_types):
        soft.floor[t] = soft.total[t] * _FLOOR
    _sum_paths(soft)
    update_soft_bound(soft, state, 0, 0, 0)  # for the nodes that are ready
    return _fields(soft)


@njit(cache=True, nogil=True)
def _levels(length):
    """Lays out one place per level from 0 to each length."""
    start = np.empty(length.shape, np.int32)
    size = 0
    for i in range(length.shape[0]):
        for t in range(length.shape[1]):
            start[i, t] = size
            size += length[i, t] + 1
    return start, np.zeros(size, np.int32)


@njit(cache=True, nogil=True)
def _fields(soft):
    # Compiled functions return plain tuples to Python, see `new_frontier`.
    return (
        soft.instance,
        soft.height,
        soft.below,
        soft.chain,
        soft.chain_start,
        soft.chain_level,
        soft.crest_ready,
        soft.path,
        soft.path_start,
        soft.path_level,
        soft.path_ready,
        soft.summit_types,
        soft.summit_sum,
        soft.total,
        soft.chain_fall,
        soft.path_fall,
        soft.seen,
        soft.floor,
        soft.power,
        soft.weight,
        soft.chain_value,
        soft.is_stale,
        soft.scratch,
        soft.squarings,
    )


@njit(cache=True, nogil=True)
def _sum_chains(soft, t):
    """Sums the powers of a type's chains."""
    total = 0.0
    for i in range(len(soft.chain)):
        total += soft.power[soft.chain[i, t]]
    soft.total[t] = total
    soft.floor[t] = total * _FLOOR


@njit(cache=True, nogil=True)
def _sum_paths(soft):
    """Sums the powers of the paths, and by how much each type would lower them."""
    total = 0.0
    soft.path_fall[:] = 0.0
    for i in range(len(soft.path)):
        length = soft.path[i]
        total += soft.power[length]
        if soft.summit_types[i] == 1:
            lower = soft.power[length] - soft.power[length - 1]
            soft.path_fall[soft.summit_sum[i]] += lower
    soft.total[-1] = total
    soft.floor[-1] = total * _FLOOR


@njit(cache=True, nogil=True)
def no_soft_bound() -> SoftBound:
    """Makes a placeholder for compiled callers that do without."""
    empty = FrontierState(
        np.empty(0, np.int32),
        np.zeros(1, np.int32),
        np.empty(0, np.int32),
        np.empty(0, np.int32),
        np.empty(0, np.int32),
        np.zeros(1, np.int32),
        np.empty(0, np.int32),
        np.empty(0, np.int32),
    )
    return new_soft_bound(empty, np.empty(0, np.int32), np.zeros(1), 0)


# Compiled code counts references to every array of a named tuple where it hands one to
# a function, which here would cost more than the work: so the function below is long,
# and `falls` fills an array.


@njit(cache=True, nogil=True)
def update_soft_bound(
    soft: SoftBound, state: FrontierState, chosen: int, first: int, last: int
) -> None:
    """Follows one call of `run_type`.

    Args:
        soft: `SoftBound`; updated.
        state: The `FrontierState` after the call.
        chosen: The type that ran.
        first: First place of the batch in ``state.queue``.
        last: Its end.
    """
    num_types = len(state.head)
    soft.chain_fall[chosen] = 0.0
    soft.is_stale[chosen] = True
    for place in range(first, last):
        v = state.queue[place]
        i = soft.instance[v]
        soft.crest_ready[i, chosen] = 0
        level = soft.chain_start[i, chosen] + soft.below[v]
        soft.chain_level[level] -= 1
        length = soft.chain[i, chosen]
        if soft.below[v] == length and soft.chain_level[level] == 0:
            soft.chain[i, chosen] = length - 1
            soft.total[chosen] += soft.power[length - 1] - soft.power[length]
        level = soft.path_start[i] + soft.height[v]
        soft.path_level[level] -= 1
        soft.path_ready[level, chosen] -= 1
        length = soft.path[i]
        if soft.height[v] == length and soft.path_ready[level, chosen] == 0:
            # The type leaves the summit.
            lower = soft.power[length] - soft.power[length - 1]
            if soft.summit_types[i] == 1:
                soft.path_fall[soft.summit_sum[i]] -= lower
            soft.summit_types[i] -= 1
            soft.summit_sum[i] -= chosen
            if soft.summit_types[i] == 1:
                soft.path_fall[soft.summit_sum[i]] += lower
            if soft.path_level[level] == 0:
                soft.path[i] = length - 1
                soft.total[num_types] -= lower
                if length > 1:
                    for t in range(num_types):
                        if soft.path_ready[level - 1, t]:
                            soft.summit_types[i] += 1
                            soft.summit_sum[i] += t
                    if soft.summit_types[i] == 1:
                        lower = soft.power[length - 1] - soft.power[length - 2]
                        soft.path_fall[soft.summit_sum[i]] += lower
    if soft.total[chosen] < soft.floor[chosen]:
        _sum_chains(soft, chosen)
    for t in range(num_types):
        begin = state.type_start[t] + soft.seen[t]
        soft.seen[t] = state.tail[t]
        for place in range(begin, state.type_start[t] + state.tail[t]):
            v = state.queue[place]
            i = soft.instance[v]
            length = soft.chain[i, t]
            if soft.below[v] == length:
                soft.crest_ready[i, t] += 1
                crest = soft.chain_level[soft.chain_start[i, t] + length]
                if soft.crest_ready[i, t] == crest:
                    soft.chain_fall[t] += soft.power[length] - soft.power[length - 1]
                    soft.is_stale[t] = True
            level = soft.path_start[i] + soft.height[v]
            soft.path_ready[level, t] += 1
            length = soft.path[i]
            if soft.height[v] == length and soft.path_ready[level, t] == 1:
                # The type joins the summit.
                lower = soft.power[length] - soft.power[length - 1]
                if soft.summit_types[i] == 1:
                    soft.path_fall[soft.summit_sum[i]] -= lower
                soft.summit_types[i] += 1
                soft.summit_sum[i] += t
                if soft.summit_types[i] == 1:
                    soft.path_fall[t] += lower
    if soft.total[num_types] < soft.floor[num_types]:
        _sum_paths(soft)


@njit(cache=True, nogil=True)
def falls(soft: SoftBound, state: FrontierState, value: np.ndarray) -> None:
    """Computes by how much the soft bound would fall if each type ran.

    Args:
        soft: The `SoftBound`.
        state: The `FrontierState`.
        value: ``[T] float64``: receives the falls, in batches, of the types that are on
            the frontier.
    """
    num_types = len(state.head)
    squarings = soft.squarings
    path_total = soft.total[num_types]
    path_value = root(path_total, squarings)
    for t in range(num_types):
        if state.tail[t] == state.head[t]:
            continue
        if soft.is_stale[t]:
            soft.is_stale[t] = False
            soft.chain_value[t] = 0.0
            if soft.chain_fall[t] > 0:
                total = soft.total[t]
                after = root(total - soft.chain_fall[t], squarings)
                soft.chain_value[t] = root(total, squarings) - after
        value[t] = soft.weight[t] * soft.chain_value[t]
        if soft.path_fall[t] > 0:
            after = root(path_total - soft.path_fall[t], squarings)
            value[t] += soft.weight[num_types] * (path_value - after)


@njit(cache=True, nogil=True)
def soft_value(soft: SoftBound) -> float:
    """Returns the soft bound, in batches."""
    value = 0.0
    for t in range(len(soft.total)):
        value += soft.weight[t] * root(soft.total[t], soft.squarings)
    return value
