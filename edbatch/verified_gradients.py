"""Compares gradients of a batched function with those of its unbatched model.

The differentiated function is the sum of all floating outputs, each number times a
random weight, so that errors do not cancel. With parameters or computation in half
precision, weights of one are used as well: a sum rounded to half precision at each step
stops growing after some hundred terms of one sign, and terms of both signs would hide
this.

Where an activation has a kink, such as a relu at zero, the gradient jumps. A batched
run rounds differently, so it may be on the other side of a kink that lies within
rounding. Such jumps are measured on the unbatched model, by changing its parameters by
some rounding errors, and are allowed.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from edbatch.batched_function import BatchedFunction
from edbatch.closeness import difference
from edbatch.compilation.settings import SETTINGS
from edbatch.compilation.signature import name_of
from edbatch.compilation.tiered_function import TieredFunction
from edbatch.errors import VerificationError
from edbatch.graph.context import jitted_cells
from edbatch.instance_results import split_instances
from edbatch.rounding import Rounding, coarsest_roundings, rounding_of

_DRAWS = 8  # changes of the parameters; each finds a jump in about half of the cases
_CHANGE = 8  # rounding errors by which each parameter changes


class GradientComparison(NamedTuple):
    """The result of comparing gradients.

    Attributes:
        worst: The largest difference, divided by the gradient's largest entry if above
            1; where a gradient jumps, the part beyond the jump.
        jumps: Number of parameters whose gradients differ only where those of the
            unbatched model jump within rounding.
    """

    worst: float
    jumps: int = 0


def compare_gradients(
    batched: BatchedFunction,
    params: Any,
    plan: Any,
    model: Callable[[Any, Any, int], Any],
    instances: Sequence[Any],
    tolerance: float | None,
    seed: int,
    rng: Any,
    precise_model: Callable[[Any, Any, int], Any] | None = None,
) -> GradientComparison:
    """Compares gradients with respect to every floating parameter.

    Args:
        batched: The batched function.
        params: The parameters.
        plan: The plan of the instances.
        model: The unbatched model, called with parameters, instance and its index.
        instances: The instances.
        tolerance: As for `edbatch.verify`; None for the one derived from rounding.
        seed: Seed of the weights of the outputs.
        rng: The key for cells that draw random numbers, or None.
        precise_model: Like ``model`` but without the compute dtype; None if there is no
            compute dtype.

    Returns:
        The largest difference, and the number of parameters whose gradients jump.

    Raises:
        VerificationError: A gradient differs by more than the tolerance.
    """
    result = batched.apply(params, plan, rng=rng)
    gradient_of = _batched_gradient(batched)

    def compared(
        weights: Any, reference: Callable[[Any, Any, int], Any]
    ) -> GradientComparison:
        own = gradient_of(params, plan, rng, weights)
        return _compare_weighted(own, reference, params, instances, weights, tolerance)

    first = compared(_random_weights(result, seed), model)
    if precise_model is None and any(map(_is_half, jax.tree.leaves(params))):
        precise_model = _in_single_precision(model)
    if precise_model is None:
        return first
    ones = _weights_of_one(result)
    try:
        second = compared(ones, model)
    except VerificationError:  # the sum may have stopped growing in the model itself
        second = compared(ones, precise_model)
    return GradientComparison(
        max(first.worst, second.worst), max(first.jumps, second.jumps)
    )


def _batched_gradient(batched: BatchedFunction) -> Callable[..., list[Any]]:
    """Returns the gradient of the weighted sum of a batched function's outputs.

    Outside a compiled function, `jax.grad` of a sharded function always runs the fine
    program, whatever the tier. For the coarse tier, the gradient is therefore compiled
    like a training step.
    """

    def gradient(params: Any, plan: Any, rng: Any, weights: Any) -> list[Any]:
        def weighted(some: Any) -> Any:
            return _weighted(batched.apply(some, plan, rng=rng), weights)

        return _gradient(weighted, params)

    name = f"gradient of {name_of(batched.model)}"
    return (
        TieredFunction(gradient, name=name) if SETTINGS.tiers == "coarse" else gradient
    )


def _compare_weighted(
    own: Sequence[Any],
    model: Callable[[Any, Any, int], Any],
    params: Any,
    instances: Sequence[Any],
    weights: Any,
    tolerance: float | None,
) -> GradientComparison:
    """Compares a minibatch's gradient with the model's, for given output weights."""
    shares = split_instances(weights, len(instances))

    def of_one(own: Any, k: int) -> list[Any]:
        return _gradient(
            lambda some: _weighted(model(some, instances[k], k), shares[k]), own
        )

    @cache
    def roundings() -> list[Rounding]:
        with jitted_cells(exact=True):
            found = [
                coarsest_roundings(lambda own, k=k: of_one(own, k), params)
                for k in range(len(instances))
            ]
        return [max(each) for each in zip(*found, strict=True)]

    with jitted_cells(exact=True):
        expected = _sums(of_one(params, k) for k in range(len(instances)))
    allowed = None if tolerance is None else 10 * tolerance

    def compare(k: int, own: Any) -> float:
        where = f"gradient of params{names[k]}"
        return difference(own, expected[k], where, allowed, roundings, k)

    names = _float_names(params)
    worst = 0.0
    failed: dict[int, VerificationError] = {}
    for k, each in enumerate(own):
        try:
            worst = max(worst, compare(k, each))
        except VerificationError as error:
            if tolerance is not None or not _are_alike(each, expected[k]):
                raise
            failed[k] = error
    jumps: list[np.ndarray] = []
    if failed:
        with jitted_cells(exact=True):
            jumps = _jumps(of_one, params, len(instances))
    for k, first_error in failed.items():
        try:
            worst = max(worst, compare(k, _nearer(own[k], expected[k], jumps[k])))
        except VerificationError:
            raise first_error from None
    return GradientComparison(worst, len(failed))


def _jumps(
    of_one: Callable[[Any, int], list[Any]], params: Any, num_instances: int
) -> list[np.ndarray]:
    """Measures by how much each entry of the model's gradient varies within rounding.

    Args:
        of_one: Returns the gradient of an instance for some parameters.
        params: The parameters.
        num_instances: Number of instances.

    Returns:
        An array for each floating parameter, of its shape: the largest change of any
        draw, summed over the instances.
    """
    random = np.random.default_rng(0)
    draws = [jax.tree.map(lambda p: _rounded(p, random), params) for _ in range(_DRAWS)]
    total: list[np.ndarray] = []
    for k in range(num_instances):
        here = of_one(params, k)
        largest = [np.zeros(np.shape(each)) for each in here]
        for draw in draws:
            for one, a, b in zip(largest, of_one(draw, k), here, strict=True):
                gap = np.asarray(a, np.float64) - np.asarray(b, np.float64)
                np.maximum(one, np.abs(gap), out=one)
        total = largest if not total else list(map(np.add, total, largest))
    return total


def _rounded(leaf: Any, random: np.random.Generator) -> Any:
    """Changes a parameter by some rounding errors; one of half precision stays."""
    if not _is_float(leaf) or _is_half(leaf):
        return leaf
    dtype = jnp.result_type(leaf)
    change = _CHANGE * rounding_of(dtype).eps
    factor = 1 + change * random.uniform(-1, 1, np.shape(leaf))
    return jnp.asarray(np.asarray(leaf, np.float64) * factor, dtype)


def _nearer(own: Any, expected: np.ndarray, jump: np.ndarray) -> np.ndarray:
    """Moves a gradient towards the expected one, by up to twice the jump."""
    gap = np.asarray(own, np.float64) - expected
    rest = np.sign(gap) * np.maximum(np.abs(gap) - 2 * jump, 0)
    return np.asarray(expected + rest, expected.dtype)


def _are_alike(own: Any, expected: np.ndarray) -> bool:
    """Whether two arrays have the same shape and dtype."""
    return bool(own.shape == expected.shape and own.dtype == expected.dtype)


def has_float(tree: Any) -> bool:
    """Returns whether a pytree has floating leaves."""
    return any(map(_is_float, jax.tree.leaves(tree)))


def _random_weights(result: Any, seed: int) -> Any:
    """Returns random numbers for the floating leaves; other leaves are kept."""
    random = np.random.default_rng(seed)
    return jax.tree.map(
        lambda each: (
            random.standard_normal(each.shape).astype(each.dtype)
            if _is_float(each)
            else np.asarray(each)
        ),
        result,
    )


def _weights_of_one(result: Any) -> Any:
    return jax.tree.map(
        lambda each: np.ones(each.shape, each.dtype) if _is_float(each) else each,
        result,
    )


def _sums(parts: Iterable[Sequence[Any]]) -> list[np.ndarray]:
    """Adds up gradients of instances in float64, and casts the sums back.

    Only one instance's gradient is in memory at a time.
    """
    parts = iter(parts)
    first = [np.asarray(each) for each in next(parts)]
    sums = [each.astype(np.float64) for each in first]
    for own in parts:
        for total, each in zip(sums, own, strict=True):
            total += np.asarray(each, np.float64)
    return [total.astype(each.dtype) for total, each in zip(sums, first, strict=True)]


def _in_single_precision(
    model: Callable[[Any, Any, int], Any],
) -> Callable[[Any, Any, int], Any]:
    """Returns the model with its half-precision parameters cast to float32."""

    def run(params: Any, instance: Any, place: int) -> Any:
        single = jax.tree.map(
            lambda leaf: jnp.asarray(leaf, jnp.float32) if _is_half(leaf) else leaf,
            params,
        )
        return model(single, instance, place)

    return run


def _float_names(params: Any) -> list[str]:
    return [
        jax.tree_util.keystr(path)
        for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]
        if _is_float(leaf)
    ]


def _weighted(result: Any, weights: Any) -> Any:
    """Sums all floating outputs, each number times its weight."""
    pairs = zip(jax.tree.leaves(result), jax.tree.leaves(weights), strict=True)
    products = [jnp.sum(x * w) for x, w in pairs if _is_float(x)]
    return sum((each.astype(jnp.float32) for each in products), jnp.float32(0.0))


def _is_half(leaf: Any) -> bool:
    return _is_float(leaf) and jnp.result_type(leaf).itemsize < 4


def _is_float(leaf: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.floating))


def _split(params: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Returns the floating leaves, and a function that puts them back."""
    leaves, treedef = jax.tree.flatten(params)
    floating = [k for k, leaf in enumerate(leaves) if _is_float(leaf)]

    def join(some: list[Any]) -> Any:
        everything = list(leaves)
        for k, leaf in zip(floating, some, strict=True):
            everything[k] = leaf
        return jax.tree.unflatten(treedef, everything)

    return [leaves[k] for k in floating], join


def _gradient(function: Callable[[Any], Any], params: Any) -> list[Any]:
    some, join = _split(params)
    return jax.grad(lambda each: function(join(each)))(some)
