"""Timing of calls that are compared with each other."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np


def side_by_side(calls: Sequence[Callable[[], Any]], rounds: int) -> np.ndarray:
    """Times calls that take turns, each once untimed before.

    Args:
        calls: The calls; what they return is waited for.
        rounds: How often each is timed.

    Returns:
        Milliseconds, ``[calls, rounds]``.
    """
    times = np.empty((len(calls), rounds + 1))
    for r in range(rounds + 1):
        for turn in range(len(calls)):
            k = (turn + r) % len(calls)
            start = time.perf_counter()
            jax.block_until_ready(calls[k]())
            times[k, r] = 1e3 * (time.perf_counter() - start)
    return times[:, 1:]  # the first ones may compile
