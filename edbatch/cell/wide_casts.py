"""Sums gradients in the precision of parameters when cells compute in half precision.

A cell that computes in bfloat16 reads casts of its parameters. The cotangent of a cast
is bfloat16, so the terms of a parameter's gradient would be rounded, and a sum of many
ones would stay at 256. So the backward pass skips casts from float32 to bfloat16 or
float16. Equations that only move the values of a cast are evaluated in the parameter's
dtype instead, which is then also the dtype of their cotangents. Equations that compute
with a cast still read the cast value.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax import Array

from edbatch.cell.jaxpr import (
    Atom,
    JaxprEqn,
    Literal,
    Var,
    as_function,
    dtype_of,
    is_float,
    name_of,
    trace,
    variables,
)
from edbatch.cell.primitives import CAST, EXACT
from edbatch.cell.summation import sum_dtype


def without_casts(
    arguments: Sequence[Var],
    equations: Iterable[JaxprEqn],
    results: Sequence[Atom],
    constants: dict[Var, Any] | None = None,
) -> Callable[..., list[Any]]:
    """Makes a function of equations that skips casts to half precision.

    Args:
        arguments: The variables that the function takes.
        equations: In an order in which they can run.
        results: Its results.
        constants: Variables that are neither arguments nor computed, and their arrays.

    Returns:
        The function, of arrays. Results that only move values of casts have the dtype
        before the cast.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from edbatch.cell.jaxpr import trace
        >>> spec = jax.ShapeDtypeStruct((2, 3), "float32")
        >>> body, _ = trace(lambda x: (x.astype("bfloat16").T, x + 1), spec)
        >>> run = without_casts(body.inputs, body.equations, body.outputs)
        >>> [str(each.dtype) for each in run(jnp.ones((2, 3)))]
        ['float32', 'float32']
    """
    equations = tuple(equations)

    def run(*arrays: Any) -> list[Any]:
        values = dict(constants or {}) | dict(zip(arguments, arrays, strict=True))
        for eqn in equations:
            if is_cast(eqn):
                values[eqn.outvars[0]] = _value(eqn.invars[0], values)
                continue
            inputs = list(dict.fromkeys(variables(eqn.invars)))
            dtype = _moved_dtype(eqn, values)
            own = [_read(var, values, dtype) for var in inputs]
            found = as_function(inputs, [eqn], eqn.outvars)(*own)
            values |= dict(zip(eqn.outvars, found, strict=True))
        return [_value(each, values) for each in results]

    return run


def packed_without_casts(pack: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a function of parameters that skips casts to half precision.

    Args:
        pack: A function of parameters.

    Returns:
        A function with the same structure of results.
    """

    def run(params: Any) -> Any:
        body, structure = trace(pack, params)
        function = without_casts(
            body.inputs, body.equations, body.outputs, body.constants
        )
        return jax.tree.unflatten(structure, function(*jax.tree.leaves(params)))

    return run


def is_cast(eqn: JaxprEqn) -> bool:
    """Returns whether an equation casts to half precision."""
    if name_of(eqn) != CAST:
        return False
    before, after = dtype_of(eqn.invars[0]), dtype_of(eqn.outvars[0])
    return (
        is_float(eqn.invars[0])
        and sum_dtype(after) != after
        and sum_dtype(before) == before
    )


def casts_of(variable: Var, equations: Iterable[Any]) -> list[Var]:
    """Lists a variable and its casts to half precision.

    Args:
        variable: The variable.
        equations: The equations to search for casts.

    Returns:
        The variables.
    """
    casts = [
        each.outvars[0]
        for each in equations
        if isinstance(each, JaxprEqn) and is_cast(each) and each.invars[0] is variable
    ]
    return [variable, *casts]


def _value(atom: Atom, values: dict[Var, Any]) -> Any:
    return atom.val if isinstance(atom, Literal) else values[atom]


def _read(var: Var, values: dict[Var, Any], moved: Any) -> Any:
    """An equation's input in its own dtype, unless it moves values of casts."""
    value = values[var]
    return value.astype(moved or dtype_of(var)) if is_float(var) else value


def _is_wide(var: Var, values: dict[Var, Array]) -> bool:
    return is_float(var) and values[var].dtype != dtype_of(var)


def _moved_dtype(eqn: JaxprEqn, values: dict[Var, Array]) -> Any:
    """The dtype in which an equation moves values of casts; None if it moves none."""
    literals = any(isinstance(each, Literal) and is_float(each) for each in eqn.invars)
    if literals or name_of(eqn) not in EXACT:
        return None
    wide = [values[v].dtype for v in variables(eqn.invars) if _is_wide(v, values)]
    return wide[0] if wide else None
