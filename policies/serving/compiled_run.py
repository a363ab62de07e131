"""Compiled simulation of a server with a policy, from first to last request."""

import numpy as np

from edbatch.kernel import kernel
from edbatch.policies.serving.choices import choose
from edbatch.schedule.serving.kernels import (
    DONE,
    JOINED,
    LOOK,
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


@kernel
def serve_all(
    library: Library,
    rules: Rules,
    requests: Requests,
    view: View,
    kind: int,
    weights: np.ndarray,
    scale_ms: float,
    wave: int,
    max_rows: int,
    give_up_ms: float,
) -> bool:
    """Serves all requests.

    Args:
        library: The instances.
        rules: Costs and limits.
        requests: The requests; updated.
        view: Scratch.
        kind: See `choose`.
        weights: See `choose`.
        scale_ms: See `choose`.
        wave: See `choose`.
        max_rows: Maximum rows of a batch.
        give_up_ms: Clock time at which to stop.

    Returns:
        Whether all requests are done.
    """
    count = requests.counts
    while settle(library, rules, requests):
        if requests.clock[NOW] > give_up_ms:
            return False
        look(requests, view)
        in_flight = count[JOINED] - count[DONE]
        chosen = choose(kind, weights, scale_ms, wave, view, in_flight, count[SINCE])
        if chosen == WAIT:
            wait(library, rules, requests)
        elif chosen == LOOK:
            end_wave(library, rules, requests)
        else:
            run_batch(library, rules, requests, chosen, max_rows)
    return True
