"""Powers and roots that are the same on every machine: by squaring and by `sqrt`."""

import math

import numpy as np
from numba import njit

from edbatch.policies.compiled import without_counting


@njit(cache=True, nogil=True)
def powers(longest: int, squarings: int) -> np.ndarray:
    """Returns ``k ** (2 ** squarings)`` for k from 0 on; ``[longest + 1] float64``."""
    power = np.arange(longest + 1).astype(np.float64)
    for _ in range(squarings):
        power *= power
    return power


@without_counting()
def root(value: float, squarings: int) -> float:
    """Takes a square root as often; of what rounding made negative, too."""
    value = max(value, 0.0)
    for _ in range(squarings):
        value = math.sqrt(value)
    return value
