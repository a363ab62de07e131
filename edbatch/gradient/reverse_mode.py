"""Raises edbatch's own error for forward-mode derivatives.

A function with a `jax.custom_vjp` rule has derivatives in reverse mode only. JAX
reports this in terms of that rule, which no user wrote. So the inputs of such a
function pass through `reverse_only`, an identity. Its tangent passes through a second
primitive, which reverse mode transposes and so removes before anything is computed. If
the tangent is computed, compiled or mapped, the caller is in forward mode.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from edbatch.cell.jaxpr import first_of_traces, reverse_only_identity
from edbatch.errors import PlanError


def reverse_only(tree: Any) -> Any:
    """Returns a pytree unchanged, but without forward-mode derivatives.

    Args:
        tree: A pytree of arrays.

    Returns:
        The same arrays. Gradients pass through; `jax.jvp` and the like raise
        `PlanError`.

    Example:
        >>> jax.grad(lambda x: 2 * reverse_only(x))(1.0).item()
        2.0
    """

    def mark(leaf: Any) -> Any:
        return _identity(leaf) if has_derivative(leaf) else leaf

    return jax.tree.map(mark, tree)


def reverse_only_outside(leaves: Sequence[Any]) -> list[Any]:
    """As `reverse_only`, for arguments outside compiled functions.

    There JAX linearizes each marked array again in every call, so this marks only one
    floating-point tracer per transformation. That is a differentiated one, unless
    `jax.vmap` made it; then JAX may refuse forward mode with its own error.

    Args:
        leaves: Arrays, some of them tracers.

    Returns:
        The same arrays.
    """
    floats = [k for k, leaf in enumerate(leaves) if has_derivative(leaf)]
    places = [floats[k] for k in first_of_traces([leaves[k] for k in floats])]
    found = list(leaves)
    for k, marked in zip(
        places, reverse_only([leaves[k] for k in places]), strict=True
    ):
        found[k] = marked
    return found


def has_derivative(leaf: Any) -> bool:
    """Returns whether an array or number is differentiable."""
    return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.inexact))


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise PlanError(
        "a batched function has derivatives in reverse mode only, by jax.grad,"
        " jax.value_and_grad, jax.vjp or jax.jacrev, but this is forward mode, as in"
        " jax.jvp, jax.jacfwd, jax.linearize and jax.hessian; use one of the"
        " reverse-mode functions, or differentiate the model itself, instance by"
        " instance"
    )


_identity = reverse_only_identity(_refuse)
