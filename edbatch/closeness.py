"""Compares batched results with those of the unbatched model, within a tolerance."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from edbatch.errors import VerificationError
from edbatch.graph.external_input import input_dtype
from edbatch.rounding import Rounding, rounding_of

_ROUNDING = 512  # tolerance in units of the rounding error
_MOST = 0.5  # of an array's scale; more would accept anything in dtypes of few bits

# Per leaf; computed only when needed.
Roundings = Callable[[], list[Rounding]]
Jumps = Callable[[], list[np.ndarray]]


class Comparison(NamedTuple):
    """The result of comparing arrays.

    Attributes:
        worst: The largest difference, relative to its array's largest number if above
            1; where the model's result jumps, the part beyond the jump.
        jumps: Number of arrays that differ only where the model's result jumps.
    """

    worst: float
    jumps: int = 0


def compare_outputs(
    found: Any,
    expected: Any,
    where: str,
    tolerance: float | None,
    roundings: Roundings,
    jumps: Jumps | None = None,
) -> Comparison:
    """Compares the outputs of an instance, array by array.

    Args:
        found: The batched result.
        expected: The result of the unbatched model.
        where: Names the instance, for messages.
        tolerance: As for `edbatch.verify`.
        roundings: Returns the coarsest rounding on the path to each array.
        jumps: As for `compare_arrays`.

    Returns:
        The largest difference, and the number of arrays that jump.

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
    names = [f"{where}, output{jax.tree_util.keystr(path)}" for path, _ in paths]
    leaves = [leaf for _, leaf in paths]
    return compare_arrays(own, leaves, names, tolerance, roundings, jumps)


def compare_arrays(
    own: Sequence[Any],
    expected: Sequence[Any],
    names: Sequence[str],
    tolerance: float | None,
    roundings: Roundings,
    jumps: Jumps | None,
) -> Comparison:
    """Compares arrays of a batched result with those of the unbatched model.

    Args:
        own: Arrays of the batched result.
        expected: As many arrays of the unbatched model.
        names: Their names, for messages.
        tolerance: As for `edbatch.verify`.
        roundings: Returns the coarsest rounding on the path to each array.
        jumps: Returns how much each number of the model's arrays changes if its
            parameters change by some rounding errors; not called if there is a
            tolerance. None allows for no jumps.

    Returns:
        The largest difference, and the number of arrays that jump.

    Raises:
        VerificationError: A shape, a dtype or a number differs.
    """
    worst, jumped = 0.0, 0
    for k, (array, reference, name) in enumerate(
        zip(own, expected, names, strict=True)
    ):
        try:
            gap = difference(array, reference, name, tolerance, roundings, k)
        except VerificationError as error:
            if tolerance is not None or jumps is None or not _alike(array, reference):
                raise
            nearer = _nearer(array, reference, jumps()[k])
            try:
                gap = difference(nearer, reference, name, tolerance, roundings, k)
            except VerificationError:
                raise error from None
            jumped += 1
        worst = max(worst, gap)
    return Comparison(worst, jumped)


def _alike(own: Any, expected: Any) -> bool:
    """Whether two arrays have the same shape and dtype."""
    shapes = np.shape(own) == np.shape(expected)
    return shapes and bool(own.dtype == input_dtype(np.asarray(expected)))


def _nearer(own: Any, expected: Any, jump: np.ndarray) -> np.ndarray:
    """Moves numbers towards the expected ones, by up to twice the jump."""
    own, expected = np.asarray(own), np.asarray(expected)
    wide = np.complex128 if np.iscomplexobj(own) else np.float64
    with np.errstate(invalid="ignore", divide="ignore"):
        gap = own.astype(wide) - expected.astype(wide)
        left = np.maximum(1 - 2 * jump / np.abs(gap), 0)
        moved = (expected.astype(wide) + gap * left).astype(own.dtype)
    return np.where((jump > 0) & np.isfinite(gap) & (gap != 0), moved, own)


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
