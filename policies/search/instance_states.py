"""Cached states of single instances, so that a search can run thousands of schedules.

Instances of a minibatch are independent, so the state of an execution is one state per
instance, and running a type advances each of them separately. Each state of an instance
is computed once, when it is first reached, together with its frontier, its longest
remaining chains and the types that the sufficient condition of ED-Batch (Chen et al.,
ICML 2023, section 2.3) allows. After that, a step of a whole minibatch is one look-up
per instance.

A state is the set of nodes that have run, stored as bits from the first node that has
not run to the last that has. States are looked up by the exclusive or of a random
number per node (Zobrist hashing), and compared bit by bit.

Making a state of an instance of n nodes and e operands costs O(n + e) for each 64
types; less for long instances, because only nodes that could be heads are scanned (see
`InstanceGraph.settled`).
"""

from typing import NamedTuple

import numpy as np

from edbatch.kernel import kernel
from edbatch.policies.search.instance_graph import InstanceGraph

UNKNOWN = -1
_FULL = -2
_MASK_TYPES = 64
_ALL = np.uint64(2**64 - 1)


class InstanceStates(NamedTuple):
    """The ``S`` states met so far; the arrays have spare capacity.

    Attributes:
        place: Six columns per state: its instance; start and size of its part of
            `frontier`; start and number of words of its part of `bits`, and the number
            of full words that precede them.
        key: Exclusive or of the random numbers of the nodes that have run.
        ready: Frontier nodes of each type.
        chain: Longest remaining chain of each type, and longest remaining path.
        allowed: Whether all heads of a type are on the frontier, or there are none.
        following: State after running each type, the state itself where no node of the
            type is ready, or `UNKNOWN`.
        frontier: Frontier nodes of all states.
        bits: Bits of the nodes that have run, for all states.
        table: Hash table of states by key, with open addressing; its size is a power of
            two.
        used: Numbers of states, of frontier nodes, of words of bits, and of nodes
            scanned for heads, which measures the cost of making the states.
    """

    place: np.ndarray  # [capacity, 6] int64
    key: np.ndarray  # [capacity] uint64
    ready: np.ndarray  # [capacity, T] int32
    chain: np.ndarray  # [capacity, T + 1] int32
    allowed: np.ndarray  # [capacity, T] bool
    following: np.ndarray  # [capacity, T] int32
    frontier: np.ndarray  # [*] int32
    bits: np.ndarray  # [*] uint64
    table: np.ndarray  # [*] int32
    used: np.ndarray  # [4] int64


class Scratch(NamedTuple):
    """Buffers for making a state of an instance of ``n`` nodes.

    Attributes:
        frontier: Its frontier.
        bits: Its bits.
        above: Types of the remaining ancestors of each node, as bits; before that, the
            marks of `follow`.
    """

    frontier: np.ndarray  # [n + 1] int32
    bits: np.ndarray  # [words] uint64
    above: np.ndarray  # [n] uint64


def new_states(graph: InstanceGraph) -> tuple[InstanceStates, np.ndarray]:
    """Makes the start states of the instances.

    Returns:
        The states, and the start state of each instance, ``[B] int32``.
    """
    *states, start = _start(graph)
    return InstanceStates(*states), start


@kernel
def _start(graph):
    num_types = graph.chains.shape[1]
    num_instances = len(graph.first_node) - 1
    capacity = max(256, 2 * len(graph.node_type), 4 * num_instances)
    states = InstanceStates(
        np.empty((capacity, 6), np.int64),
        np.empty(capacity, np.uint64),
        np.empty((capacity, num_types), np.int32),
        np.empty((capacity, num_types + 1), np.int32),
        np.empty((capacity, num_types), np.bool_),
        np.empty((capacity, num_types), np.int32),
        np.empty(8 * capacity, np.int32),
        np.empty(4 * capacity, np.uint64),
        np.full(table_size(capacity), UNKNOWN, np.int32),
        np.zeros(4, np.int64),
    )
    scratch = new_scratch(graph)
    start = np.empty(num_instances, np.int32)
    for i in range(num_instances):
        first, last = graph.first_node[i], graph.first_node[i + 1]
        size = 0
        for v in range(first, last):
            is_ready = True
            for e in range(graph.operand_start[v], graph.operand_start[v + 1]):
                is_ready = is_ready and graph.operands[e] < 0
            if is_ready:
                scratch.frontier[size] = v
                size += 1
        scratch.bits[: (last - first + 63) >> 6] = 0
        found = _FULL
        while found == _FULL:
            # A random key per instance distinguishes their empty sets.
            found = _find_or_add(graph, states, scratch, i, size, _random(-1 - i))
            if found == _FULL:
                states = grown(states)
        start[i] = found
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
        start,
    )


@kernel
def new_scratch(graph: InstanceGraph) -> Scratch:
    """Allocates buffers for states of the largest instance."""
    largest = 0
    for i in range(len(graph.first_node) - 1):
        largest = max(largest, graph.first_node[i + 1] - graph.first_node[i])
    return Scratch(
        np.empty(largest + 1, np.int32),
        np.empty((largest + 63) >> 6, np.uint64),
        np.empty(largest, np.uint64),
    )


@kernel
def table_size(capacity: int) -> int:
    """Returns the size of a hash table for `capacity` entries, a power of two."""
    size = 1
    while size < 2 * capacity:
        size *= 2
    return size


@kernel
def grown(states: InstanceStates) -> InstanceStates:
    """Returns the states in arrays of twice the length."""
    capacity = 2 * len(states.key)
    num_types = states.ready.shape[1]
    size = states.used[0]
    place = np.empty((capacity, 6), np.int64)
    key = np.empty(capacity, np.uint64)
    ready = np.empty((capacity, num_types), np.int32)
    chain = np.empty((capacity, num_types + 1), np.int32)
    allowed = np.empty((capacity, num_types), np.bool_)
    following = np.empty((capacity, num_types), np.int32)
    frontier = np.empty(2 * len(states.frontier), np.int32)
    bits = np.empty(2 * len(states.bits), np.uint64)
    # Loops, because Numba compiles an error message for each assignment to a slice.
    for s in range(size):
        key[s] = states.key[s]
        for column in range(place.shape[1]):
            place[s, column] = states.place[s, column]
        for t in range(num_types):
            ready[s, t] = states.ready[s, t]
            allowed[s, t] = states.allowed[s, t]
            following[s, t] = states.following[s, t]
        for t in range(num_types + 1):
            chain[s, t] = states.chain[s, t]
    for k in range(states.used[1]):
        frontier[k] = states.frontier[k]
    for k in range(states.used[2]):
        bits[k] = states.bits[k]
    table = np.full(table_size(capacity), UNKNOWN, np.int32)
    last = np.uint64(len(table) - 1)
    for s in range(size):
        k = key[s] & last
        while table[k] != UNKNOWN:
            k = (k + np.uint64(1)) & last
        table[k] = s
    return InstanceStates(
        place, key, ready, chain, allowed, following, frontier, bits, table, states.used
    )


@kernel
def _random(v):
    """Returns the random number of a node, by the finalizer of SplitMix64."""
    z = np.uint64(v + 1) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@kernel
def _has_run(bits, place):
    return (bits[place >> 6] >> np.uint64(place & 63)) & np.uint64(1) != 0


@kernel
def follow(
    graph: InstanceGraph,
    states: InstanceStates,
    scratch: Scratch,
    state: int,
    chosen: int,
) -> int:
    """Runs all frontier nodes of a type in one instance.

    Args:
        graph: The minibatch.
        states: `InstanceStates`; the new one is added.
        scratch: `Scratch`.
        state: The state before.
        chosen: The type; at least one of its nodes is ready.

    Returns:
        The state after, or a negative number if the arrays are full; then nothing has
        changed, and the call succeeds with the `grown` arrays.
    """
    i = states.place[state, 0]
    begin = graph.first_node[i]
    words = (graph.first_node[i + 1] - begin + 63) >> 6
    frontier, bits = scratch.frontier, scratch.bits
    first_word = states.place[state, 3]
    count = states.place[state, 4]
    full = states.place[state, 5]
    for w in range(words):
        if w < full:
            bits[w] = _ALL
        elif w < full + count:
            bits[w] = states.bits[first_word + w - full]
        else:
            bits[w] = 0
    key = states.key[state]
    first = states.place[state, 1]
    last = first + states.place[state, 2]
    size = 0
    for place in range(first, last):
        v = states.frontier[place]
        if graph.node_type[v] == chosen:
            bits[(v - begin) >> 6] |= np.uint64(1) << np.uint64((v - begin) & 63)
            key ^= _random(v)
        else:
            frontier[size] = v
            size += 1
    # Each reader is checked once; the marks are overwritten later.
    mark = scratch.above
    for is_marked in (False, True):
        for place in range(first, last):
            v = states.frontier[place]
            if graph.node_type[v] != chosen:
                continue
            for e in range(graph.consumer_start[v], graph.consumer_start[v + 1]):
                reader = graph.consumers[e]
                if not is_marked:
                    mark[reader - begin] = 1
                    continue
                is_ready = mark[reader - begin] == 1
                mark[reader - begin] = 0
                o = graph.operand_start[reader]
                while is_ready and o < graph.operand_start[reader + 1]:
                    u = graph.operands[o]
                    is_ready = u < 0 or _has_run(bits, u - begin)
                    o += 1
                if is_ready:
                    frontier[size] = reader
                    size += 1
    found = _find_or_add(graph, states, scratch, i, size, key)
    if found >= 0:
        states.following[state, chosen] = found
    return found


@kernel
def _find_or_add(graph, states, scratch, i, size, key):
    """Finds or adds the state in `scratch`; returns `_FULL` if there is no room."""
    begin, end = graph.first_node[i], graph.first_node[i + 1]
    words = (end - begin + 63) >> 6
    bits = scratch.bits
    lowest = end
    for j in range(size):
        lowest = min(lowest, scratch.frontier[j])
    full = (lowest - begin) >> 6 if size else words
    count = words - full
    while count > 0 and bits[full + count - 1] == 0:
        count -= 1
    k = _place_in_table(states, bits, i, key, full, count)
    if states.table[k] != UNKNOWN:
        return states.table[k]
    s = states.used[0]
    if (
        s == len(states.key)
        or states.used[1] + size > len(states.frontier)
        or states.used[2] + count > len(states.bits)
    ):
        return _FULL
    states.table[k] = s
    states.key[s] = key
    states.place[s, 0] = i
    states.place[s, 1] = states.used[1]
    states.place[s, 2] = size
    states.place[s, 3] = states.used[2]
    states.place[s, 4] = count
    states.place[s, 5] = full
    _add_frontier(graph, states, scratch.frontier, s, size)
    for w in range(count):
        states.bits[states.used[2] + w] = bits[full + w]
    states.used[0] += 1
    states.used[1] += size
    states.used[2] += count
    _find_allowed(graph, states, scratch, s, begin, lowest, end, full + count)
    return s


@kernel
def _place_in_table(states, bits, i, key, full, count):
    """Returns the slot of the hash table for the state with these bits."""
    last = np.uint64(len(states.table) - 1)
    k = key & last
    while states.table[k] != UNKNOWN:
        s = states.table[k]
        is_same = states.key[s] == key and states.place[s, 0] == i
        if is_same and states.place[s, 4] == count and states.place[s, 5] == full:
            first_word = states.place[s, 3]
            for w in range(count):
                is_same = is_same and states.bits[first_word + w] == bits[full + w]
            if is_same:
                break
        k = (k + np.uint64(1)) & last
    return k


@kernel
def _add_frontier(graph, states, frontier, s, size):
    """Writes a new state's frontier, and the per-type values that follow from it."""
    num_types = graph.chains.shape[1]
    states.ready[s] = 0
    states.chain[s] = 0
    states.following[s] = s
    for j in range(size):
        v = frontier[j]
        t = graph.node_type[v]
        states.frontier[states.used[1] + j] = v
        states.ready[s, t] += 1
        states.following[s, t] = UNKNOWN
        for a in range(num_types):
            states.chain[s, a] = max(states.chain[s, a], graph.chains[v, a])
        states.chain[s, num_types] = max(states.chain[s, num_types], graph.height[v])


@kernel
def _find_allowed(graph, states, scratch, s, begin, lowest, end, words):
    """Marks the types of a new state whose heads are all ready."""
    bits, above = scratch.bits, scratch.above
    latest = words * 64 - 1
    while latest >= 0 and not _has_run(bits, latest):
        latest -= 1
    states.allowed[s] = True
    for first_type in range(0, graph.chains.shape[1], _MASK_TYPES):
        # A head is a remaining node without remaining ancestors of its type.
        for v in range(lowest, end):
            if graph.settled[v] > begin + latest:
                break
            states.used[3] += 1
            if _has_run(bits, v - begin):
                continue
            types = np.uint64(0)
            is_ready = True
            for e in range(graph.operand_start[v], graph.operand_start[v + 1]):
                u = graph.operands[e]
                if u >= 0 and not _has_run(bits, u - begin):
                    types |= above[u - begin]
                    t = graph.node_type[u] - first_type
                    if 0 <= t < _MASK_TYPES:
                        types |= np.uint64(1) << np.uint64(t)
                    is_ready = False
            above[v - begin] = types
            t = graph.node_type[v] - first_type
            if not is_ready and 0 <= t < _MASK_TYPES:
                is_head = (types >> np.uint64(t)) & np.uint64(1) == 0
                if is_head:
                    states.allowed[s, t + first_type] = False
