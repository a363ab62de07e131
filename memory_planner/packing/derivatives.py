"""What the derivative of a cell's output passes through, found in its equations.

JAX tells a cotangent that is zero because nothing reads the output (a symbolic zero)
from one that happens to be zero: the first is not propagated at all, the second is
multiplied by the slope, and zero times an infinite slope is not a number. A chunk's
rows share one derivative, so the rows that no cotangent reaches are masked. That is
needed only where a slope can be infinite.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var

from edbatch.memory_planner.packing.cell_graph import (
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
    for eqn in reversed(eqns):
        if needed.isdisjoint(eqn.outvars):
            continue
        if eqn.primitive.name == "stop_gradient":
            continue
        if _has_pole(eqn):
            return True
        needed |= {v for v in variables(eqn.invars) if _is_float(v)}
    return False


def _has_pole(eqn: JaxprEqn) -> bool:
    name = eqn.primitive.name
    if name == "integer_pow":
        return bool(eqn.params["y"] < 0)
    if name == "div" and not isinstance(eqn.invars[1], Var):
        return not bool(np.all(eqn.invars[1].val))
    if name not in _FINITE_SLOPE:
        return any(_is_float(var) for var in eqn.invars)
    return any(may_have_poles(each.eqns, each.outvars) for each in inner_jaxprs(eqn))


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
