"""What the derivative of a cell's output passes through, found in its equations.

JAX tells a cotangent that is zero because nothing reads the output (a symbolic zero)
from one that happens to be zero: the first is not propagated at all, the second is
multiplied by the slope, and zero times an infinite slope is not a number. A chunk's
rows share one derivative, so the rows that no cotangent reaches are masked. That is
needed only where a slope can be infinite.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var

from edbatch.cell.cell_graph import (
    CellGraph,
    Node,
    dtype_of,
    variables,
)

# Primitives whose slope is finite wherever their inputs and outputs are: linear ones,
# products, and those of bounded slope. Any other may have a pole.
# fmt: off
_FINITE_SLOPE = frozenset({
    "abs", "add", "add_any", "broadcast_in_dim", "checkpoint", "clamp", "closed_call",
    "concatenate", "cond", "conj", "conv_general_dilated", "convert_element_type",
    "copy", "cos", "cummax", "cummin", "cumsum", "custom_jvp_call", "dot_general",
    "dynamic_slice", "dynamic_update_slice", "erf", "exp", "exp2", "expand_dims",
    "expm1", "gather", "imag", "jit", "logistic", "max", "min", "mul", "neg",
    "optimization_barrier", "pad", "pjit", "real", "reduce_max", "reduce_min",
    "reduce_precision", "reduce_sum", "remat", "reshape", "rev", "scan", "scatter",
    "scatter-add", "select_n", "sign", "sin", "slice", "sort", "split", "square",
    "squeeze", "stop_gradient", "sub", "tanh", "transpose", "while",
})
# fmt: on
# Others have one where this input is zero, and none where it is above.
_POLE_AT_ZERO = {"div": 1, "log": 0, "pow": 0, "rsqrt": 0, "sqrt": 0}

_POSITIVE = frozenset({"exp", "exp2", "logistic"})
_KEEPS_SIGN = frozenset(
    {
        *("broadcast_in_dim", "concatenate", "convert_element_type", "copy", "div"),
        *("expand_dims", "mul", "reduce_max", "reduce_min", "reduce_sum", "reshape"),
        *(
            "rsqrt",
            "select_n",
            "slice",
            "split",
            "sqrt",
            "squeeze",
            "stop_gradient",
            "transpose",
        ),
    }
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
    floats = [each for each in graph.outputs if _is_float(each)]
    equations = [each for each in graph.nodes if isinstance(each, JaxprEqn)]
    return len(floats) > 1 and may_have_poles(equations, floats)


def may_have_poles(eqns: Sequence[JaxprEqn], outputs: Iterable[Any]) -> bool:
    """Tells whether a slope on the way back from outputs may be infinite.

    Args:
        eqns: Equations, each after those that it reads.
        outputs: Some of their variables.

    Returns:
        False only if every slope is finite at finite values.
    """
    needed = {each for each in variables(outputs) if _is_float(each)}
    positive = _positive_variables(eqns)
    for eqn in reversed(eqns):
        if needed.isdisjoint(eqn.outvars):
            continue
        if eqn.primitive.name == "stop_gradient":
            continue
        if _has_pole(eqn, positive):
            return True
        needed |= {v for v in variables(eqn.invars) if _is_float(v)}
    return False


def _has_pole(eqn: JaxprEqn, positive: Collection[Var]) -> bool:
    name = eqn.primitive.name
    if name == "integer_pow":
        return bool(eqn.params["y"] < 0)
    if name in _POLE_AT_ZERO:
        at = eqn.invars[_POLE_AT_ZERO[name]]
        if isinstance(at, Var):
            return at not in positive
        return not bool(np.all(np.asarray(at.val) > 0))
    if name not in _FINITE_SLOPE:
        return any(_is_float(var) for var in eqn.invars)
    return any(may_have_poles(each.eqns, each.outvars) for each in inner_jaxprs(eqn))


def _positive_variables(eqns: Iterable[JaxprEqn]) -> set[Var]:
    """Finds what is above zero wherever it is finite, unless it underflows.

    Such are the denominator of a softmax and the variance of a normalisation, to which
    a small number was added.
    """
    positive: set[Var] = set()
    not_negative: set[Var] = set()

    def is_positive(atom: Any) -> bool:
        if isinstance(atom, Var):
            return atom in positive
        return bool(np.all(np.asarray(atom.val) > 0))

    def is_not_negative(atom: Any) -> bool:
        if isinstance(atom, Var):
            return atom in positive or atom in not_negative
        return bool(np.all(np.asarray(atom.val) >= 0))

    for eqn in eqns:
        name = eqn.primitive.name
        read = eqn.invars[1:] if name == "select_n" else eqn.invars
        if not all(_is_float(each) for each in (*read, *eqn.outvars)):
            continue
        if (
            name in _POSITIVE
            or (name in _KEEPS_SIGN and all(map(is_positive, read)))
            or (name == "max" and any(map(is_positive, read)))
            or (
                name == "add"
                and any(map(is_positive, read))
                and all(map(is_not_negative, read))
            )
        ):
            positive.update(eqn.outvars)
        elif (
            name in ("square", "abs")
            or (name == "integer_pow" and eqn.params["y"] in (2, 4))
            or (name == "mul" and read[0] is read[1])
            or (name in (*_KEEPS_SIGN, "add") and all(map(is_not_negative, read)))
        ):
            not_negative.update(eqn.outvars)
    return positive


def inner_jaxprs(eqn: JaxprEqn) -> list[Jaxpr]:
    """Returns the functions that an equation calls."""
    found = jax.tree.leaves(
        list(eqn.params.values()), is_leaf=lambda x: isinstance(x, ClosedJaxpr | Jaxpr)
    )
    return [
        each.jaxpr if isinstance(each, ClosedJaxpr) else each
        for each in found
        if isinstance(each, ClosedJaxpr | Jaxpr)
    ]


def differentiable_inputs(eqns: Sequence[JaxprEqn], outputs: Iterable[Any]) -> set[Var]:
    """Finds the variables that a cotangent of some outputs comes to.

    Args:
        eqns: Equations, each after those that it reads.
        outputs: Some of their variables.

    Returns:
        Floating variables, those outputs included.
    """
    reached = {each for each in variables(outputs) if _is_float(each)}
    for eqn in reversed(eqns):
        if reached.isdisjoint(eqn.outvars) or eqn.primitive.name == "stop_gradient":
            continue
        reached |= {v for v in variables(eqn.invars) if _is_float(v)}
    return reached


def moving_variables(nodes: Iterable[Node], sources: Iterable[Var]) -> set[Var]:
    """Finds what has a derivative by some variables.

    Args:
        nodes: Equations, each after those that it reads.
        sources: The variables.

    Returns:
        Floating variables that depend on one of them otherwise than through
        `jax.lax.stop_gradient`, the floating ones of the sources included.
    """
    moving = {each for each in sources if _is_float(each)}
    for node in nodes:
        if isinstance(node, JaxprEqn) and node.primitive.name == "stop_gradient":
            continue
        if not moving.isdisjoint(variables(node.invars)):
            moving.update(each for each in node.outvars if _is_float(each))
    return moving


def _is_float(atom: Any) -> bool:
    return bool(jnp.issubdtype(dtype_of(atom), jnp.inexact))
