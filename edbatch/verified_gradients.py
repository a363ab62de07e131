"""Compares gradients of a batched function with those of its unbatched model.

The differentiated function is the sum of all floating outputs, each number times a
random weight, so that errors do not cancel. With parameters or computation in half
precision, weights of one are used as well: a sum rounded to half precision at each step
stops growing after some hundred terms of one sign, and terms of both signs would hide
this.

Where an activation has a kink, such as a relu at zero, the gradient jumps. A batched
run rounds differently, so it may be on the other side of a kink that lies within
rounding. Such jumps are measured on the unbatched model, see
`edbatch.rounding_jumps`, and are allowed.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from edbatch.batched_function import BatchedFunction
from edbatch.closeness import Comparison, compare_arrays
from edbatch.compilation.settings import SETTINGS
from edbatch.compilation.signature import name_of
from edbatch.compilation.tiered_function import TieredFunction
from edbatch.errors import VerificationError
from edbatch.graph.context import jitted_cells
from edbatch.instance_results import split_instances
from edbatch.rounding import Rounding, coarsest_roundings
from edbatch.rounding_jumps import jumps_within_rounding


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
) -> Comparison:
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

    def compared(weights: Any, reference: Callable[[Any, Any, int], Any]) -> Comparison:
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
    return Comparison(max(first.worst, second.worst), max(first.jumps, second.jumps))


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
) -> Comparison:
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
    names = [f"gradient of params{name}" for name in _float_names(params)]

    @cache
    def jumps() -> list[np.ndarray]:
        return jumps_within_rounding(of_one, params, range(len(instances)))

    allowed = None if tolerance is None else 10 * tolerance
    return compare_arrays(own, expected, names, allowed, roundings, jumps)


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
