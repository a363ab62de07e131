"""Tabular Q-learning of serving machines, in simulation.

Watkins 1989, over a semi-Markov process (Bradtke, Duff, Reinforcement Learning Methods
for Continuous-Time Markov Decision Problems, 1994): the cost of a decision is the
cost of the requests until the next decision, and later costs are discounted by
``exp(-time / horizon)``. After an episode its decisions are learned from last to first,
by Watkins's Q(lambda): a return continues through decisions that were not random, and
is replaced by an estimate at a random decision.

In states with too few visits, the machine follows a heuristic. An action replaces that
of the heuristic only if it is better by a number of standard errors (as in safe policy
improvement with baseline bootstrapping: Laroche, Trichelair, Tachet des Combes, ICML
2019). States omit most of what a server knows, so returns of one state vary, and
without this rule the table would follow noise.

The cost of a request: for `mean`, time; for `p99`, the growth of the square of its
latency, so that a millisecond of an old request costs more; for deadlines, 1 for a late
answer, plus a small cost of time.
"""

from typing import NamedTuple

import numpy as np

from edbatch.kernel import kernel
from edbatch.policies.fsm.random_stream import next_uniform
from edbatch.policies.serving.choices import choose_by_heuristic, is_allowed
from edbatch.policies.serving.encoding import encode
from edbatch.schedule.serving.kernels import (
    ARRIVED,
    DONE,
    INTEGRAL,
    JOINED,
    LOOK,
    MISSED,
    NOW,
    SINCE,
    WAIT,
    Library,
    Requests,
    Rules,
    View,
    end_wave,
    look,
    run_batch,
    settle,
    wait,
)

MEAN, P99, DEADLINE = range(3)
CAPACITY = 2**16  # states; a power of two
_MOST_STATES = CAPACITY // 2
_TIME_OF_DEADLINES = 0.02  # cost of a time as long as the deadline, in late answers
_NONE = -1


class QTable(NamedTuple):
    """Q-values of states; actions are types, then `WAIT`, then `LOOK`.

    Attributes:
        code: Hash table of encoded states, with open addressing; -1 in free rows.
        value: Mean cost after each action.
        square: Sum of squared deviations of the costs after each action.
        visits: How often each action was learned from.
        usual: The heuristic's action at the latest visit of the state.
        size: Number of states, in one entry.
    """

    code: np.ndarray  # [CAPACITY] int64
    value: np.ndarray  # [CAPACITY, T + 2] float64
    square: np.ndarray  # [CAPACITY, T + 2] float64
    visits: np.ndarray  # [CAPACITY, T + 2] int64
    usual: np.ndarray  # [CAPACITY] int64
    size: np.ndarray  # [1] int64


class Learning(NamedTuple):
    """Settings of an episode and of learning from it.

    Attributes:
        encoding: Encoding of states.
        scale_ms: The unit of time of states.
        heuristic: Kind of the heuristic.
        depths: Mean depths of types; ``[1, T] float64``.
        wave: Batches per wave of the heuristic.
        objective: `MEAN`, `P99` or `DEADLINE`.
        cost_ms: The unit of time of costs.
        horizon_ms: Time constant of the discount: costs after this time count 1/e.
        epsilon: Probability of a random decision.
        trace: The lambda of Q(lambda).
        rate: Minimum weight of a new return in a mean.
        trusted: Number of visits that an action needs for its value to be compared.
        errors: Number of standard errors by which the value of an action has to be
            better than that of the heuristic's action.
        give_up_ms: Clock time at which an episode stops.
        max_rows: Maximum rows of a batch.
    """

    encoding: int
    scale_ms: float
    heuristic: int
    depths: np.ndarray
    wave: int
    objective: int
    cost_ms: float
    horizon_ms: float
    epsilon: float
    trace: float
    rate: float
    trusted: int
    errors: float
    give_up_ms: float
    max_rows: int


class Episode(NamedTuple):
    """The decisions of an episode, ``S`` at most."""

    state: np.ndarray  # [S] int64, row of the table
    action: np.ndarray  # [S] int64
    cost: np.ndarray  # [S] float64, until the next decision
    weight: np.ndarray  # [S] float64, discount of later costs
    own: np.ndarray  # [S] bool, False for random decisions


def new_table(num_types: int) -> QTable:
    """Makes a table without states."""
    shape = CAPACITY, num_types + 2
    return QTable(
        np.full(CAPACITY, _NONE, np.int64),
        np.zeros(shape),
        np.zeros(shape),
        np.zeros(shape, np.int64),
        np.zeros(CAPACITY, np.int64),
        np.zeros(1, np.int64),
    )


def new_episode(steps: int) -> Episode:
    """Allocates an episode of at most `steps` decisions."""
    return Episode(
        np.zeros(steps, np.int64),
        np.zeros(steps, np.int64),
        np.zeros(steps),
        np.zeros(steps),
        np.zeros(steps, np.bool_),
    )


@kernel
def find(table: QTable, code: int) -> int:
    """Returns a state's row, and adds the state if new; -1 if the table is full."""
    hashed = np.uint64(code) * np.uint64(0x9E3779B97F4A7C15)
    row = np.int64(hashed >> np.uint64(48))
    while table.code[row] != code:
        if table.code[row] == _NONE:
            if table.size[0] >= _MOST_STATES:
                return _NONE
            table.code[row] = code
            table.size[0] += 1
            break
        row = (row + 1) % CAPACITY
    return int(row)


@kernel
def best_action(table: QTable, row: int, trusted: int, errors: float) -> int:
    """Returns the action to take in a state: the heuristic's, or a better one."""
    usual = table.usual[row]
    best = usual
    if table.visits[row, usual] < trusted:
        return best
    for action in range(table.value.shape[1]):
        if table.visits[row, action] < trusted:
            continue
        gain = table.value[row, usual] - table.value[row, action]
        doubt = errors * np.sqrt(
            _variance(table, row, action) + _variance(table, row, usual)
        )
        if gain > doubt and table.value[row, action] < table.value[row, best]:
            best = action
    return best


@kernel
def _variance(table, row, action):
    """Returns the variance of the mean cost after an action."""
    visits = table.visits[row, action]
    return table.square[row, action] / (visits * max(1, visits - 1))


@kernel
def play(
    library: Library,
    rules: Rules,
    requests: Requests,
    view: View,
    table: QTable,
    learning: Learning,
    episode: Episode,
    stream: np.ndarray,
) -> int:
    """Serves requests by the table, with some random decisions.

    Args:
        library: The instances.
        rules: Costs and limits.
        requests: The requests; updated.
        view: Scratch.
        table: The `QTable`; new states are added.
        learning: Settings of the episode.
        episode: Receives the decisions.
        stream: Random numbers; updated.

    Returns:
        The number of decisions.
    """
    num_types = len(view.waiting)
    count, clock = requests.counts, requests.clock
    sums = np.zeros(5)
    steps = 0
    before, then = 0.0, 0.0
    while settle(library, rules, requests):
        suffered = _total_cost(requests, learning, sums)
        if steps:
            _note(episode, steps - 1, suffered - before, clock[NOW] - then, learning)
        if clock[NOW] > learning.give_up_ms or steps == len(episode.state):
            return steps
        before, then = suffered, clock[NOW]
        look(requests, view)
        in_flight, batches = count[JOINED] - count[DONE], count[SINCE]
        code = encode(learning.encoding, learning.scale_ms, view, in_flight, batches)
        row = find(table, code)
        chosen = choose_by_heuristic(
            learning.heuristic, learning.depths, learning.wave, view, batches
        )
        own = True
        if row >= 0:
            table.usual[row] = _action(chosen, num_types)
            if next_uniform(stream) < learning.epsilon:
                chosen = _random_decision(view, batches, stream)
                own = False
            else:
                best = best_action(table, row, learning.trusted, learning.errors)
                decided = _decision(best, num_types)
                if is_allowed(decided, view, batches):
                    chosen = decided
        episode.state[steps] = row
        episode.action[steps] = _action(chosen, num_types)
        episode.own[steps] = own
        steps += 1
        if chosen == WAIT:
            wait(library, rules, requests)
        elif chosen == LOOK:
            end_wave(library, rules, requests)
        else:
            run_batch(library, rules, requests, chosen, learning.max_rows)
    if steps:
        suffered = _total_cost(requests, learning, sums)
        _note(episode, steps - 1, suffered - before, clock[NOW] - then, learning)
    return steps


@kernel
def _note(episode, step, cost, took_ms, learning):
    """Records the cost after a decision, and the discount of later costs."""
    episode.cost[step] = cost
    episode.weight[step] = np.exp(-took_ms / learning.horizon_ms)


@kernel
def _action(decision, num_types):
    return decision if decision >= 0 else num_types - 1 - decision


@kernel
def _decision(action, num_types):
    return action if action < num_types else num_types - 1 - action


@kernel
def _random_decision(view, batches, stream):
    """Draws one of the allowed decisions."""
    allowed = 1
    for t in range(len(view.waiting)):
        allowed += view.waiting[t] > 0
    left = int(next_uniform(stream) * allowed)
    for t in range(len(view.waiting)):
        if view.waiting[t] > 0:
            if left == 0:
                return t
            left -= 1
    return LOOK if batches else WAIT


@kernel
def _total_cost(requests, learning, sums):
    """Returns the total cost of all requests so far.

    `sums` contains the numbers of arrivals and of answers seen so far; for requests in
    the system, the sums of arrival times and of their squares; and for answers, the sum
    of squared latencies.
    """
    count, clock = requests.counts, requests.clock
    unit = learning.cost_ms
    if learning.objective == MEAN:
        return clock[INTEGRAL] / unit
    if learning.objective == DEADLINE:
        return count[MISSED] + _TIME_OF_DEADLINES * clock[INTEGRAL] / unit
    for r in range(int(sums[0]), count[ARRIVED]):
        sums[2] += requests.arrival_ms[r]
        sums[3] += requests.arrival_ms[r] ** 2
    for k in range(int(sums[1]), count[DONE]):
        r = requests.ended[k]
        sums[2] -= requests.arrival_ms[r]
        sums[3] -= requests.arrival_ms[r] ** 2
        sums[4] += (requests.finish_ms[r] - requests.arrival_ms[r]) ** 2
    sums[0], sums[1] = count[ARRIVED], count[DONE]
    now = clock[NOW]
    here = (sums[0] - sums[1]) * now**2 - 2 * now * sums[2] + sums[3]
    return (here + sums[4]) / unit**2


@kernel
def learn(table: QTable, episode: Episode, steps: int, learning: Learning) -> None:
    """Learns from an episode, from its last decision to its first.

    Args:
        table: The `QTable`; updated.
        episode: The episode.
        steps: Its number of decisions.
        learning: Settings of learning.
    """
    follows = 0.0
    for step in range(steps - 1, -1, -1):
        row, action = episode.state[step], episode.action[step]
        found = episode.cost[step] + episode.weight[step] * follows
        follows = found
        if row < 0:
            continue
        table.visits[row, action] += 1
        rate = max(learning.rate, 1.0 / table.visits[row, action])
        off = found - table.value[row, action]
        table.value[row, action] += rate * off
        table.square[row, action] += off * (found - table.value[row, action])
        best = best_action(table, row, learning.trusted, learning.errors)
        known = table.visits[row, best] > 0
        estimate = table.value[row, best] if known else found
        kept = learning.trace if episode.own[step] else 0.0
        follows = kept * found + (1 - kept) * estimate
