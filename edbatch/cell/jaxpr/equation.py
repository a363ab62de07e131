"""Equations, and the variables and literals that they read."""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeGuard

import jax.numpy as jnp
import numpy as np

from edbatch.cell.jaxpr.internals import JaxprEqn, Literal, Var

Atom = Var | Literal


def name_of(eqn: JaxprEqn) -> str:
    """Returns the name of an equation's primitive."""
    name: str = eqn.primitive.name
    return name


def equations_of(nodes: Iterable[object]) -> list[JaxprEqn]:
    """Returns the equations among nodes; leaves out merged nodes."""
    return [each for each in nodes if isinstance(each, JaxprEqn)]


def is_operation(node: object, names: Collection[str]) -> TypeGuard[JaxprEqn]:
    """Returns whether a node is an equation whose primitive is among `names`."""
    return isinstance(node, JaxprEqn) and name_of(node) in names


def new_variable(like: Atom) -> Var:
    """Returns a variable of the same shape and dtype as another."""
    return Var(like.aval)


def rewire(
    eqn: JaxprEqn,
    invars: Sequence[Atom] | None = None,
    outvars: Sequence[Var] | None = None,
) -> JaxprEqn:
    """Returns an equation that reads or computes other variables.

    Args:
        eqn: The equation.
        invars: Its new inputs; the same by default.
        outvars: Its new results; the same by default.

    Returns:
        The new equation.
    """
    return eqn.replace(
        invars=None if invars is None else list(invars),
        outvars=None if outvars is None else list(outvars),
    )


def variables(atoms: Iterable[Atom]) -> list[Var]:
    """Returns the variables among atoms, without literals."""
    return [each for each in atoms if isinstance(each, Var)]


def shape_of(atom: Atom) -> tuple[int, ...]:
    """Returns the shape of an array."""
    aval: Any = atom.aval
    return aval.shape


def dtype_of(atom: Atom) -> Any:
    """Returns the dtype of an array."""
    aval: Any = atom.aval
    return aval.dtype


def size_of(atom: Atom) -> int:
    """Returns the number of elements of an array."""
    return math.prod(shape_of(atom))


def num_bytes_of(atom: Atom) -> int:
    """Returns the size of an array in bytes."""
    return size_of(atom) * int(dtype_of(atom).itemsize)


def is_float(atom: Atom) -> bool:
    """Returns whether an array has a dtype for which derivatives exist."""
    return bool(jnp.issubdtype(dtype_of(atom), jnp.inexact))


def literal_value(literal: Literal) -> np.ndarray:
    """Returns the value of a literal."""
    return np.asarray(literal.val)


def literal_key(literal: Literal) -> Any:
    """Returns a key that is equal for literals of the same value and dtype."""
    value = literal_value(literal)
    return value.dtype, value.shape, value.tobytes()


def equation_key(eqn: JaxprEqn) -> Any:
    """Returns a key of an equation's computation, whatever values it reads.

    Args:
        eqn: The equation.

    Returns:
        A key that is equal for two equations if they compute the same from their
        inputs; a unique key if that cannot be known or the equation has effects.
    """
    parts = (
        eqn.primitive,
        tuple(sorted(eqn.params.items(), key=lambda item: item[0])),
        # A fill value of 0.0 differs from -0.0, although the two compare equal.
        tuple([repr(x) for x in eqn.params.values() if isinstance(x, float)]),
        tuple((shape_of(each), dtype_of(each)) for each in eqn.outvars)
        if all(hasattr(each.aval, "shape") for each in eqn.outvars)
        else id(eqn),
        eqn.ctx,
    )
    try:
        hash(parts)
    except TypeError:
        return id(eqn)
    return id(eqn) if eqn.effects else parts
