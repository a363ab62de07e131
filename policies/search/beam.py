"""Beam search over the states of a minibatch, ranked by the smoothed bound.

In each layer, every kept state is continued with every type on its frontier. Of these
continuations, the `width` with the least cost so far plus smoothed bound
(`edbatch.policies.smooth_bound.bound`) are kept. Where ED-Batch's sufficient condition
holds for a type, some optimal schedule runs it next, so the state is continued with
that type only. A type whose nodes have no readers waits until all of them are ready,
because they could all run in a later batch.

States whose lower bound shows that they cannot lead to fewer batches than already known
are dropped. If no other state was ever dropped, the result is proven: with room for all
states this is an exact solver (breadth-first with a bound: it expands the same states
as A*, in another order).

A layer of a minibatch of B instances costs O(W F B) look-ups for width W and F types on
the frontiers, plus the construction of instance states not met before.
"""

import math
import time
from typing import NamedTuple

import numpy as np

from edbatch.kernel import kernel
from edbatch.policies.search.instance_graph import InstanceGraph
from edbatch.policies.search.instance_states import (
    InstanceStates,
    follow,
    grown,
    new_scratch,
    table_size,
)
from edbatch.policies.smooth_bound.bound import powers, root

FOUND, EXHAUSTED, STOPPED = range(3)


class BeamResult(NamedTuple):
    """The result of a search.

    Attributes:
        states: The instance states, in new arrays if they had to grow.
        outcome: `FOUND` if a schedule below the given limit was found; otherwise
            `EXHAUSTED` if no state was left to continue, or `STOPPED` if time ran out.
        is_complete: Whether the search ended and dropped no state for lack of width.
        actions: The sequence of types to run; empty if not found. ``[batches] int32``.
    """

    states: InstanceStates
    outcome: int
    is_complete: bool
    actions: np.ndarray


class _Layers(NamedTuple):
    """The current and the next layer, alternating, and back-pointers of all layers.

    Attributes:
        present: State of each instance, for each kept state.
        chain: Longest remaining chain of each type.
        share: Contribution of each type's chains, and of the paths, to the smoothed
            bound.
        ready: Frontier nodes of each type.
        paid: Cost of the batches so far.
        parent: Kept state of the previous layer that each kept state continues.
        action: Type that was run to reach it.
        progress: Index of the current layer, its number of kept states, number of
            layers that dropped states for lack of width, and layer and place of the
            best final state so far.
        limit: The cost to beat.
    """

    present: np.ndarray  # [2, W, B] int32
    chain: np.ndarray  # [2, W, T] int32
    share: np.ndarray  # [2, W, T + 1] float64
    ready: np.ndarray  # [2, W, T] int32
    paid: np.ndarray  # [2, W] float64
    parent: np.ndarray  # [layers, W] int32
    action: np.ndarray  # [layers, W] int32
    progress: np.ndarray  # [5] int64
    limit: np.ndarray  # [1] float64


def search_beam(
    graph: InstanceGraph,
    states: InstanceStates,
    start: np.ndarray,
    weight: np.ndarray,
    log2_p: int,
    width: int,
    limit: float,
    max_ms: float = np.inf,
    cost: np.ndarray | None = None,
) -> BeamResult:
    """Searches for a schedule with fewer batches, or of less cost.

    Args:
        graph: The minibatch.
        states: States of its instances; new ones are added.
        start: Start state of each instance to schedule, all or some; ``[B'] int32``.
        weight: Weight of each type's chains, and of the path; ``[T + 1]``.
        log2_p: Base-2 logarithm of the p of the smoothed bound.
        width: How many states to keep per layer.
        limit: Known number of batches, or cost; the search looks for less.
        max_ms: Time limit in milliseconds, checked about every millisecond.
        cost: Cost of one batch of each type, above 0; 1 for all if None. ``[T]``.

    Returns:
        The result of the search.
    """
    deadline = time.perf_counter() + max_ms / 1e3
    num_types = states.ready.shape[1]
    if cost is None:
        cost = np.ones(num_types)
    power = powers(int(states.chain[start, -1].max(initial=1)), log2_p)
    # The weight of the path is scaled by the mean cost of a batch.
    weight = weight * np.append(cost, cost.mean() if num_types else 1.0)
    weights = _Weights(power, weight, log2_p, cost)
    most = math.ceil(min(limit / cost.min(initial=np.inf), len(graph.node_type)))
    layers = _Layers(
        np.empty((2, width, len(start)), np.int32),
        np.empty((2, width, num_types), np.int32),
        np.empty((2, width, num_types + 1)),
        np.empty((2, width, num_types), np.int32),
        np.zeros((2, width)),
        np.empty((most, width), np.int32),
        np.empty((most, width), np.int32),
        np.array([0, 1, 0, _NO_END, _NO_END]),
        np.array([limit], np.float64),
    )
    layers.present[0, 0] = start
    layers.chain[0, 0] = states.chain[start, :-1].max(axis=0, initial=0)
    totals = power[states.chain[start]].sum(axis=0)
    layers.share[0, 0] = weight * [root(total, log2_p) for total in totals]
    layers.ready[0, 0] = states.ready[start].sum(axis=0)
    is_over = False
    while not is_over:
        *arrays, is_over = _advance(graph, states, layers, weights, _WORK)
        states = InstanceStates(*arrays)
        if time.perf_counter() > deadline:
            break
    *_, dropped, end, last = layers.progress.tolist()
    actions = np.empty(max(end, 0), np.int32)
    for layer in reversed(range(len(actions))):
        actions[layer] = layers.action[layer, last]
        last = layers.parent[layer, last]
    nothing = EXHAUSTED if is_over else STOPPED
    outcome = FOUND if end != _NO_END else nothing
    return BeamResult(states, outcome, bool(is_over) and dropped == 0, actions)


_NO_END = -1
_EQUAL = 1e-9  # costs that differ by less are equal up to rounding

# In look-ups: the work of about a millisecond, and the work of making a state, in
# addition to one for each node that is scanned for heads.
_WORK = 50_000
_STATE_WORK = 100


class _Weights(NamedTuple):
    """The smoothed bound and the cost of batches.

    Attributes:
        power: Each length of a chain to the power of p.
        weight: Weight of each type's chains, and of the path.
        log2_p: Base-2 logarithm of the p of the bound.
        cost: Cost of one batch of each type.
    """

    power: np.ndarray  # [longest + 1] float64
    weight: np.ndarray  # [T + 1] float64
    log2_p: int
    cost: np.ndarray  # [T] float64


class _Side(NamedTuple):
    """One layer: the fields of `_Layers` without their first axis."""

    present: np.ndarray
    chain: np.ndarray
    share: np.ndarray
    ready: np.ndarray
    paid: np.ndarray


class _Continuations(NamedTuple):
    """Continuations of one layer, at most ``M``.

    Attributes:
        value: Cost so far plus the smoothed bound.
        parent: The kept state that is continued.
        action: The type that is run.
        key: Hash key of the resulting state.
        chain: Longest remaining chain of that type.
        share: Contributions of the type's chains and of the paths to the smoothed
            bound.
    """

    value: np.ndarray  # [M] float64
    parent: np.ndarray  # [M] int32
    action: np.ndarray  # [M] int32
    key: np.ndarray  # [M] uint64
    chain: np.ndarray  # [M] int32
    share: np.ndarray  # [M, 2] float64


@kernel
def _new_continuations(most):
    return _Continuations(
        np.empty(most),
        np.empty(most, np.int32),
        np.empty(most, np.int32),
        np.empty(most, np.uint64),
        np.empty(most, np.int32),
        np.empty((most, 2)),
    )


@kernel
def _side(layers, k):
    return _Side(
        layers.present[k],
        layers.chain[k],
        layers.share[k],
        layers.ready[k],
        layers.paid[k],
    )


@kernel
def _advance(graph, states, layers, weights, max_work):
    """Advances layer by layer until no state is left or `max_work` is done."""
    width, num_types = layers.present.shape[1], graph.chains.shape[1]
    scratch = new_scratch(graph)
    found = _new_continuations(width * num_types)
    kept = np.empty(width, np.int64)
    table = np.empty(table_size(width), np.int64)  # kept states by key
    is_last = _read_by_none(graph)
    layer, size = layers.progress[0], layers.progress[1]
    work = 0
    while size > 0 and work < max_work:
        now, after = _side(layers, layer % 2), _side(layers, 1 - layer % 2)
        _note_ends(layers, now, layer, size)
        made, scanned = states.used[0], states.used[3]
        limit = layers.limit[0]
        states, count, looked = _continue(
            graph, states, scratch, now, size, weights, limit, is_last, found
        )
        work += looked
        work += (states.used[0] - made) * _STATE_WORK + states.used[3] - scanned
        size, dropped = _keep_best(states, now, after, found, count, kept, table)
        for k in range(size):
            c = kept[k]
            after.paid[k] = now.paid[found.parent[c]] + weights.cost[found.action[c]]
            layers.parent[layer, k] = found.parent[c]
            layers.action[layer, k] = found.action[c]
        layers.progress[2] += dropped
        layer += 1
    layers.progress[0] = layer
    layers.progress[1] = size
    return (
        states.place,
        states.key,
        states.ready,
        states.chain,
        states.allowed,
        states.following,
        states.frontier,
        states.bits,
        states.table,
        states.used,
        size == 0,
    )


@kernel
def _note_ends(layers, now, layer, size):
    """Records the cheapest kept state of a layer in which no node is left to run."""
    for k in range(size):
        if now.paid[k] < layers.limit[0] and now.chain[k].sum() == 0:
            layers.limit[0] = now.paid[k]
            layers.progress[3] = layer
            layers.progress[4] = k


@kernel
def _continue(graph, states, scratch, now, size, weights, limit, is_last, found):
    """Continues the states of a layer.

    Returns the instance states, whose arrays may have grown, and the numbers of
    continuations and of look-ups.
    """
    power, weight, log2_p, cost = weights
    num_types, num_instances = len(cost), now.present.shape[1]
    count = 0
    work = 0
    for p in range(size):
        bound = now.paid[p]
        base = now.paid[p]
        for t in range(num_types):
            bound += cost[t] * now.chain[p, t]
            base += now.share[p, t]
        first = count
        for a in range(num_types):
            if now.ready[p, a] == 0:
                continue
            while not _follow_all(graph, states, scratch, now.present[p], a):
                states = grown(states)
            is_allowed, longest, chain_total, path_total, key = _evaluate(
                states.following,
                states.chain,
                states.allowed,
                states.key,
                power,
                now.present[p],
                a,
            )
            work += num_instances
            if is_allowed:
                count = first  # some optimal schedule runs this type next
            elif is_last[a]:
                continue  # a later batch of the type could run these nodes, too
            # The cost of the batch, minus the decrease of the lower bound.
            if bound + cost[a] * (1 + longest - now.chain[p, a]) < limit - _EQUAL:
                chain_share = weight[a] * root(chain_total, log2_p)
                path_share = weight[num_types] * root(path_total, log2_p)
                found.value[count] = base + cost[a] - now.share[p, a]
                found.value[count] += chain_share + path_share
                found.share[count, 0] = chain_share
                found.share[count, 1] = path_share
                found.parent[count] = p
                found.action[count] = a
                found.key[count] = key
                found.chain[count] = longest
                count += 1
            if is_allowed:
                break
    return states, count, work


@kernel
def _keep_best(states, now, after, found, count, kept, table):
    """Fills the next layer; returns its size, and 1 if it dropped states, or 0."""
    size = 0
    table[:] = -1
    for c in np.argsort(found.value[:count], kind="mergesort"):
        p, a = found.parent[c], found.action[c]
        k = found.key[c] & np.uint64(len(table) - 1)
        is_new = True
        while is_new and table[k] >= 0:
            if found.key[kept[table[k]]] == found.key[c]:
                other = after.present[table[k]]
                is_new = not _is_same(states.following, now.present[p], a, other)
            k = (k + np.uint64(1)) & np.uint64(len(table) - 1)
        if not is_new:
            continue
        if size == len(kept):
            return size, 1
        table[k] = size
        kept[size] = c
        _write_state(states, now, after, found, c, size)
        size += 1
    return size, 0


@kernel(counting=False)
def _write_state(states, now, after, found, c, place):
    """Writes the state of a continuation to a place of the next layer."""
    p, a = found.parent[c], found.action[c]
    num_types = now.chain.shape[1]
    for t in range(num_types):
        after.chain[place, t] = now.chain[p, t]
        after.share[place, t] = now.share[p, t]
        after.ready[place, t] = now.ready[p, t]
    after.chain[place, a] = found.chain[c]
    after.share[place, a] = found.share[c, 0]
    after.share[place, num_types] = found.share[c, 1]
    for i in range(now.present.shape[1]):
        before = now.present[p, i]
        s = states.following[before, a]
        after.present[place, i] = s
        if s != before:
            for t in range(num_types):
                after.ready[place, t] += states.ready[s, t]
                after.ready[place, t] -= states.ready[before, t]


@kernel
def _read_by_none(graph):
    """Finds the types whose nodes have no readers."""
    is_last = np.ones(graph.chains.shape[1], np.bool_)
    for v in range(len(graph.node_type)):
        if graph.consumer_start[v + 1] > graph.consumer_start[v]:
            is_last[graph.node_type[v]] = False
    return is_last


@kernel
def _follow_all(graph, states, scratch, present, a):
    """Makes the states after running a type; returns whether there was room."""
    for before in present:
        if (
            states.following[before, a] < 0
            and follow(graph, states, scratch, before, a) < 0
        ):
            return False
    return True


@kernel(counting=False)
def _evaluate(following, chain, allowed, key, power, present, a):
    """Computes all terms of a continuation's value, and the key of its state."""
    is_allowed = True
    longest = 0
    chain_total = 0.0
    path_total = 0.0
    found_key = np.uint64(0)
    path = chain.shape[1] - 1
    for k in range(len(present)):
        before = present[k]
        is_allowed &= allowed[before, a]
        s = following[before, a]
        length = chain[s, a]
        longest = max(longest, length)
        chain_total += power[length]
        path_total += power[chain[s, path]]
        found_key += key[s]
    return is_allowed, longest, chain_total, path_total, found_key


@kernel(counting=False)
def _is_same(following, present, a, other):
    """Returns whether running a type leads to the kept state `other`."""
    same = True
    for k in range(len(present)):
        same &= following[present[k], a] == other[k]
    return same
