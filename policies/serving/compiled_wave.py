"""Compiled decisions of a policy for a whole wave of a real server."""

import numpy as np

from edbatch.kernel import kernel
from edbatch.policies.serving.choices import choose
from edbatch.schedule.serving.kernels import LOOK, WAIT, View
from edbatch.schedule.serving.wave_frontier import (
    BATCHES,
    WaveFrontier,
    add_batch,
    describe,
)


@kernel
def decide_wave(
    frontier: WaveFrontier,
    kind: int,
    weights: np.ndarray,
    scale_ms: float,
    wave: int,
    view: View,
    in_flight: int,
    max_rows: int,
    now_ms: float,
) -> int:
    """Decides batches until the policy looks or waits, or nothing is ready.

    Args:
        frontier: The ready nodes; the batches are added.
        kind: See `choose`.
        weights: See `choose`.
        scale_ms: See `choose`.
        wave: See `choose`.
        view: Scratch.
        in_flight: Requests in flight.
        max_rows: Maximum rows of a batch.
        now_ms: The current clock time.

    Returns:
        `WAIT` or `LOOK`.
    """
    while True:
        describe(frontier, now_ms, view)
        if not view.waiting.any():
            return LOOK
        batches = frontier.counts[BATCHES]
        chosen = choose(kind, weights, scale_ms, wave, view, in_flight, batches)
        if chosen in (WAIT, LOOK):
            return chosen
        add_batch(frontier, chosen, max_rows, now_ms)
