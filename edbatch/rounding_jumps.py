"""By how much a model's results jump within rounding, for tolerances.

A result jumps where an activation has a kink, a comparison changes its outcome or a
number is rounded to an integer. A batched run rounds differently, so it may be on the
other side of a jump that the unbatched model passes within a few rounding errors. Which
jumps these are is measured: the parameters are changed at random by some rounding
errors.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from edbatch.graph.context import jitted_cells
from edbatch.rounding import rounding_of

_DRAWS = 8  # changes of the parameters; each finds a jump in about half of the cases
_CHANGE = 8  # rounding errors by which each parameter changes at most


def jumps_within_rounding(
    of_one: Callable[[Any, int], Sequence[Any]], params: Any, places: Iterable[int]
) -> list[np.ndarray]:
    """Measures by how much each number of an unbatched model's results varies.

    Args:
        of_one: Returns arrays of an instance for some parameters, such as the model's
            outputs or its gradient.
        params: The parameters. Those of less than single precision are not changed, as
            their tolerance is wide.
        places: The numbers of the instances.

    Returns:
        For each array, one of its shape: the largest change of a number in a few
        draws, summed over the instances.

    Example:
        >>> def sign(params, place):
        ...     return [jnp.sign(params - 1)]
        >>> jumps_within_rounding(sign, np.float32([1, 2]), [0])[0].tolist()
        [1.0, 0.0]
    """
    random = np.random.default_rng(0)
    draws = [jax.tree.map(lambda p: _changed(p, random), params) for _ in range(_DRAWS)]
    total: list[np.ndarray] = []
    with jitted_cells(exact=True):
        for k in places:
            here = [_wide(each) for each in of_one(params, k)]
            largest = [np.zeros(np.shape(each)) for each in here]
            for draw in draws:
                for one, a, b in zip(largest, of_one(draw, k), here, strict=True):
                    with np.errstate(invalid="ignore"):  # infinities on both sides
                        np.fmax(one, np.abs(_wide(a) - b), out=one)
            total = list(map(np.add, total, largest)) if total else largest
    return total


def _wide(array: Any) -> np.ndarray:
    """An array in double precision."""
    own = np.asarray(array)
    return own.astype(np.complex128 if np.iscomplexobj(own) else np.float64)


def _changed(leaf: Any, random: np.random.Generator) -> Any:
    """Changes a floating parameter at random by some rounding errors."""
    dtype = jnp.result_type(leaf)
    if not jnp.issubdtype(dtype, jnp.inexact) or dtype.itemsize < 4:
        return leaf
    change = _CHANGE * rounding_of(dtype).eps
    factor = 1 + change * random.uniform(-1, 1, np.shape(leaf))
    return jnp.asarray((_wide(leaf) * factor).astype(dtype))
