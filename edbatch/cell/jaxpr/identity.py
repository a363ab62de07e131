"""Everything that decides how an equation is lowered, for keys of stored programs.

A stored program is found by the content of its cells, in other processes, too. The
functions return None for whatever cannot be described reliably: a mesh, metadata, an
object that is known only by its address.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from edbatch.cell.jaxpr.equation import (
    dtype_of,
    is_float,
    new_variable,
    rewire,
    shape_of,
)
from edbatch.cell.jaxpr.function_body import Body, as_function, inner_bodies, trace
from edbatch.cell.jaxpr.internals import JaxprEqn, Primitive
from edbatch.cell.jaxpr.internals import primitives as _primitives

_RULE_OF_JVP = "jvp_jaxpr_fun"
_GENERATORS = ("threefry2x32", "rbg", "unsafe_rbg")


def is_of_jax(eqn: JaxprEqn) -> bool:
    """Returns whether an equation's primitive, and so its rules, are JAX's own."""
    return eqn.primitive in _primitives_of_jax()


@cache
def _primitives_of_jax() -> frozenset[Primitive]:
    """Primitives that `jax.extend` exports, and some that it does not."""
    others: list[Callable[[Array], Any]] = [
        lambda x: jax.lax.split(x, (1, 1)),
        lambda x: jnp.stack([x, x]),
        jnp.unstack,
    ]
    known = {each for each in vars(_primitives).values() if isinstance(each, Primitive)}
    for each in others:
        equations = [*jax.make_jaxpr(each)(np.zeros(2, np.float32)).eqns]
        for eqn in equations:
            known.add(eqn.primitive)
            equations += [own for body in inner_bodies(eqn) for own in body.equations]
    return frozenset(known)


def parameters_of(eqn: JaxprEqn) -> dict[str, Any]:
    """Returns the parameters of an equation by name, without its JVP rule."""
    return {name: each for name, each in eqn.params.items() if name != _RULE_OF_JVP}


def trace_context_of(eqn: JaxprEqn) -> tuple[Any, ...] | None:
    """Returns the settings besides parameters that decide an equation's lowering.

    Args:
        eqn: The equation.

    Returns:
        The settings that it was traced under; None if it names a mesh, a compute type
        or metadata.
    """
    asks = eqn.ctx.compute_type is not None or eqn.ctx.xla_metadata
    mesh = getattr(eqn.ctx, "cur_abstract_mesh", None)
    if asks or mesh is None or not mesh.empty:
        return None
    return (bool(getattr(eqn.ctx, "threefry_partitionable", True)),)


def tangents_of(eqn: JaxprEqn) -> Body | None:
    """Traces the rule of a `jax.custom_jvp` equation.

    Args:
        eqn: The equation.

    Returns:
        A function from the equation's inputs and their tangents to its results and
        their tangents; None if an input has no tangents, or the rule takes symbolic
        zeros.
    """
    floats = all(is_float(each) for each in eqn.invars)
    if not floats or takes_symbolic_zeros(eqn):
        return None
    specs = [jax.ShapeDtypeStruct(shape_of(v), dtype_of(v)) for v in eqn.invars]
    inputs = [new_variable(each) for each in eqn.invars]
    function = as_function(inputs, [rewire(eqn, inputs)], eqn.outvars)
    return trace(lambda *args: jax.jvp(function, *args), specs, specs)[0]


def has_rule_of_jvp(eqn: JaxprEqn) -> bool:
    """Returns whether an equation has a `jax.custom_jvp` rule."""
    return _RULE_OF_JVP in eqn.params


def takes_symbolic_zeros(eqn: JaxprEqn) -> bool:
    """Returns whether a differentiation rule takes symbolic zeros."""
    return bool(eqn.params["symbolic_zeros"])


def type_text(atom: Any) -> str | None:
    """Describes the type of a variable or literal: shape, dtype and weak type.

    Args:
        atom: A variable, a literal, or the abstract value of one.

    Returns:
        The text; None if the atom is not an array, or is on a mesh.
    """
    aval: Any = getattr(atom, "aval", atom)
    if not hasattr(aval, "str_short"):
        return None
    text = str(aval.str_short(short_dtypes=False))
    if "@" in text or "{" in text:
        return None
    return text + ("~" if aval.weak_type else "")


def is_unspecified(value: object) -> bool:
    """Returns whether a parameter stands for no sharding, or for no mesh."""
    if isinstance(value, jax.sharding.Mesh | jax.sharding.AbstractMesh):
        return bool(value.empty)
    return type(value).__name__ == "UnspecifiedValue"


def groups_text(value: object) -> str | None:
    """Describes the groups of an equation's operands, as JAX 0.12 records them.

    Args:
        value: A parameter of an equation.

    Returns:
        The text; None for other parameters, or if it names an object by its address.
    """
    if not type(value).__module__.endswith(".flattree"):
        return None
    text = repr(value)
    return None if " at 0x" in text else text


def generator_of(value: object) -> str | None:
    """Returns the name of a random number generator of JAX; None for other values."""
    name = getattr(value, "name", None)
    own = type(value).__name__ == "PRNGImpl" and name in _GENERATORS
    return str(name) if own else None
