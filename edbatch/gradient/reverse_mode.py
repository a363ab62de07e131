"""Derivatives in forward mode end in a sentence of edbatch.

A function with a rule of `jax.custom_vjp` has derivatives in reverse mode only; JAX
says so in terms of that rule, which no user wrote. So the inputs of such a function
pass through `reverse_only`, an identity. Its tangent passes through another, which
reverse mode transposes, and thereby removes, before anything is computed; whoever
computes, compiles or maps it is in forward mode.
"""

from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from edbatch.cell.jaxpr import reverse_only_identity
from edbatch.errors import PlanError


def reverse_only(tree: Any) -> Any:
    """Returns a pytree as it is, but without derivatives in forward mode.

    Args:
        tree: A pytree of arrays.

    Returns:
        The same arrays. Gradients pass; `jax.jvp` and the like raise `PlanError`.

    Example:
        >>> jax.grad(lambda x: 2 * reverse_only(x))(1.0).item()
        2.0
    """

    def mark(leaf: Any) -> Any:
        floats = jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
        return _identity(leaf) if floats else leaf

    return jax.tree.map(mark, tree)


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise PlanError(
        "a batched function has derivatives in reverse mode only, by jax.grad,"
        " jax.value_and_grad, jax.vjp or jax.jacrev, but this asks for forward mode, as"
        " jax.jvp, jax.jacfwd, jax.linearize and jax.hessian do; use one of the former,"
        " or differentiate the model itself, instance by instance"
    )


_identity = reverse_only_identity(_refuse)
