"""Compares the operations of two traces of one function.

Two traces of a function with arguments of the same shapes differ if the function reads
something besides its arguments that has changed: another number, array or branch.
Functions among the parameters of equations (rules, callbacks) are new objects in each
trace and are not compared: the operations of a rule are part of the trace, and values
that a callback reads on the host are not.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from edbatch.cell.jaxpr.equation import (
    Atom,
    dtype_of,
    literal_key,
    name_of,
    shape_of,
)
from edbatch.cell.jaxpr.function_body import Body, as_body, inner_bodies
from edbatch.cell.jaxpr.internals import JaxprEqn, Literal, Var


def same_operations(one: Body, other: Body) -> bool:
    """Returns whether two functions have the same operations and constants.

    Args:
        one: A function.
        other: Another function; its variables may have other names.

    Returns:
        Whether they compute the same, except for functions that equations call back.

    Example:
        >>> import jax.numpy as jnp
        >>> from edbatch.cell.jaxpr import trace
        >>> def traced(scale):
        ...     return trace(lambda x: scale * x, jnp.ones(2))[0]
        >>> [same_operations(traced(2.0), traced(each)) for each in (2.0, 3.0)]
        [True, False]
    """
    return _Comparison().bodies(one, other)


def changeable_constants(body: Body) -> tuple[bytes, ...]:
    """Describes the constants that can be changed in place: NumPy arrays.

    Args:
        body: A function.

    Returns:
        A hash of the content of each, including those of functions that it calls.
    """
    atoms = [each for eqn in body.equations for each in eqn.invars]
    literals = [
        each.val for each in [*atoms, *body.outputs] if isinstance(each, Literal)
    ]
    found = [
        hashlib.blake2b(np.asarray(each).tobytes()).digest()
        for each in [*body.constants.values(), *literals]
        if _is_array(each) and not isinstance(each, jax.Array)
    ]
    for eqn in body.equations:
        for inner in inner_bodies(eqn):
            found += changeable_constants(inner)
    return tuple(found)


class _Comparison:
    """Compares two functions; remembers pairs that were found to be the same."""

    def __init__(self) -> None:
        self._same: dict[tuple[int, int], tuple[Any, Any]] = {}

    def bodies(
        self,
        one: Body,
        other: Body,
        unbound: Sequence[Var] = (),
        others_unbound: Sequence[Var] = (),
    ) -> bool:
        places: dict[Var, Var] = {}

        def defined(own: Any, others: Any) -> bool:
            if len(own) != len(others):
                return False
            places.update(zip(own, others, strict=True))
            return all(_same_type(*pair) for pair in zip(own, others, strict=True))

        def read(own: Any, others: Any) -> bool:
            return len(own) == len(others) and all(
                _same_atom(*pair, places) for pair in zip(own, others, strict=True)
            )

        return (
            defined(unbound, others_unbound)
            and defined(one.inputs, other.inputs)
            and defined([*one.constants], [*other.constants])
            and self.values([*one.constants.values()], [*other.constants.values()])
            and len(one.equations) == len(other.equations)
            and all(
                name_of(own) == name_of(another)
                and read(own.invars, another.invars)
                and self.values(own.params, another.params)
                and _same_surroundings(own, another)
                and defined(own.outvars, another.outvars)
                for own, another in zip(one.equations, other.equations, strict=True)
            )
            and read(one.outputs, other.outputs)
        )

    def values(self, one: Any, other: Any) -> bool:
        """Compares constants, or parameters of equations."""
        if one is other or (id(one), id(other)) in self._same:
            return True
        body, others = as_body(one), as_body(other)
        if body is not None and others is not None:
            same = self.bodies(body, others, _unbound(one), _unbound(other))
            if same:
                self._same[id(one), id(other)] = one, other  # also keeps them alive
            return same
        if _is_array(one) and _is_array(other):
            return _same_array(one, other)
        if type(one) is not type(other):
            return False
        if _is_function(one):
            return True
        # Of pytree structures only the number of leaves is compared: the structure of a
        # plan contains the number of its trace (`PlanShape`).
        if isinstance(one, jax.tree_util.PyTreeDef):
            return one.num_leaves == other.num_leaves
        if isinstance(one, Mapping):
            own, its = [*one.values()], [*other.values()]
            return [*one] == [*other] and self.values(own, its)
        if isinstance(one, tuple | list):
            return len(one) == len(other) and all(map(self.values, one, other))
        if dataclasses.is_dataclass(one) and not isinstance(one, type):
            return self.values(_fields(one), _fields(other))
        if isinstance(one, float | complex):
            return repr(one) == repr(other)
        return bool(one == other)


def _fields(record: Any) -> list[Any]:
    return [getattr(record, each.name, None) for each in dataclasses.fields(record)]


def _unbound(jaxpr: Any) -> Sequence[Var]:
    """Constant variables of an open jaxpr whose arrays the equation passes."""
    opened = getattr(jaxpr, "jaxpr", jaxpr)
    bound: Sequence[Var] = opened.constvars[: len(getattr(jaxpr, "consts", ()))]
    return [each for each in opened.constvars if each not in bound]


def _is_function(value: Any) -> bool:
    is_own = callable(value) and not isinstance(value, type)
    return is_own or hasattr(value, "call_wrapped")  # JAX's wrapper of rules


def _same_surroundings(one: JaxprEqn, other: JaxprEqn) -> bool:
    """Whether the settings that JAX records with an equation are the same."""
    return all(
        getattr(one.ctx, name, None) == getattr(other.ctx, name, None)
        for name in ("compute_type", "threefry_partitionable", "xla_metadata")
    )


def _is_array(value: Any) -> bool:
    """Whether a value is a NumPy or JAX array, or JAX's wrapper of a NumPy array."""
    return isinstance(value, jax.Array) or hasattr(value, "__array__")


def _same_array(one: Any, other: Any) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
        one, other = jax.random.key_data(one), jax.random.key_data(other)
    return np.asarray(one).tobytes() == np.asarray(other).tobytes()


def _same_type(one: Atom, other: Atom) -> bool:
    """Whether both are arrays of one shape and dtype, or non-arrays of one type."""
    own, its = one.aval, other.aval
    if not (hasattr(own, "shape") and hasattr(its, "shape")):
        return type(own) is type(its)
    return shape_of(one) == shape_of(other) and dtype_of(one) == dtype_of(other)


def _same_atom(one: Atom, other: Atom, places: dict[Var, Var]) -> bool:
    if isinstance(one, Literal) or isinstance(other, Literal):
        if not (isinstance(one, Literal) and isinstance(other, Literal)):
            return False
        return _same_type(one, other) and literal_key(one) == literal_key(other)
    return places.get(one) is other
