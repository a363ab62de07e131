"""The events of a simulated server, compiled; `simulation.py` explains them.

State lives in arrays that are updated in place. A node of a request is identified by
its number in the library of instances. `missing` has a count of missing operands for
each node of each request; those of a request begin at its `base`. Each type keeps its
waiting nodes in a queue, as a frontier does.
"""

from typing import NamedTuple

import numpy as np

from edbatch.kernel import kernel

# Decisions that name no type. WAIT: run nothing until a request arrives or the quantum
# has passed. LOOK: end the wave, so that requests are answered and others join.
WAIT = -1
LOOK = -2
# Indices into `Requests.clock`: the current time, the time of the last look, the
# integral of the number of open requests, and the time that batches and waves took.
NOW, LOOKED, INTEGRAL, BUSY = range(4)
# Indices into `Requests.counts`: requests that have arrived, joined, run to their end,
# been answered, been answered too late, and that had arrived but not joined at the last
# look; batches of the current wave; batches, waves and nodes that ran.
ARRIVED, JOINED, RAN, DONE, MISSED, SEEN, SINCE, BATCHES, WAVES, ROWS = range(10)


class Library(NamedTuple):
    """`InstanceLibrary` as arrays; `blocked` and `heads` are empty where unused."""

    start: np.ndarray  # [K + 1] int32
    node_type: np.ndarray  # [N] int32
    consumer_start: np.ndarray  # [N + 1] int32
    consumers: np.ndarray  # [E] int32
    indegree: np.ndarray  # [N] int32
    instance_types: np.ndarray  # [K, T] int32
    blocked: np.ndarray  # [T, N] int32
    heads: np.ndarray  # [K, T] int32


class Rules(NamedTuple):
    """Costs and limits of a server.

    Attributes:
        cost_ms: Time of a batch by type and number of rows.
        overhead_ms: Fixed time of each wave, in addition to that of its batches.
        window_ms: Negative if requests join at once; see `Admission`.
        max_requests: See `Admission`.
        quantum_ms: Maximum time to wait for an arrival.
    """

    cost_ms: np.ndarray  # [T, W + 1] float64
    overhead_ms: float
    window_ms: float
    max_requests: int
    quantum_ms: float


class Requests(NamedTuple):
    """``R`` requests with ``M`` nodes in all, and their progress; updated in place."""

    instance: np.ndarray  # [R] int32
    arrival_ms: np.ndarray  # [R] float64, ascending
    deadline_ms: np.ndarray  # [R] float64, on the clock
    base: np.ndarray  # [R + 1] int64
    missing: np.ndarray  # [M] int32, operands that are not computed
    left: np.ndarray  # [R] int32, nodes that have not run
    finish_ms: np.ndarray  # [R] float64
    ended: np.ndarray  # [R] int32, requests in the order in which they ran to their end
    queue_request: np.ndarray  # [M] int32
    queue_node: np.ndarray  # [M] int32
    ready_ms: np.ndarray  # [M] float64, when a node in a queue became ready
    type_start: np.ndarray  # [T + 1] int64
    head: np.ndarray  # [T] int64
    tail: np.ndarray  # [T] int64
    remaining: np.ndarray  # [T] int32
    blocked: np.ndarray  # [T, M] int32
    heads: np.ndarray  # [T] int32
    stack: np.ndarray  # [longest instance] int32
    clock: np.ndarray  # [4] float64
    counts: np.ndarray  # [10] int64


class View(NamedTuple):
    """The arrays of `ServingState`, which describe to policies what is waiting."""

    waiting: np.ndarray  # [T] int32
    remaining: np.ndarray  # [T] int32
    oldest_ms: np.ndarray  # [T] float64
    waited_ms: np.ndarray  # [T] float64
    slack_ms: np.ndarray  # [T] float64
    heads: np.ndarray  # [T] int32


@kernel
def start_requests(
    library: Library,
    instance: np.ndarray,
    arrival_ms: np.ndarray,
    deadline_ms: np.ndarray,
) -> tuple[np.ndarray, ...]:
    """Returns the arrays of `Requests` before the first arrival."""
    requests = len(instance)
    num_types = library.instance_types.shape[1]
    base = np.zeros(requests + 1, np.int64)
    type_start = np.zeros(num_types + 1, np.int64)
    longest = 1
    for r in range(requests):
        k = instance[r]
        size = library.start[k + 1] - library.start[k]
        longest = max(longest, size)
        base[r + 1] = base[r] + size
        for t in range(num_types):
            type_start[t + 1] += library.instance_types[k, t]
    for t in range(num_types):
        type_start[t + 1] += type_start[t]
    nodes = base[requests]
    has_heads = len(library.heads) > 0
    return (
        instance,
        arrival_ms,
        deadline_ms,
        base,
        np.zeros(nodes, np.int32),
        np.zeros(requests, np.int32),
        np.full(requests, np.inf),
        np.empty(requests, np.int32),
        np.empty(nodes, np.int32),
        np.empty(nodes, np.int32),
        np.empty(nodes),
        type_start,
        np.zeros(num_types, np.int64),
        np.zeros(num_types, np.int64),
        np.zeros(num_types, np.int32),
        np.zeros((num_types, nodes if has_heads else 0), np.int32),
        np.zeros(num_types, np.int32),
        np.empty(longest, np.int32),
        np.zeros(4),
        np.zeros(10, np.int64),
    )


@kernel
def advance(requests: Requests, until: float) -> None:
    """Advances the clock, and counts the requests that arrive by then."""
    clock, count = requests.clock, requests.counts
    while True:
        r = count[ARRIVED]
        comes = r < len(requests.arrival_ms) and requests.arrival_ms[r] <= until
        time = requests.arrival_ms[r] if comes else until
        if time > clock[NOW]:
            clock[INTEGRAL] += (time - clock[NOW]) * (r - count[DONE])
            clock[NOW] = time
        if not comes:
            return
        count[ARRIVED] += 1


@kernel
def _push(requests, r, node, t):
    place = requests.type_start[t] + requests.tail[t]
    requests.queue_request[place] = r
    requests.queue_node[place] = node
    requests.ready_ms[place] = requests.clock[NOW]
    requests.tail[t] += 1


@kernel
def _join(library, requests, r):
    """Adds a request to those in flight."""
    k = requests.instance[r]
    first = library.start[k]
    last = library.start[k + 1]
    requests.left[r] = last - first
    base = requests.base[r] - first
    for t in range(len(requests.head)):
        requests.remaining[t] += library.instance_types[k, t]
    for v in range(first, last):
        requests.missing[base + v] = library.indegree[v]
        if library.indegree[v] == 0:
            _push(requests, r, v, library.node_type[v])
    if len(library.heads):
        for t in range(len(requests.head)):
            requests.heads[t] += library.heads[k, t]
            for v in range(first, last):
                requests.blocked[t, base + v] = library.blocked[t, v]


@kernel
def end_wave(library: Library, rules: Rules, requests: Requests) -> None:
    """Ends the wave: answers requests that are done, and admits those that may join."""
    clock, count = requests.clock, requests.counts
    while count[DONE] < count[RAN]:
        r = requests.ended[count[DONE]]
        requests.finish_ms[r] = clock[NOW]
        count[MISSED] += clock[NOW] > requests.deadline_ms[r]
        count[DONE] += 1
    joining = min(
        count[ARRIVED] - count[JOINED],
        rules.max_requests - (count[JOINED] - count[DONE]),
    )
    if rules.window_ms >= 0 and count[ARRIVED] > count[JOINED]:
        opens = requests.arrival_ms[count[JOINED]] + rules.window_ms
        is_full = count[ARRIVED] - count[JOINED] >= rules.max_requests
        if count[JOINED] > count[DONE] or not (is_full or clock[NOW] >= opens):
            joining = 0
    for _ in range(joining):
        _join(library, requests, count[JOINED])
        count[JOINED] += 1
    clock[LOOKED] = clock[NOW]
    count[SEEN] = count[ARRIVED] - count[JOINED]
    count[SINCE] = 0


@kernel
def settle(library: Library, rules: Rules, requests: Requests) -> bool:
    """Advances until a node is waiting; returns False if all requests are done."""
    count = requests.counts
    total = len(requests.arrival_ms)
    while count[RAN] == count[JOINED]:
        end_wave(library, rules, requests)
        if count[JOINED] > count[RAN]:
            break
        if count[DONE] == total:
            return False
        until = np.inf
        if count[ARRIVED] < total:
            until = requests.arrival_ms[count[ARRIVED]]
        if count[ARRIVED] > count[JOINED]:  # a window is open
            opens = requests.arrival_ms[count[JOINED]] + rules.window_ms
            until = min(until, opens)
        advance(requests, until)
    return True


@kernel
def wait(library: Library, rules: Rules, requests: Requests) -> None:
    """Ends the wave, and waits for the next arrival, at most a quantum."""
    until = requests.clock[NOW] + rules.quantum_ms
    if requests.counts[ARRIVED] < len(requests.arrival_ms):
        until = min(until, requests.arrival_ms[requests.counts[ARRIVED]])
    end_wave(library, rules, requests)
    advance(requests, until)
    end_wave(library, rules, requests)


@kernel
def run_batch(
    library: Library, rules: Rules, requests: Requests, chosen: int, max_rows: int
) -> int:
    """Runs waiting nodes of a type as one batch; returns their number."""
    clock, count = requests.clock, requests.counts
    rows = min(requests.tail[chosen] - requests.head[chosen], max_rows)
    rows = min(rows, rules.cost_ms.shape[1] - 1)
    takes = rules.cost_ms[chosen, rows]
    if count[SINCE] == 0:
        takes += rules.overhead_ms
        count[WAVES] += 1
    clock[BUSY] += takes
    advance(requests, clock[NOW] + takes)
    first = requests.type_start[chosen] + requests.head[chosen]
    requests.head[chosen] += rows
    requests.remaining[chosen] -= rows
    count[SINCE] += 1
    count[BATCHES] += 1
    count[ROWS] += rows
    if len(library.heads):
        requests.heads[chosen] -= rows
    for place in range(first, first + rows):
        r = requests.queue_request[place]
        node = requests.queue_node[place]
        base = requests.base[r] - library.start[requests.instance[r]]
        for e in range(library.consumer_start[node], library.consumer_start[node + 1]):
            reader = library.consumers[e]
            requests.missing[base + reader] -= 1
            if requests.missing[base + reader] == 0:
                _push(requests, r, reader, library.node_type[reader])
        if len(library.heads):
            _clear(library, requests, chosen, node, base)
        requests.left[r] -= 1
        if requests.left[r] == 0:
            requests.ended[count[RAN]] = r
            count[RAN] += 1
    return rows


@kernel
def _clear(library, requests, chosen, node, base):
    """Updates heads after a node ran, as `sufficient_condition.update_heads` does."""
    stack = requests.stack
    stack[0] = node
    size = 1
    while size:
        size -= 1
        v = stack[size]
        for e in range(library.consumer_start[v], library.consumer_start[v + 1]):
            reader = library.consumers[e]
            requests.blocked[chosen, base + reader] -= 1
            if requests.blocked[chosen, base + reader] == 0:
                if library.node_type[reader] == chosen:
                    requests.heads[chosen] += 1
                else:
                    stack[size] = reader
                    size += 1


@kernel
def look(requests: Requests, view: View) -> None:
    """Describes what is waiting, with the times of the last look."""
    now = requests.clock[LOOKED]
    for t in range(len(requests.head)):
        first = requests.type_start[t] + requests.head[t]
        last = requests.type_start[t] + requests.tail[t]
        arrival = now
        deadline = np.inf
        for place in range(first, last):
            r = requests.queue_request[place]
            arrival = min(arrival, requests.arrival_ms[r])
            deadline = min(deadline, requests.deadline_ms[r])
        view.waiting[t] = last - first
        view.remaining[t] = requests.remaining[t]
        view.oldest_ms[t] = now - arrival
        view.waited_ms[t] = 0.0
        if last > first:
            view.waited_ms[t] = max(0.0, now - requests.ready_ms[first])
        view.slack_ms[t] = deadline - now
        view.heads[t] = requests.heads[t]
