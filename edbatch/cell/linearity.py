"""Decides from its equations whether a function is linear in some arguments.

A `jax.custom_vjp` rule may compute anything. Each value of its jaxpr is zero, constant
in the arguments, linear in them, or something else. Which of these holds is found by
abstract interpretation (Cousot and Cousot 1977): equation by equation, and for loops
until a fixed point is reached.
"""

from collections.abc import Sequence
from enum import Enum, auto
from functools import reduce
from typing import Any

import numpy as np

from edbatch.cell.jaxpr import (
    Atom,
    Body,
    JaxprEqn,
    Var,
    dtype_of,
    exponent_of,
    fills_with_a_number,
    inner_bodies,
    is_float,
    name_of,
    read_branches,
    read_scan,
)
from edbatch.cell.primitives import (
    CAST,
    CUSTOM_VJP,
    LINEAR_IN,
    LINEAR_IN_ALL,
    PRODUCTS,
    REMAT,
)

_MOST_READ = 1 << 16  # elements of a constant whose values are read
_LEAST_BITS = 16  # casts to floats of fewer bits are more than a rounding error
_CALLS = frozenset({REMAT, CUSTOM_VJP, "custom_jvp_call", "jit", "closed_call"})


class Degree(Enum):
    """How a value depends on the arguments."""

    ZERO = auto()
    CONSTANT = auto()
    LINEAR = auto()
    OTHER = auto()


ZERO, CONSTANT, LINEAR, OTHER = Degree


def is_linear(body: Body, constant: int) -> bool:
    """Returns whether a function is linear in its last arguments.

    Args:
        body: The function.
        constant: The number of leading arguments, which are treated as constants.

    Returns:
        True only if all floating-point results are jointly linear in the remaining
        arguments, up to rounding; False if that cannot be decided.
    """
    own = [CONSTANT if k < constant else LINEAR for k in range(len(body.inputs))]
    found = zip(body.outputs, _degrees(body, own), strict=True)
    return all(each in (ZERO, LINEAR) for var, each in found if is_float(var))


def _degrees(body: Body, arguments: Sequence[Degree]) -> list[Degree]:
    """The degrees of a function's results."""
    known: dict[Var, Degree] = dict(zip(body.inputs, arguments, strict=True))
    for var, value in body.constants.items():
        known.setdefault(var, _of_constant(value))

    def read(atom: Atom) -> Degree:
        if isinstance(atom, Var):
            return known.get(atom, CONSTANT)
        return _of_constant(atom.val)

    for eqn in body.equations:
        found = _of_results(eqn, [read(each) for each in eqn.invars])
        known.update(zip(eqn.outvars, found, strict=True))
    return [read(each) for each in body.outputs]


def _of_constant(value: Any) -> Degree:
    """The degree of an array; the values of a small array are read."""
    if getattr(value, "size", 1) > _MOST_READ:
        return CONSTANT
    try:
        return CONSTANT if np.asarray(value).any() else ZERO
    except TypeError:  # such as a key
        return CONSTANT


def _of_results(eqn: JaxprEqn, degrees: Sequence[Degree]) -> list[Degree]:
    """The degrees of an equation's results, given the degrees of its inputs."""
    name, count = name_of(eqn), len(eqn.outvars)
    if name == "optimization_barrier":
        return list(degrees)
    scan, branches = read_scan(eqn), read_branches(eqn)
    if scan is not None:
        carried = slice(scan.num_consts, scan.num_consts + scan.num_carried)
        return _of_scan(scan.body, [*degrees], carried)
    if branches is not None and not _depends(degrees[0]):
        each = (_degrees(branch, degrees[1:]) for branch in branches)
        return [reduce(_sum, some) for some in zip(*each, strict=True)]
    if name in _CALLS:
        [*_, body] = inner_bodies(eqn)
        if len(body.inputs) == len(degrees):
            return _degrees(body, degrees)
    return [_of_operation(eqn, name, degrees)] * count


def _of_scan(body: Body, degrees: list[Degree], carried: slice) -> list[Degree]:
    """The degrees of a loop's results that are valid for any number of steps."""
    while True:
        found = _degrees(body, degrees)
        before = degrees[carried]
        after = found[: len(before)]
        joined = [_sum(*pair) for pair in zip(before, after, strict=True)]
        if joined == before:
            return [*joined, *found[len(before) :]]
        degrees[carried] = joined


def _of_operation(eqn: JaxprEqn, name: str, degrees: Sequence[Degree]) -> Degree:
    """The degree of an operation's result."""
    summed = _summed(eqn, name, degrees)
    rest = [each for k, each in enumerate(degrees) if k not in summed]
    if not summed or any(map(_depends, rest)):
        return OTHER if any(map(_depends, degrees)) else CONSTANT
    if name == "mul" or name in PRODUCTS:
        return ZERO if ZERO in degrees else degrees[summed[0]]
    found = reduce(_sum, (degrees[k] for k in summed))
    if name == "gather" and fills_with_a_number(eqn):
        return _sum(found, CONSTANT)
    return found


def _summed(eqn: JaxprEqn, name: str, degrees: Sequence[Degree]) -> Sequence[int]:
    """The inputs in which an operation is jointly linear, the others being constant."""
    places = range(len(degrees))
    if name == CAST and not _keeps_numbers(eqn.outvars[0]):
        return ()
    if name in LINEAR_IN_ALL:
        return places
    if name in LINEAR_IN:
        return LINEAR_IN[name]
    if name == "select_n":
        return places[1:]
    if name == "mul" or name in PRODUCTS:
        dependent = [k for k in places if _depends(degrees[k])]
        return dependent[:1] or places[:1]
    return places if exponent_of(eqn) == 1 else ()


def _keeps_numbers(var: Var) -> bool:
    """Whether a cast to the dtype of a variable only rounds numbers."""
    return is_float(var) and 8 * dtype_of(var).itemsize >= _LEAST_BITS


def _depends(degree: Degree) -> bool:
    return degree in (LINEAR, OTHER)


def _sum(one: Degree, other: Degree) -> Degree:
    """The degree of a sum, or of a value that is one of two.

    The sum of a linear value and a constant is neither linear nor constant.
    """
    if one is ZERO or one is other:
        return other
    return one if other is ZERO else OTHER
