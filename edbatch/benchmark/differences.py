"""Errors relative to the results of the unbatched model."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np


def max_abs_error(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """Compares the outputs of all instances element by element.

    Returns:
        The largest absolute difference; infinite if only one of two elements is NaN.

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
        left, right = _wide(a), _wide(b)
        assert left.shape == right.shape, "the results differ in shape"
        worst = max(worst, float(_gaps(left, right).max(initial=0.0)))
    return worst


def _wide(array: Any) -> np.ndarray:
    """Converts to double precision."""
    found = np.asarray(array)
    return found.astype(np.complex128 if np.iscomplexobj(found) else np.float64)


def _gaps(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Returns absolute differences: 0 where both are NaN, infinite where one is."""
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    with np.errstate(invalid="ignore"):
        gaps = np.where(same, 0.0, np.abs(left - right))
    gaps[np.isnan(gaps)] = np.inf
    return gaps


def max_relative_error(found: Any, expected: Any) -> float:
    """Compares gradients array by array; skips float0 gradients of integer inputs.

    Returns:
        The largest difference in an array, relative to the largest finite magnitude of
        the expected array; infinite if only one of two elements is NaN, or if an array
        differs from an expected array of zeros.

    Example:
        >>> max_relative_error({"w": np.array([1.0, 4.0])}, {"w": np.array([2.0, 4.0])})
        0.25
    """
    worst = 0.0
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if a.dtype == b.dtype == jax.dtypes.float0:
            continue
        left, right = _wide(a), _wide(b)
        sizes = np.abs(right[np.isfinite(right)])
        gap, largest = _gaps(left, right).max(initial=0.0), sizes.max(initial=0.0)
        if gap > 0:
            worst = max(worst, float(gap / largest) if largest > 0 else np.inf)
    return worst
