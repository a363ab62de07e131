"""Finds poles on the backward path of outputs, and inputs with a derivative.

JAX distinguishes a cotangent that is zero because nothing reads the output (a symbolic
zero) from one that happens to be zero. The first is not propagated at all. The second
is multiplied by the derivative, and zero times an infinite derivative is not a number.
A chunk's rows are differentiated together, so the rows that no cotangent reaches are
masked. That is needed only if a derivative can be infinite although the cell's inputs
are finite: at a pole, or if numbers overflow (`ValueRanges`).
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from edbatch.cell.cell_graph import CellGraph, Node
from edbatch.cell.jaxpr import (
    JaxprEqn,
    Var,
    equations_of,
    has_rule_of_jvp,
    inner_bodies,
    is_float,
    is_operation,
    name_of,
    tangents_of,
    variables,
)
from edbatch.cell.primitives import (
    FINITE_DERIVATIVE,
    LINEAR,
    OVERFLOWS,
    PRODUCTS,
    STOP_GRADIENT,
)
from edbatch.cell.value_ranges import ValueRanges, infinite_constants


def keeps_outputs_apart(graph: CellGraph) -> bool:
    """Returns whether equations that lead to different outputs must not be merged.

    Equations that run as one are differentiated as one, so an output that nothing reads
    has an explicit zero cotangent there.

    Args:
        graph: A cell's equations as written.

    Returns:
        Whether there are several floating-point outputs, and derivatives that may be
        infinite.
    """
    floats = [each for each in graph.outputs if is_float(each)]
    equations = equations_of(graph.nodes)
    return len(floats) > 1 and may_have_poles(
        equations, floats, infinite_constants(graph.constants)
    )


def may_have_poles(
    eqns: Sequence[JaxprEqn],
    outputs: Iterable[Any],
    infinite: Collection[Var] = (),
    *,
    in_rule: bool = False,
) -> bool:
    """Returns whether a derivative on the backward path of outputs may be infinite.

    Args:
        eqns: Equations, each after the equations that it reads.
        outputs: The variables of the equations from which the backward path starts.
        infinite: Variables that the equations read and that contain infinities or NaN.
        in_rule: Whether the equations are a `jax.custom_jvp` rule, whose results are
            derivatives. Then the rules of functions that it calls, often the very
            function whose rule it is, are not examined, and nothing in it is assumed to
            overflow.

    Returns:
        False only if all derivatives are finite at finite inputs.
    """
    needed = {each for each in variables(outputs) if is_float(each)}
    ranges = ValueRanges(eqns, infinite)
    for eqn in reversed(eqns):
        if needed.isdisjoint(eqn.outvars):
            continue
        if name_of(eqn) == STOP_GRADIENT:
            continue
        if _has_pole(eqn, ranges, in_rule=in_rule):
            return True
        needed |= {v for v in variables(eqn.invars) if is_float(v)}
    return False


def equations_with_poles(
    eqns: Sequence[JaxprEqn], infinite: Collection[Var] = ()
) -> list[JaxprEqn]:
    """Finds the equations whose derivative may be infinite.

    Args:
        eqns: Equations, each after the equations that it reads.
        infinite: As for `may_have_poles`.

    Returns:
        These equations.
    """
    ranges = ValueRanges(eqns, infinite)
    return [
        each
        for each in eqns
        if name_of(each) != STOP_GRADIENT
        and any(is_float(var) for var in each.outvars)
        and _has_pole(each, ranges, in_rule=False)
    ]


def _has_pole(eqn: JaxprEqn, ranges: ValueRanges, *, in_rule: bool) -> bool:
    """Whether the derivative of an equation may be infinite."""
    if ranges.is_pole(eqn) or (not in_rule and _may_overflow(eqn, ranges)):
        return True
    if name_of(eqn) not in FINITE_DERIVATIVE:
        return False
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


def _may_overflow(eqn: JaxprEqn, ranges: ValueRanges) -> bool:
    """Whether an equation's derivative may be computed from infinities or NaN."""
    name = name_of(eqn)
    if name in OVERFLOWS or name == "pow":
        return ranges.is_infinite(eqn.outvars[0])
    if name in LINEAR or not ranges.reads_infinite(eqn):
        return False
    if name == "mul" or name in PRODUCTS:
        one, two = eqn.invars  # the derivative with respect to each is the other
        return (ranges.is_infinite(one) and isinstance(two, Var)) or (
            ranges.is_infinite(two) and isinstance(one, Var)
        )
    return True


def differentiable_inputs(eqns: Sequence[JaxprEqn], outputs: Iterable[Any]) -> set[Var]:
    """Finds the variables that a cotangent of some outputs reaches.

    Args:
        eqns: Equations, each after the equations that it reads.
        outputs: Variables of the equations.

    Returns:
        Floating-point variables, including the outputs themselves.
    """
    reached = {each for each in variables(outputs) if is_float(each)}
    for eqn in reversed(eqns):
        if reached.isdisjoint(eqn.outvars) or name_of(eqn) == STOP_GRADIENT:
            continue
        reached |= {v for v in variables(eqn.invars) if is_float(v)}
    return reached


def active_variables(nodes: Iterable[Node], sources: Iterable[Var]) -> set[Var]:
    """Finds the variables that have a derivative with respect to some variables.

    Args:
        nodes: Equations, each after the equations that it reads.
        sources: The variables to differentiate by.

    Returns:
        Floating-point variables that depend on one of the sources other than through
        `jax.lax.stop_gradient`, including floating-point sources.
    """
    active = {each for each in sources if is_float(each)}
    for node in nodes:
        if is_operation(node, (STOP_GRADIENT,)):
            continue
        if not active.isdisjoint(variables(node.invars)):
            active.update(each for each in node.outvars if is_float(each))
    return active
