"""Finds smaller arrays from which a site's inputs are made by moving values.

The windows of a convolution are such inputs: windows of 3 by 3 contain each number nine
times. So the tape of a product with windows keeps the arrays from which they are cut,
and the contraction cuts them again, one block of rows at a time.

Gain (docs/results-training.md, "Tapes of windows"): value and gradient of 64 programs
of neural-module-network at hidden size 64 take 308 instead of 435 ms.
"""

import math
from collections.abc import Callable, Collection, Sequence

import numpy as np

from edbatch.cell.jaxpr import (
    Atom,
    JaxprEqn,
    Literal,
    Var,
    dtype_of,
    name_of,
    shape_of,
    variables,
)
from edbatch.cell.primitives import CAST, MOVES, PAD

_LEAST_GAIN = 2  # times smaller; otherwise moving values again does not pay


def sources_of(
    inputs: Sequence[Var],
    equations: Sequence[JaxprEqn],
    is_of_row: Callable[[Var], bool],
    constants: Collection[JaxprEqn],
) -> tuple[tuple[Var, ...], list[JaxprEqn]]:
    """Finds the variables from which some variables are made by moving values.

    Args:
        inputs: The variables.
        equations: The equations that run for each batch row, in their order.
        is_of_row: Whether a variable depends on the batch row.
        constants: The equations that run once.

    Returns:
        The variables that are moved, and the equations that move them, in their order;
        `inputs` and no equations if it would not pay.
    """
    padding = {each.outvars[0] for each in constants if _is_finite_cast(each)}

    def moves(eqn: JaxprEqn) -> bool:
        read = list(eqn.invars)
        if name_of(eqn) == PAD:  # zero times a nonfinite value is not zero
            value = read.pop()
            if not (value in padding if isinstance(value, Var) else _is_finite(value)):
                return False
        are_of_row = [isinstance(each, Var) and is_of_row(each) for each in read]
        return name_of(eqn) in MOVES and all(are_of_row)

    sources = dict.fromkeys(inputs)
    used: list[JaxprEqn] = []
    for eqn in reversed(equations):
        if moves(eqn) and any(each in sources for each in eqn.outvars):
            for each in eqn.outvars:
                sources.pop(each, None)
            sources |= dict.fromkeys(filter(is_of_row, variables(eqn.invars)))
            used.append(eqn)
    if _LEAST_GAIN * _bytes_of(sources) > _bytes_of(dict.fromkeys(inputs)):
        return tuple(inputs), []
    return tuple(sources), used[::-1]


def _bytes_of(some: Collection[Var]) -> int:
    return sum(math.prod(shape_of(v)) * dtype_of(v).itemsize for v in some)


def _is_finite(atom: Atom) -> bool:
    return isinstance(atom, Literal) and bool(np.isfinite(atom.val).all())


def _is_finite_cast(eqn: JaxprEqn) -> bool:
    return name_of(eqn) == CAST and _is_finite(eqn.invars[0])
