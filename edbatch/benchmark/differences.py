"""Differences from the results of the unbatched model."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np


def max_abs_error(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """Compares the outputs of all instances, number by number.

    Returns:
        The largest absolute difference; infinite where only one is not a number.

    Raises:
        AssertionError: Structures or shapes differ.
    """
    structure: Any
    wanted: Any
    ours, structure = jax.tree.flatten(list(found))
    theirs, wanted = jax.tree.flatten(list(expected))
    assert structure == wanted, f"the results have structure {structure}, not {wanted}"
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        left, right = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert left.shape == right.shape, "the results differ in shape"
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        with np.errstate(invalid="ignore"):
            gap = np.where(same, 0.0, np.abs(left - right))
        gap[np.isnan(gap)] = np.inf
        worst = max(worst, float(gap.max(initial=0.0)))
    return worst


def max_relative_error(found: Any, expected: Any) -> float:
    """Compares gradients, array by array; those by integers, of float0, are none.

    Returns:
        The largest difference in an array relative to its largest number; infinite
        where something is not a number.

    Example:
        >>> max_relative_error({"w": np.array([1.0, 4.0])}, {"w": np.array([2.0, 4.0])})
        0.25
    """
    worst = 0.0
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if a.dtype == b.dtype == jax.dtypes.float0:
            continue
        left, right = np.asarray(a, np.float64), np.asarray(b, np.float64)
        largest = np.abs(right).max(initial=0.0)
        gap = np.abs(left - right).max(initial=0.0)
        if gap > 0:
            worst = max(worst, float(gap / largest) if largest > 0 else np.inf)
        if np.isnan(gap):
            return float("inf")
    return worst
