"""How each serving policy chooses a type, compiled: for simulations and for servers.

All look at the arrays of `View`. Ties go to the type that was recorded first.
"""

import numpy as np
from numba import njit

from edbatch.schedule.serving.kernels import View
from edbatch.schedule.serving.policy import LOOK, WAIT

AGENDA, GREEDY, LARGEST, OLDEST, READY, RULE = range(6)

# Columns of a rule's weights: what its score of a type is made of.
FEATURES = ("bias", "width", "share", "ratio", "age", "wait", "urgency", "load")
# Columns of its last row: scores of waiting, and log2 of the batches in a wave.
WAITING = ("wait_bias", "wait_load", "wave_bias", "wave_load")


@njit(cache=True, nogil=True)
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
        kind: The policy, `AGENDA` to `RULE`.
        weights: Of a rule ``[T + 1, F]``; of `AGENDA` ``[1, T]``, mean depths; else not
            read.
        scale_ms: A rule's unit of time.
        wave: Batches in a wave, except of a rule, which decides that itself.
        view: What is waiting.
        in_flight: Requests in flight.
        batches: Batches of the present wave so far.

    Returns:
        A type, `WAIT` or `LOOK`.
    """
    if kind == RULE:
        return choose_by_rule(weights, scale_ms, view, in_flight, batches)
    if batches >= wave:
        return LOOK
    best = WAIT
    best_score = -np.inf
    for t in range(len(view.waiting)):
        if view.waiting[t] == 0:
            continue
        if kind == AGENDA:
            score = -weights[0, t]
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


@njit(cache=True, nogil=True)
def choose_by_rule(
    weights: np.ndarray, scale_ms: float, view: View, in_flight: int, batches: int
) -> int:
    """Chooses the type of highest score; or waits, or ends the wave."""
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
        # A waiting node is a head: none are there only where nobody counts them.
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
