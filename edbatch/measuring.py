"""Helpers for timings: a loss whose gradient is measured, and timers."""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from edbatch.batched_function import BatchedFunction


def half_squares(outputs: Any) -> Array:
    """Returns half the sum of squares of all outputs, so that each has a cotangent.

    Args:
        outputs: A pytree; integer leaves are ignored, and padding, which is zero, adds
            nothing.

    Returns:
        A float32 scalar.

    Example:
        >>> float(half_squares({"state": jnp.array([1.0, 2.0]), "label": 7}))
        2.5
    """
    arrays = map(jnp.asarray, jax.tree.leaves(outputs))
    squares = [
        jnp.sum(_square(each))
        for each in arrays
        if jnp.issubdtype(each.dtype, jnp.inexact)
    ]
    return 0.5 * sum(squares, jnp.float32(0))


def _square(array: Array) -> Array:
    if jnp.iscomplexobj(array):
        return jnp.real(array * jnp.conj(array))
    return jnp.square(array)


def loss_of(function: BatchedFunction, rng: Any = None) -> Callable[[Any, Any], Array]:
    """Returns the loss whose gradient is measured.

    Args:
        function: A batched function.
        rng: A key, for cells that draw random numbers.

    Returns:
        A function of parameters and a plan: `half_squares` of the outputs.

    Example:
        >>> import edbatch as eb
        >>> batched = eb.batch(eb.cell(lambda params, x: params * x))
        >>> plan = batched.plan([1.0, 2.0], params=jnp.float32(3))
        >>> float(jax.grad(loss_of(batched))(jnp.float32(3), plan))
        15.0
    """

    def loss(params: Any, plan: Any) -> Array:
        return half_squares(function.apply(params, plan, rng=rng))

    return loss


def add_up(found: Iterable[tuple[Array, Any]]) -> tuple[Array, Any]:
    """Adds up the losses and gradients of parts of a minibatch.

    Args:
        found: Loss and gradient of each part, at least one. Gradients with respect to
            integers are float0 and returned unchanged.

    Returns:
        The sums.

    Example:
        >>> total, gradient = add_up([(1.0, np.ones(2)), (2.0, np.ones(2))])
        >>> total, gradient.tolist()
        (3.0, [2.0, 2.0])
    """
    return reduce(partial(jax.tree.map, _add), found)


def _add(left: Any, right: Any) -> Any:
    has_no_sum = getattr(left, "dtype", None) == jax.dtypes.float0
    return left if has_no_sum else left + right


def run_all(step: Callable[[Any], Any], plans: Iterable[Any]) -> Any:
    """Runs a step for each plan, dispatching one step ahead to keep the device busy.

    Args:
        step: A step; may return before the device has computed its result.
        plans: The plans.

    Returns:
        The result of the last step, not awaited; None without plans.

    Example:
        >>> float(run_all(jnp.square, [2.0, 3.0]))
        9.0
    """
    last = None
    for plan in plans:
        begun = step(plan)
        jax.block_until_ready(last)
        last = begun
    return last


def timed(call: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Calls a function and waits for its result.

    Args:
        call: The function.
        *arguments: Its arguments.

    Returns:
        Its result, and the time in milliseconds.

    Example:
        >>> total, milliseconds = timed(jnp.sum, jnp.arange(4))
        >>> int(total), milliseconds > 0
        (6, True)
    """
    start = time.perf_counter()
    outcome = jax.block_until_ready(call(*arguments))
    return outcome, 1e3 * (time.perf_counter() - start)


def side_by_side(
    calls: Sequence[Callable[[], Any]], rounds: int, most_ms: float = np.inf
) -> np.ndarray:
    """Times calls in turns, after one untimed call of each.

    Each round begins with a different call, so other load on the machine, and the cache
    contents that one call leaves to the next, affect all calls equally.

    Args:
        calls: The calls; each result is awaited.
        rounds: How often each is timed.
        most_ms: Time limit; after three rounds, no round begins later than this.

    Returns:
        Milliseconds, ``[calls, rounds]``; fewer rounds if the time limit was reached.

    Example:
        >>> side_by_side([lambda: jnp.zeros(2), lambda: jnp.ones(2)], rounds=3).shape
        (2, 3)
    """
    for call in calls:
        jax.block_until_ready(call())  # may compile
    found: list[np.ndarray] = []
    while len(found) < rounds:
        if len(found) >= 3 and np.sum(found) > most_ms:
            break
        own = np.empty(len(calls))
        for turn in range(len(calls)):
            k = (turn + len(found)) % len(calls)
            _, own[k] = timed(calls[k])
        found.append(own)
    return np.array(found).reshape(-1, len(calls)).T
