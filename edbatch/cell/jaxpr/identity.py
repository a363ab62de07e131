"""All that decides how an equation is lowered, for keys that last between processes.

A program that is stored is found by the content of its cells. What cannot be written
down for sure (a mesh, metadata, an object known by its address) reads as None.
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
    """Tells whether an equation's primitive is one of JAX, whose rules it knows."""
    return eqn.primitive in _primitives_of_jax()


@cache
def _primitives_of_jax() -> frozenset[Primitive]:
    """Primitives that `jax.extend` exports; some are missing there."""
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
    """Returns the parameters of an equation by name, without its rule of tangents."""
    return {name: each for name, each in eqn.params.items() if name != _RULE_OF_JVP}


def surroundings_of(eqn: JaxprEqn) -> tuple[Any, ...] | None:
    """Returns what else decides how an equation is lowered.

    Args:
        eqn: The equation.

    Returns:
        Settings that it was traced under; None if it names a mesh, a place to run or
        metadata.
    """
    asks = eqn.ctx.compute_type is not None or eqn.ctx.xla_metadata
    mesh = getattr(eqn.ctx, "cur_abstract_mesh", None)
    if asks or mesh is None or not mesh.empty:
        return None
    return (bool(getattr(eqn.ctx, "threefry_partitionable", True)),)


def tangents_of(eqn: JaxprEqn) -> Body | None:
    """Traces the rule of an equation of `jax.custom_jvp`.

    Args:
        eqn: The equation.

    Returns:
        Its results and their tangents, from its inputs and theirs; None if an input has
        no tangents, or the rule asks which of them are zero.
    """
    floats = all(is_float(each) for each in eqn.invars)
    if not floats or asks_for_zeros(eqn):
        return None
    specs = [jax.ShapeDtypeStruct(shape_of(v), dtype_of(v)) for v in eqn.invars]
    inputs = [new_variable(each) for each in eqn.invars]
    function = as_function(inputs, [rewire(eqn, inputs)], eqn.outvars)
    return trace(lambda *args: jax.jvp(function, *args), specs, specs)[0]


def has_rule_of_jvp(eqn: JaxprEqn) -> bool:
    """Tells whether an equation has a rule of `jax.custom_jvp`."""
    return _RULE_OF_JVP in eqn.params


def asks_for_zeros(eqn: JaxprEqn) -> bool:
    """Tells whether a rule of differentiation is told what is known to be zero."""
    return bool(eqn.params["symbolic_zeros"])


def type_text(atom: Any) -> str | None:
    """Writes the type of a variable or literal: shape, dtype, and whether it is weak.

    Args:
        atom: A variable, a literal, or the abstract value of one.

    Returns:
        The text; None for what is no array, or lies on a mesh.
    """
    aval: Any = getattr(atom, "aval", atom)
    if not hasattr(aval, "str_short"):
        return None
    text = str(aval.str_short(short_dtypes=False))
    if "@" in text or "{" in text:
        return None
    return text + ("~" if aval.weak_type else "")


def asks_for_nothing(value: object) -> bool:
    """Tells whether a parameter stands for no sharding, or for no mesh."""
    if isinstance(value, jax.sharding.Mesh | jax.sharding.AbstractMesh):
        return bool(value.empty)
    return type(value).__name__ == "UnspecifiedValue"


def groups_text(value: object) -> str | None:
    """Writes how many operands of an equation belong together, as JAX 0.12 notes it.

    Args:
        value: A parameter of an equation.

    Returns:
        The text; None of anything else, or if it names an object by its address.
    """
    if not type(value).__module__.endswith(".flattree"):
        return None
    text = repr(value)
    return None if " at 0x" in text else text


def generator_of(value: object) -> str | None:
    """Returns the name of one of JAX's own generators of random numbers; else None."""
    name = getattr(value, "name", None)
    own = type(value).__name__ == "PRNGImpl" and name in _GENERATORS
    return str(name) if own else None
