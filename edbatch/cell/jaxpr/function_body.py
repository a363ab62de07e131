"""Traced functions: the parts of a jaxpr, and functions made from equations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax

from edbatch.cell.jaxpr.equation import Atom
from edbatch.cell.jaxpr.internals import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Var,
    jaxpr_as_fun,
)
from edbatch.cell.jaxpr.own_constants import with_own_constants
from edbatch.cell.primitives import CALLS, REMAT


@dataclass(frozen=True, eq=False)
class Body:
    """A traced function, or one that an equation calls.

    Attributes:
        inputs: Its arguments.
        constants: Variables of the arrays that it closes over, with the arrays; empty
            if an equation passes these arrays as arguments.
        equations: Its operations, in an order in which they can run.
        outputs: Its results.
    """

    inputs: Sequence[Var]
    constants: dict[Var, Any]
    equations: Sequence[JaxprEqn]
    outputs: Sequence[Atom]


def body_of(jaxpr: Any) -> Body:
    """Returns the parts of a jaxpr, closed or not.

    Args:
        jaxpr: As `jax.make_jaxpr` returns it, or a part of one.

    Returns:
        Its parts.
    """
    opened = getattr(jaxpr, "jaxpr", jaxpr)  # one class since JAX 0.12
    constants = zip(opened.constvars, getattr(jaxpr, "consts", ()), strict=False)
    return Body(opened.invars, dict(constants), opened.eqns, opened.outvars)


def as_body(value: object) -> Body | None:
    """Returns the parts of a jaxpr; None for anything else."""
    return body_of(value) if isinstance(value, ClosedJaxpr | Jaxpr) else None


def trace(function: Callable[..., Any], *specs: Any) -> tuple[Body, Any]:
    """Traces a function.

    Args:
        function: Takes pytrees of arrays.
        *specs: Its arguments, with ``jax.ShapeDtypeStruct`` leaves.

    Returns:
        The function, with the current values of NumPy arrays, and the structure of its
        output.
    """
    closed, output = jax.make_jaxpr(function, return_shape=True)(*specs)
    return body_of(with_own_constants(closed)), jax.tree.structure(output)


def as_function(
    arguments: Sequence[Var],
    equations: Sequence[JaxprEqn],
    results: Sequence[Atom],
    constants: dict[Var, Any] | None = None,
) -> Callable[..., Sequence[Any]]:
    """Makes a function from equations.

    Args:
        arguments: The variables that the function takes.
        equations: In an order in which they can run.
        results: Its results.
        constants: Variables that are neither arguments nor computed, and their arrays.

    Returns:
        The function, of arrays. Differentiation rules and effects are kept.
    """
    constants = constants or {}
    jaxpr = _template().replace(
        constvars=list(constants),
        invars=list(arguments),
        outvars=list(results),
        eqns=list(equations),
        effects=set().union(*(eqn.effects for eqn in equations)),
    )
    function: Callable[..., Sequence[Any]]
    function = jaxpr_as_fun(ClosedJaxpr(jaxpr, list(constants.values())))
    return function


@cache
def _template() -> Jaxpr:
    """An empty jaxpr, whose debugging information the jaxprs made here reuse."""
    return jax.make_jaxpr(lambda: ())().jaxpr


def inner_bodies(eqn: JaxprEqn) -> list[Body]:
    """Returns the functions that an equation calls, in the order of its parameters."""
    found = jax.tree.leaves(
        list(eqn.params.values()), is_leaf=lambda x: isinstance(x, ClosedJaxpr | Jaxpr)
    )
    return [body_of(each) for each in found if isinstance(each, ClosedJaxpr | Jaxpr)]


def contains(eqn: JaxprEqn, primitive: str) -> bool:
    """Returns whether an equation is of a primitive, or calls one that is."""
    return eqn.primitive.name == primitive or any(
        contains(each, primitive)
        for body in inner_bodies(eqn)
        for each in body.equations
    )


def called_body(eqn: JaxprEqn) -> Body | None:
    """Returns the function that an equation calls, if it can replace the call.

    Args:
        eqn: An equation.

    Returns:
        The function; None if the equation is no call, has a differentiation rule, or
        specifies shardings or layouts.
    """
    parameter = CALLS.get(eqn.primitive.name)
    if parameter is None:
        return None
    asked = [
        *eqn.params.get("in_shardings", ()),
        *eqn.params.get("out_shardings", ()),
        *filter(None, eqn.params.get("in_layouts", ())),
        *filter(None, eqn.params.get("out_layouts", ())),
    ]
    if any(type(each).__name__ != "UnspecifiedValue" for each in asked):
        return None
    return body_of(eqn.params[parameter])


def argument_of(body: Body, result: int) -> int | None:
    """Finds the argument that a function returns unchanged as one of its results.

    The argument may have passed through jitted functions or through functions that are
    computed again in the backward pass (`jax.checkpoint`), which rename its variable.

    Args:
        body: A function.
        result: The position of the result.

    Returns:
        The position of the argument; None if the result is computed.

    Example:
        >>> import jax.numpy as jnp
        >>> inner = jax.checkpoint(lambda x, y: (y, x + y))
        >>> body, _ = trace(lambda x, y: inner(x, y), jnp.ones(2), jnp.ones(2))
        >>> argument_of(body, 0), argument_of(body, 1)
        (1, None)
    """
    atom, arguments = body.outputs[result], list[Atom](body.inputs)
    made_by = {var: eqn for eqn in body.equations for var in eqn.outvars}
    while atom not in arguments:
        eqn = made_by.get(atom) if isinstance(atom, Var) else None
        if eqn is None or eqn.primitive.name not in (*CALLS, REMAT):
            return None
        [inner] = inner_bodies(eqn)
        place = argument_of(inner, list[Atom](eqn.outvars).index(atom))
        if place is None:
            return None
        atom = eqn.invars[place]
    return arguments.index(atom)
