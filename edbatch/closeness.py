"""Compares batched results with those of the unbatched model, within a tolerance."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from edbatch.errors import VerificationError
from edbatch.graph.external_input import input_dtype
from edbatch.rounding import Rounding, rounding_of

_ROUNDING = 512  # tolerance in units of the rounding error
_MOST = 0.5  # of an array's scale; more would accept anything in dtypes of few bits

Roundings = Callable[[], list[Rounding]]  # per leaf; computed only when needed


def compare_outputs(
    found: Any,
    expected: Any,
    where: str,
    tolerance: float | None,
    roundings: Roundings,
) -> tuple[float, int]:
    """Compares the outputs of an instance, array by array.

    Args:
        found: The batched result.
        expected: The result of the unbatched model.
        where: Names the instance, for messages.
        tolerance: As for `edbatch.verify`.
        roundings: Returns the coarsest rounding on the path to each array.

    Returns:
        The largest difference, and how many numbers were compared.

    Raises:
        VerificationError: A structure, a shape, a dtype or a number differs.
    """
    own, own_tree = jax.tree.flatten(found)
    paths, tree = jax.tree_util.tree_flatten_with_path(expected)
    trees: tuple[Any, Any] = (own_tree, tree)
    if trees[0] != trees[1]:
        raise VerificationError(
            f"{where}: the batched result has structure {own_tree} but the model"
            f" returns {tree}; please report this as a defect of edbatch"
        )
    worst, count = 0.0, 0
    for k, (array, (path, reference)) in enumerate(zip(own, paths, strict=True)):
        name = f"{where}, output{jax.tree_util.keystr(path)}"
        worst = max(worst, difference(array, reference, name, tolerance, roundings, k))
        count += np.size(array)
    return worst, count


def difference(
    found: Any,
    expected: Any,
    where: str,
    tolerance: float | None,
    roundings: Roundings,
    leaf: int,
) -> float:
    """Compares one array of a batched result with that of the unbatched model.

    Args:
        found: The array of the batched result.
        expected: The array of the unbatched model.
        where: Names the array, for messages.
        tolerance: As for `edbatch.verify`.
        roundings: Returns the coarsest rounding on the path to each array.
        leaf: Index of this array in the result of `roundings`.

    Returns:
        The largest difference, relative to the array's largest number if above 1.

    Raises:
        VerificationError: A shape, a dtype or a number differs.
    """
    own, reference = np.asarray(found), np.asarray(expected)
    if own.shape != reference.shape:
        raise VerificationError(
            f"{where}: the batched result has shape {own.shape} but the model returns"
            f" {reference.shape}; please report this as a defect of edbatch"
        )
    if own.dtype != input_dtype(reference):
        raise VerificationError(
            f"{where}: the batched result has dtype {own.dtype} but the model returns"
            f" {input_dtype(reference)}; please report this as a defect of edbatch"
        )
    if not own.size:
        return 0.0
    if not jnp.issubdtype(own.dtype, jnp.inexact):
        difference = float((own != reference).max())
        allowed, rounding = 0.0, None
    else:
        rounding = rounding_of(own.dtype)
        wide = np.complex128 if np.iscomplexobj(own) else np.float64
        own, reference = own.astype(wide), reference.astype(wide)
        same = (own == reference) | (np.isnan(own) & np.isnan(reference))
        with np.errstate(invalid="ignore"):
            gap = np.where(same, 0.0, np.abs(own - reference))
            finite = np.abs(reference[np.isfinite(reference)])
        scale = max(1.0, float(finite.max(initial=0.0)))
        difference = float(gap.max()) / scale
        allowed = _allowed(rounding) if tolerance is None else tolerance
        if tolerance is None and not difference <= allowed:
            rounding = max(rounding, roundings()[leaf])
            allowed = _allowed(rounding)
    if not difference <= allowed:  # also fails for a NaN on one side only
        lowest = f" (in {rounding.dtype})" if rounding and tolerance is None else ""
        raise VerificationError(
            f"{where}: batched and unbatched results differ by {difference:.3g}"
            f" relative to the array's scale, more than {allowed:.3g}{lowest}; if the"
            " model is ill-conditioned pass a larger tolerance, otherwise please report"
            " this as a defect of edbatch"
        )
    return difference


def _allowed(rounding: Rounding) -> float:
    return min(_ROUNDING * rounding.eps, max(_MOST, 4 * rounding.eps))
