"""Compiled choices of serving policies, for simulations and for servers.

All choices read the arrays of `View`. Ties go to the type that was recorded first.
"""

import numpy as np

from edbatch.kernel import kernel
from edbatch.policies.serving.encoding import encode
from edbatch.schedule.serving.kernels import LOOK, WAIT, View

AGENDA, GREEDY, LARGEST, OLDEST, READY, RULE, MACHINE = range(7)

# Columns of a rule's weights: the features of a type's score.
FEATURES = ("bias", "width", "share", "ratio", "age", "wait", "urgency", "load")
# Columns of the last row: the score of waiting, and log2 of the batches in a wave.
WAITING = ("wait_bias", "wait_load", "wave_bias", "wave_load")
# Rows of a machine's table: header, mean depths of types, and the first state.
HEADER, DEPTHS, STATES = range(3)


@kernel
def choose(
    kind: int,
    weights: np.ndarray,
    scale_ms: float,
    wave: int,
    view: View,
    in_flight: int,
    batches: int,
) -> int:
    """Chooses what runs next.

    Args:
        kind: The policy, `AGENDA` to `MACHINE`.
        weights: Weights of a rule, ``[T + 1, F]``; table of a machine, see
            `choose_by_machine`; mean depths for `AGENDA`, ``[1, T]``; otherwise not
            read.
        scale_ms: The unit of time of a rule or a machine.
        wave: Batches per wave of a heuristic.
        view: The waiting nodes.
        in_flight: Requests in flight.
        batches: Batches of the current wave so far.

    Returns:
        A type, `WAIT` or `LOOK`.
    """
    if kind == RULE:
        return choose_by_rule(weights, scale_ms, view, in_flight, batches)
    if kind == MACHINE:
        return choose_by_machine(weights, scale_ms, view, in_flight, batches)
    return choose_by_heuristic(kind, weights, wave, view, batches)


@kernel
def choose_by_heuristic(
    kind: int, depths: np.ndarray, wave: int, view: View, batches: int
) -> int:
    """Chooses the best type by a heuristic's criterion; or ends the wave."""
    if batches >= wave:
        return LOOK
    best = WAIT
    best_score = -np.inf
    for t in range(len(view.waiting)):
        if view.waiting[t] == 0:
            continue
        if kind == AGENDA:
            score = -depths[0, t]
        elif kind == GREEDY:
            score = view.waiting[t] / max(1, view.heads[t])
        elif kind == LARGEST:
            score = float(view.waiting[t])
        elif kind == OLDEST:
            score = view.oldest_ms[t]
        else:
            score = view.waited_ms[t]
        if score > best_score:
            best, best_score = t, score
    return best


@kernel
def choose_by_machine(
    table: np.ndarray, scale_ms: float, view: View, in_flight: int, batches: int
) -> int:
    """Chooses by the table's entry for the encoded state, otherwise by the heuristic.

    Args:
        table: A row with the encoding, the heuristic and its batches per wave; a row
            with mean depths of types; then the states, ascending, each with its
            decision. ``[S + 2, max(3, T)]``.
        scale_ms: The unit of time.
        view: The waiting nodes.
        in_flight: Requests in flight.
        batches: Batches of the current wave so far.

    Returns:
        A type, `WAIT` or `LOOK`.
    """
    head = table[HEADER]
    code = float(encode(int(head[0]), scale_ms, view, in_flight, batches))
    low, high = STATES, len(table)
    while low < high:
        middle = (low + high) // 2
        if table[middle, 0] < code:
            low = middle + 1
        else:
            high = middle
    if low < len(table) and table[low, 0] == code:
        chosen = int(table[low, 1])
        if is_allowed(chosen, view, batches):
            return chosen
    return choose_by_heuristic(
        int(head[1]), table[DEPTHS:STATES], int(head[2]), view, batches
    )


@kernel
def is_allowed(chosen: int, view: View, batches: int) -> bool:
    """Returns whether a server accepts a decision; see `ServingPolicy`."""
    if chosen == WAIT:
        return batches == 0
    if chosen == LOOK:
        return batches > 0
    return 0 <= chosen < len(view.waiting) and view.waiting[chosen] > 0


@kernel
def choose_by_rule(
    weights: np.ndarray, scale_ms: float, view: View, in_flight: int, batches: int
) -> int:
    """Chooses the type with the highest score; or waits, or ends the wave."""
    load = np.log2(1.0 + in_flight)
    num_types = len(view.waiting)
    last = weights[num_types]
    best_score = -np.inf
    best = WAIT
    if batches == 0:
        best_score = last[0] + last[1] * load
    elif np.log2(float(batches)) >= last[2] + last[3] * load:
        return LOOK
    for t in range(num_types):
        if view.waiting[t] == 0:
            continue
        w = weights[t]
        share = view.waiting[t] / max(view.waiting[t], view.remaining[t])
        # Waiting nodes are heads, so 0 heads means that heads are not counted.
        ratio = view.waiting[t] / view.heads[t] if view.heads[t] else share
        score = (
            w[0]
            + w[1] * np.log2(float(view.waiting[t]))
            + w[2] * share
            + w[3] * ratio
            + w[4] * np.log2(1.0 + view.oldest_ms[t] / scale_ms)
            + w[5] * np.log2(1.0 + view.waited_ms[t] / scale_ms)
            + w[6] * np.exp(-max(0.0, view.slack_ms[t]) / scale_ms)
            + w[7] * load
        )
        if score > best_score:
            best, best_score = t, score
    return best
