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
machine. Time O(T (N + E)) to start, T being the types of one instance here, with a
small constant (rows of T numbers), then O(N + E) in all and O(1) per fall; space
O(T (L + B)), L being the lengths of the instances' longest paths.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from edbatch.schedule.frontier import FrontierState

_SMALL = 1e-4  # of a sum: adding it up anew pays


# Columns of the arrays of a `SoftBound`. Rows keep together what is read together, and
# few arrays are quicker to hand over and to allocate than many. Unsigned numbers are
# quicker to index with: Numba need not ask whether they count from the end.
_PAIR, _CHAIN_PLACE, _PATH_PLACE, _READY_PLACE = range(4)
_TYPE, _INSTANCE, _CHAIN, _CREST_PLACE, _CREST_READY = range(5)
_PATH, _SUMMIT_PLACE, _SUMMIT_TYPES, _SUMMIT_SUM, _FIRST_PAIR, _PAIRS = range(6)
_SUMMIT_READY = 6
_TOTAL, _FLOOR, _CHAIN_FALL, _PATH_FALL, _CHAIN_VALUE = range(5)
_SEEN, _STALE = range(2)


class SoftBound(NamedTuple):
    """State for ``N`` nodes of ``T`` types in ``B`` instances; updated in place.

    A *pair* is a type of an instance that has nodes of it; there are up to ``P``.

    Attributes:
        node: Of each node: its pair; its place in ``chain_level``, ``path_level`` and
            ``path_ready``.
        pair: Its type and instance; the longest remaining chain, the place of its crest
            in ``chain_level``, and how many nodes of the crest are on the frontier.
        instance: The longest remaining path, the place of its summit in ``path_level``;
            how many types the summit has and their sum, which is the type itself if it
            is one; the first of the instance's pairs and their number, and the place of
            the summit in ``path_ready``.
        chain_level: Remaining nodes by pair and by nodes of its own type on the path
            from each that has most of them.
        path_level: Remaining nodes by instance and by nodes on the longest path.
        path_ready: Frontier nodes likewise, for each of the instance's types.
        sums: Of each type's chains, and of the paths: the sum over instances of the
            powers; the sum below which it is added up anew (what rounding has lost by
            then would soon count); by how much the chains' sum falls if the type runs,
            and by how much that of the paths; and by how much the chains would lower
            the soft bound, without their weight.
        seen: Nodes of each type that have been taken into account as ready; whether
            its last sum is to be computed anew.
        power: Power of each length.
        weight: Weight of each type's chains, and of the path.
        scratch: For `falls`.
        squarings: The power is two to this.
    """

    node: np.ndarray  # [N, 4] uint32
    pair: np.ndarray  # [P, 5] uint32
    instance: np.ndarray  # [B, 7] uint32
    chain_level: np.ndarray  # [sum of (chain + 1)] int32
    path_level: np.ndarray  # [sum of (path + 1)] int32
    path_ready: np.ndarray  # [sum of (path + 1) times types] int32
    sums: np.ndarray  # [T + 1, 5] float64
    seen: np.ndarray  # [T, 2] int32
    power: np.ndarray  # [longest path + 1] float64
    weight: np.ndarray  # [T + 1] float64
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
    num_types = len(state.head)
    num_instances = len(instance_nodes)
    node, pair, instance = _measure(state, instance_nodes)
    chain_level, path_level, path_ready = _lay_out_levels(node, pair, instance)
    longest = 0
    for i in range(num_instances):
        longest = max(longest, instance[i, _PATH])
    soft = SoftBound(
        node,
        pair,
        instance,
        chain_level,
        path_level,
        path_ready,
        np.zeros((num_types + 1, 5)),
        np.ones((num_types, 2), np.int32),
        powers(longest, squarings),
        weight,
        np.empty(num_types),
        squarings,
    )
    for p in range(len(pair)):
        soft.sums[pair[p, _TYPE], _TOTAL] += soft.power[pair[p, _CHAIN]]
    for t in range(num_types):
        soft.sums[t, _FLOOR] = soft.sums[t, _TOTAL] * _SMALL
        soft.seen[t, _SEEN] = 0
    _sum_paths(soft)
    update_soft_bound(soft, state, 0, 0, 0)  # for the nodes that are ready
    # Compiled functions return plain tuples to Python, see `new_frontier`.
    return (
        soft.node,
        soft.pair,
        soft.instance,
        soft.chain_level,
        soft.path_level,
        soft.path_ready,
        soft.sums,
        soft.seen,
        soft.power,
        soft.weight,
        soft.scratch,
        soft.squarings,
    )


@njit(cache=True, nogil=True)
def _measure(state, instance_nodes):
    """Finds pairs, chains and paths; places are levels yet, within pair or instance."""
    node, pair, instance = _find_pairs(state, instance_nodes)
    most_nodes = 0
    most_pairs = 0
    for i in range(len(instance)):
        most_nodes = max(most_nodes, instance_nodes[i])
        most_pairs = max(most_pairs, instance[i, _PAIRS])
    # As `Reach.chains`, of one instance at a time, and for its own types only.
    chains = np.empty((most_nodes, most_pairs), np.int32)
    begin = 0
    for i in range(len(instance)):
        first = instance[i, _FIRST_PAIR]
        width = instance[i, _PAIRS]
        longest = 0
        for row in range(instance_nodes[i] - 1, -1, -1):
            v = begin + row
            height = 0
            for k in range(width):
                chains[row, k] = 0
            for e in range(state.consumer_start[v], state.consumer_start[v + 1]):
                reader = state.consumers[e]
                height = max(height, node[reader, _PATH_PLACE])
                other = reader - begin
                for k in range(width):
                    chains[row, k] = max(chains[row, k], chains[other, k])
            p = node[v, _PAIR]
            below = chains[row, p - first] + 1
            chains[row, p - first] = below
            pair[p, _CHAIN] = max(pair[p, _CHAIN], below)
            longest = max(longest, height + 1)
            node[v, _CHAIN_PLACE] = below
            node[v, _PATH_PLACE] = height + 1
        instance[i, _PATH] = longest
        begin += instance_nodes[i]
    return node, pair, instance


@njit(cache=True, nogil=True)
def _find_pairs(state, instance_nodes):
    """Numbers the pairs, instance by instance."""
    n = len(state.node_type)
    num_instances = len(instance_nodes)
    num_types = len(state.head)
    node = np.empty((n, 4), np.uint32)
    instance = np.zeros((num_instances, 7), np.uint32)
    pair = np.zeros((min(n, num_instances * num_types), 5), np.uint32)
    pair_of = np.full(num_types, -1, np.int32)
    num_pairs = 0
    v = 0
    for i in range(num_instances):
        first = num_pairs
        for _ in range(instance_nodes[i]):
            t = state.node_type[v]
            if pair_of[t] < first:
                pair_of[t] = num_pairs
                pair[num_pairs, _TYPE] = t
                pair[num_pairs, _INSTANCE] = i
                num_pairs += 1
            node[v, _PAIR] = pair_of[t]
            v += 1
        instance[i, _FIRST_PAIR] = first
        instance[i, _PAIRS] = num_pairs - first
    return node, pair[:num_pairs], instance


@njit(cache=True, nogil=True)
def _lay_out_levels(node, pair, instance):
    """Gives each level a place of its own and counts the nodes of each."""
    chain_size = 0
    for p in range(len(pair)):
        pair[p, _CREST_PLACE] = chain_size + pair[p, _CHAIN]
        chain_size += pair[p, _CHAIN] + 1
    path_size = 0
    ready_size = 0
    for i in range(len(instance)):
        length = instance[i, _PATH]
        width = instance[i, _PAIRS]
        instance[i, _SUMMIT_PLACE] = path_size + length
        instance[i, _SUMMIT_READY] = ready_size + length * width
        path_size += length + 1
        ready_size += (length + 1) * width
    chain_level = np.zeros(chain_size, np.int32)
    path_level = np.zeros(path_size, np.int32)
    for v in range(len(node)):
        p = node[v, _PAIR]
        i = pair[p, _INSTANCE]
        depth = instance[i, _PATH] - node[v, _PATH_PLACE]
        node[v, _READY_PLACE] = (
            instance[i, _SUMMIT_READY]
            - depth * instance[i, _PAIRS]
            + p
            - instance[i, _FIRST_PAIR]
        )
        node[v, _PATH_PLACE] = instance[i, _SUMMIT_PLACE] - depth
        node[v, _CHAIN_PLACE] += pair[p, _CREST_PLACE] - pair[p, _CHAIN]
        chain_level[node[v, _CHAIN_PLACE]] += 1
        path_level[node[v, _PATH_PLACE]] += 1
    return chain_level, path_level, np.zeros(ready_size, np.int32)


@njit(cache=True, nogil=True)
def _sum_chains(soft, t):
    """Sums the powers of a type's chains."""
    total = 0.0
    for p in range(len(soft.pair)):
        if soft.pair[p, _TYPE] == t:
            total += soft.power[soft.pair[p, _CHAIN]]
    soft.sums[t, _TOTAL] = total
    soft.sums[t, _FLOOR] = total * _SMALL


@njit(cache=True, nogil=True)
def _sum_paths(soft):
    """Sums the powers of the paths, and by how much each type would lower them."""
    total = 0.0
    soft.sums[:, _PATH_FALL] = 0.0
    for i in range(len(soft.instance)):
        length = soft.instance[i, _PATH]
        total += soft.power[length]
        if soft.instance[i, _SUMMIT_TYPES] == 1:
            lower = soft.power[length] - soft.power[length - 1]
            soft.sums[soft.instance[i, _SUMMIT_SUM], _PATH_FALL] += lower
    soft.sums[-1, _TOTAL] = total
    soft.sums[-1, _FLOOR] = total * _SMALL


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
    node, pair, instance, sums = soft.node, soft.pair, soft.instance, soft.sums
    power, path_ready = soft.power, soft.path_ready
    sums[chosen, _CHAIN_FALL] = 0.0
    soft.seen[chosen, _STALE] = 1
    for place in range(first, last):
        v = state.queue[place]
        p = node[v, _PAIR]
        i = pair[p, _INSTANCE]
        pair[p, _CREST_READY] = 0
        level = node[v, _CHAIN_PLACE]
        soft.chain_level[level] -= 1
        if level == pair[p, _CREST_PLACE] and soft.chain_level[level] == 0:
            length = pair[p, _CHAIN]
            pair[p, _CHAIN] = length - 1
            pair[p, _CREST_PLACE] = level - 1
            sums[chosen, _TOTAL] += power[length - 1] - power[length]
        level = node[v, _PATH_PLACE]
        soft.path_level[level] -= 1
        path_ready[node[v, _READY_PLACE]] -= 1
        if (
            level == instance[i, _SUMMIT_PLACE]
            and path_ready[node[v, _READY_PLACE]] == 0
        ):
            # The type leaves the summit.
            length = instance[i, _PATH]
            lower = power[length] - power[length - 1]
            if instance[i, _SUMMIT_TYPES] == 1:
                sums[instance[i, _SUMMIT_SUM], _PATH_FALL] -= lower
            instance[i, _SUMMIT_TYPES] -= 1
            instance[i, _SUMMIT_SUM] -= chosen
            if instance[i, _SUMMIT_TYPES] == 1:
                sums[instance[i, _SUMMIT_SUM], _PATH_FALL] += lower
            if soft.path_level[level] == 0:
                instance[i, _PATH] = length - 1
                instance[i, _SUMMIT_PLACE] = level - 1
                instance[i, _SUMMIT_READY] -= instance[i, _PAIRS]
                sums[num_types, _TOTAL] -= lower
                if length > 1:
                    for k in range(instance[i, _PAIRS]):
                        if path_ready[instance[i, _SUMMIT_READY] + k]:
                            instance[i, _SUMMIT_TYPES] += 1
                            t = pair[instance[i, _FIRST_PAIR] + k, _TYPE]
                            instance[i, _SUMMIT_SUM] += t
                    if instance[i, _SUMMIT_TYPES] == 1:
                        lower = power[length - 1] - power[length - 2]
                        sums[instance[i, _SUMMIT_SUM], _PATH_FALL] += lower
    if sums[chosen, _TOTAL] < sums[chosen, _FLOOR]:
        _sum_chains(soft, chosen)
    for t in range(num_types):
        if soft.seen[t, _SEEN] == state.tail[t]:
            continue
        begin = state.type_start[t] + soft.seen[t, _SEEN]
        soft.seen[t, _SEEN] = state.tail[t]
        for place in range(begin, state.type_start[t] + state.tail[t]):
            v = state.queue[place]
            p = node[v, _PAIR]
            i = pair[p, _INSTANCE]
            level = node[v, _CHAIN_PLACE]
            if level == pair[p, _CREST_PLACE]:
                pair[p, _CREST_READY] += 1
                if pair[p, _CREST_READY] == soft.chain_level[level]:
                    length = pair[p, _CHAIN]
                    sums[t, _CHAIN_FALL] += power[length] - power[length - 1]
                    soft.seen[t, _STALE] = 1
            path_ready[node[v, _READY_PLACE]] += 1
            if (
                node[v, _PATH_PLACE] == instance[i, _SUMMIT_PLACE]
                and path_ready[node[v, _READY_PLACE]] == 1
            ):
                # The type joins the summit.
                length = instance[i, _PATH]
                lower = power[length] - power[length - 1]
                if instance[i, _SUMMIT_TYPES] == 1:
                    sums[instance[i, _SUMMIT_SUM], _PATH_FALL] -= lower
                instance[i, _SUMMIT_TYPES] += 1
                instance[i, _SUMMIT_SUM] += t
                if instance[i, _SUMMIT_TYPES] == 1:
                    sums[t, _PATH_FALL] += lower
    if sums[num_types, _TOTAL] < sums[num_types, _FLOOR]:
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
    sums = soft.sums
    path_total = sums[num_types, _TOTAL]
    path_value = root(path_total, squarings)
    for t in range(num_types):
        if state.tail[t] == state.head[t]:
            continue
        if soft.seen[t, _STALE]:
            soft.seen[t, _STALE] = 0
            sums[t, _CHAIN_VALUE] = 0.0
            if sums[t, _CHAIN_FALL] > 0:
                total = sums[t, _TOTAL]
                after = root(total - sums[t, _CHAIN_FALL], squarings)
                sums[t, _CHAIN_VALUE] = root(total, squarings) - after
        value[t] = soft.weight[t] * sums[t, _CHAIN_VALUE]
        if sums[t, _PATH_FALL] > 0:
            after = root(path_total - sums[t, _PATH_FALL], squarings)
            value[t] += soft.weight[num_types] * (path_value - after)


@njit(cache=True, nogil=True)
def soft_value(soft: SoftBound) -> float:
    """Returns the soft bound, in batches."""
    value = 0.0
    for t in range(len(soft.sums)):
        value += soft.weight[t] * root(soft.sums[t, _TOTAL], soft.squarings)
    return value
