"""Poles on the way back from a cell's outputs, and inputs that have a derivative.

JAX tells a cotangent that is zero because nothing reads the output (a symbolic zero)
from one that happens to be zero: the first is not propagated at all, the second is
multiplied by the slope, and zero times an infinite slope is not a number. A chunk's
rows share one derivative, so the rows that no cotangent reaches are masked. That is
needed only where a slope can be infinite.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from edbatch.cell.cell_graph import CellGraph, Node
from edbatch.cell.jaxpr import (
    JaxprEqn,
    Literal,
    Var,
    equations_of,
    exponent_of,
    has_rule_of_jvp,
    inner_bodies,
    is_float,
    is_operation,
    literal_value,
    name_of,
    tangents_of,
    variables,
)
from edbatch.cell.primitives import (
    EXPONENTIALS,
    FINITE_SLOPE,
    KEEPS_SIGN,
    NOT_NEGATIVE,
    POLE_AT_ZERO,
    STOP_GRADIENT,
)


def keeps_outputs_apart(graph: CellGraph) -> bool:
    """Tells whether equations on the way to different outputs must not be joined.

    Equations that run as one are differentiated as one, so that an output that nothing
    reads has an explicit cotangent of zero there.

    Args:
        graph: A cell's equations, as they are written.

    Returns:
        Whether there are several floating outputs, and slopes that may be infinite.
    """
    floats = [each for each in graph.outputs if is_float(each)]
    equations = equations_of(graph.nodes)
    return len(floats) > 1 and may_have_poles(equations, floats)


def may_have_poles(
    eqns: Sequence[JaxprEqn], outputs: Iterable[Any], *, in_rule: bool = False
) -> bool:
    """Tells whether a slope on the way back from outputs may be infinite.

    Args:
        eqns: Equations, each after those that it reads.
        outputs: Some of their variables.
        in_rule: Whether they are a rule of `jax.custom_jvp`, of whose values slopes are
            made: rules of what it calls, often the function itself, are not asked for.

    Returns:
        False only if every slope is finite at finite values.
    """
    needed = {each for each in variables(outputs) if is_float(each)}
    positive = _positive_variables(eqns)
    for eqn in reversed(eqns):
        if needed.isdisjoint(eqn.outvars):
            continue
        if name_of(eqn) == STOP_GRADIENT:
            continue
        if _has_pole(eqn, positive, in_rule=in_rule):
            return True
        needed |= {v for v in variables(eqn.invars) if is_float(v)}
    return False


def equations_with_poles(eqns: Sequence[JaxprEqn]) -> list[JaxprEqn]:
    """Finds the equations whose slope may be infinite.

    Args:
        eqns: Equations, each after those that it reads.

    Returns:
        Some of them.
    """
    positive = _positive_variables(eqns)
    return [
        each
        for each in eqns
        if name_of(each) != STOP_GRADIENT
        and any(is_float(var) for var in each.outvars)
        and _has_pole(each, positive, in_rule=False)
    ]


def _has_pole(eqn: JaxprEqn, positive: Collection[Var], *, in_rule: bool) -> bool:
    """Whether the slope of an equation may be infinite."""
    name = name_of(eqn)
    exponent = exponent_of(eqn)
    if exponent is not None:
        return exponent < 0
    if name in POLE_AT_ZERO:
        return not _is_positive(eqn.invars[POLE_AT_ZERO[name]], positive)
    if name not in FINITE_SLOPE:
        return any(is_float(var) for var in eqn.invars)
    if has_rule_of_jvp(eqn) and not in_rule:
        rule = tangents_of(eqn)
        if rule is None:
            return any(is_float(var) for var in eqn.invars)
        slopes = rule.outputs[len(eqn.outvars) :]
        return may_have_poles(rule.equations, slopes, in_rule=True)
    return any(
        may_have_poles(each.equations, each.outputs, in_rule=in_rule)
        for each in inner_bodies(eqn)
    )


def _is_positive(atom: Any, positive: Collection[Var]) -> bool:
    if isinstance(atom, Literal):
        return _compares(np.greater, atom)
    return atom in positive


def _compares(with_zero: np.ufunc, literal: Literal) -> bool:
    """Compares a literal with zero; a NaN is neither above nor below."""
    with np.errstate(invalid="ignore"):  # NumPy warns of a NaN in bfloat16
        return bool(np.all(with_zero(literal_value(literal), 0)))


def _positive_variables(eqns: Iterable[JaxprEqn]) -> set[Var]:
    """Finds variables that are above zero wherever they are finite.

    Such are the denominator of a softmax, and the variance of a normalisation, to which
    a small number was added. An exponential may underflow to zero. A sum of them is
    taken not to: a softmax subtracts the largest first.
    """
    positive: set[Var] = set()
    not_negative: set[Var] = set()
    exponentials: set[Var] = set()

    def is_positive(atom: Any) -> bool:
        return _is_positive(atom, positive)

    def is_exponential(atom: Any) -> bool:
        return is_positive(atom) or (
            not isinstance(atom, Literal) and atom in exponentials
        )

    def is_not_negative(atom: Any) -> bool:
        if isinstance(atom, Literal):
            return _compares(np.greater_equal, atom)
        return is_exponential(atom) or atom in not_negative

    for eqn in eqns:
        name = name_of(eqn)
        read = eqn.invars[1:] if name == "select_n" else eqn.invars
        if not all(is_float(each) for each in (*read, *eqn.outvars)):
            continue
        if (
            (name in KEEPS_SIGN and all(map(is_positive, read)))
            or (name == "reduce_sum" and is_exponential(read[0]))
            or (name == "max" and any(map(is_positive, read)))
            or (
                name == "add"
                and any(map(is_exponential, read))
                and all(map(is_not_negative, read))
            )
        ):
            positive.update(eqn.outvars)
        elif name in EXPONENTIALS or (
            name in KEEPS_SIGN and all(map(is_exponential, read))
        ):
            exponentials.update(eqn.outvars)
        elif (
            name in NOT_NEGATIVE
            or exponent_of(eqn) in (2, 4)
            or (name == "mul" and read[0] is read[1])
            or (name in (*KEEPS_SIGN, "add") and all(map(is_not_negative, read)))
        ):
            not_negative.update(eqn.outvars)
    return positive


def differentiable_inputs(eqns: Sequence[JaxprEqn], outputs: Iterable[Any]) -> set[Var]:
    """Finds the variables that a cotangent of some outputs comes to.

    Args:
        eqns: Equations, each after those that it reads.
        outputs: Some of their variables.

    Returns:
        Floating variables, those outputs included.
    """
    reached = {each for each in variables(outputs) if is_float(each)}
    for eqn in reversed(eqns):
        if reached.isdisjoint(eqn.outvars) or name_of(eqn) == STOP_GRADIENT:
            continue
        reached |= {v for v in variables(eqn.invars) if is_float(v)}
    return reached


def active_variables(nodes: Iterable[Node], sources: Iterable[Var]) -> set[Var]:
    """Finds what has a derivative by some variables.

    Args:
        nodes: Equations, each after those that it reads.
        sources: The variables.

    Returns:
        Floating variables that depend on one of them otherwise than through
        `jax.lax.stop_gradient`, the floating ones of the sources included.
    """
    active = {each for each in sources if is_float(each)}
    for node in nodes:
        if is_operation(node, (STOP_GRADIENT,)):
            continue
        if not active.isdisjoint(variables(node.invars)):
            active.update(each for each in node.outvars if is_float(each))
    return active
