"""Derivatives in forward mode end in a sentence of edbatch.

A function with a rule of `jax.custom_vjp` has derivatives in reverse mode only; JAX
says so in terms of that rule, which no user wrote. So what such a function reads passes
through `reverse_only`, an identity. Its tangent passes through another, which reverse
mode transposes, and thereby removes, before anything is computed; whoever computes,
compiles or maps it is in forward mode.
"""

from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from edbatch.errors import PlanError

_value_p = Primitive("reverse_only")
_tangent_p = Primitive("tangent_of_reverse_only")


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
        return _value_p.bind(leaf) if floats else leaf

    return jax.tree.map(mark, tree)


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise PlanError(
        "a batched function has derivatives in reverse mode only, by jax.grad,"
        " jax.value_and_grad, jax.vjp or jax.jacrev, but this asks for forward mode, as"
        " jax.jvp, jax.jacfwd, jax.linearize and jax.hessian do; use one of the former,"
        " or differentiate the model itself, instance by instance"
    )


def _value_jvp(primals: tuple[Array], tangents: tuple[Any]) -> tuple[Array, Any]:
    [primal], [tangent] = primals, tangents
    passed = tangent if type(tangent) is ad.Zero else _tangent_p.bind(tangent)
    return _value_p.bind(primal), passed


_value_p.def_abstract_eval(lambda aval: aval)
_value_p.def_impl(lambda value: value)
batching.defvectorized(_value_p)
mlir.register_lowering(_value_p, lambda _, value: [value])
ad.primitive_jvps[_value_p] = _value_jvp

_tangent_p.def_abstract_eval(lambda aval: aval)
_tangent_p.def_impl(_refuse)
batching.primitive_batchers[_tangent_p] = _refuse
mlir.register_lowering(_tangent_p, _refuse)
ad.deflinear2(_tangent_p, lambda cotangent, _: [cotangent])
