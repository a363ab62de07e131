"""Equal equations on independent values, as one equation over all of them.

Which equations can run together is a schedule of the cell, as a minibatch has one: a
batch is all equations of one kind that are ready, and the fewest batches are searched
for, exactly, breadth first over sets of equations done. Beyond a number of steps the
kind of which the largest share is ready goes next.

Not every batch pays. Products, convolutions and reductions are operations of their own
in XLA, so a batch of them saves launches, and is kept if it saves more than the copies
cost that bring its operands together. XLA fuses elementwise equations into one loop by
itself; batches of these are made only on request, and only where nothing is copied.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

from edbatch.cell.cell_graph import (
    Atom,
    CellGraph,
    dtype_of,
    shape_of,
    variables,
)
from edbatch.cell.simplify import equation_key, literal_key

_MOST_STEPS = 2_000

OPERATIONS = {
    *("dot_general", "conv_general_dilated", "reduce_sum", "reduce_prod", "reduce_max"),
    *("reduce_min", "reduce_and", "reduce_or", "argmax", "argmin", "cumsum", "cumprod"),
    *("cummax", "cummin"),
}
ELEMENTWISE = {
    *("abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan"),
    *("atan2", "atanh", "cbrt", "ceil", "clamp", "convert_element_type", "cos", "cosh"),
    *("digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1"),
    *("floor", "ge", "gt", "integer_pow", "is_finite", "le", "lgamma", "log", "log1p"),
    *("logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter", "not", "or"),
    *("pow", "rem", "round", "rsqrt", "select_n", "sign", "sin", "sinh", "sqrt"),
    *("square", "stop_gradient", "sub", "tan", "tanh", "xor"),
}


@dataclass(frozen=True, eq=False)
class EqualEquations:
    """Equations that do the same to values that do not depend on each other.

    Attributes:
        lanes: The equations.
        traced: A jaxpr that lends its description to those made here.
    """

    lanes: tuple[JaxprEqn, ...]
    traced: Jaxpr

    @property
    def invars(self) -> tuple[Atom, ...]:
        """What it reads."""
        return tuple(each for lane in self.lanes for each in lane.invars)

    @property
    def outvars(self) -> tuple[Var, ...]:
        """What it computes."""
        return tuple(each for lane in self.lanes for each in lane.outvars)

    def over_lanes(self, mapped: Sequence[int | None]) -> Callable[..., Sequence[Any]]:
        """Returns the equation as a function of operands that hold all lanes.

        Args:
            mapped: 0 for each operand with a lane per row, None for one that all lanes
                share.

        Returns:
            The function; each of its results has a lane per row. Derivative rules of
            the equation's own stay, since this is `jax.vmap` of the equation itself.
        """
        [eqn, *_] = self.lanes
        slots = [
            each if isinstance(each, Literal) else Var(each.aval) for each in eqn.invars
        ]
        results = [Var(each.aval) for each in eqn.outvars]
        jaxpr = self.traced.replace(
            constvars=[],
            invars=variables(slots),
            outvars=results,
            eqns=[eqn.replace(invars=slots, outvars=results)],
        )
        function = jaxpr_as_fun(ClosedJaxpr(jaxpr, []))
        is_variable = [isinstance(each, Var) for each in slots]
        axes = [axis for axis, used in zip(mapped, is_variable, strict=True) if used]

        def over_lanes(*operands: Any) -> Sequence[Any]:
            used = [
                x for x, is_used in zip(operands, is_variable, strict=True) if is_used
            ]
            return jax.vmap(function, in_axes=tuple(axes))(*used)

        return over_lanes


def find_equal(
    graph: CellGraph, early: frozenset[Var], names: Collection[str]
) -> list[list[JaxprEqn]]:
    """Finds batches of equal equations.

    Args:
        graph: The graph.
        early: Variables that depend on no input; what computes them is left alone.
        names: Names of the primitives to look at.

    Returns:
        Batches of at least two equations, in an order in which they can run.
    """
    kinds: dict[Hashable, list[JaxprEqn]] = defaultdict(list)
    for node in graph.nodes:
        if early.issuperset(node.outvars):
            continue
        if isinstance(node, JaxprEqn) and _can_join(node, names):
            kinds[_kind(node)].append(node)
    several = [each for each in kinds.values() if len(each) > 1]
    return [each for each in _schedule(graph, several) if len(each) > 1]


def _can_join(eqn: JaxprEqn, names: Collection[str]) -> bool:
    if eqn.ctx.compute_type is not None or eqn.ctx.xla_metadata:
        return False
    if eqn.primitive.name == "dot_general" and not jnp.issubdtype(
        dtype_of(eqn.outvars[0]), jnp.floating
    ):
        return False
    if eqn.primitive.name == "custom_jvp_call":
        body = eqn.params["call_jaxpr"].jaxpr
        return "exp" in names and _is_elementwise(body)
    return eqn.primitive.name in names


def _is_elementwise(body: Jaxpr) -> bool:
    return all(
        _is_elementwise(eqn.params["jaxpr"].jaxpr)
        if eqn.primitive.name in ("jit", "pjit")
        else eqn.primitive.name in ELEMENTWISE
        for eqn in body.eqns
    )


def _kind(eqn: JaxprEqn) -> Hashable:
    """Equal for equations of which one can stand for all, given their operands."""
    return equation_key(eqn), tuple(
        (shape_of(each), dtype_of(each)) if isinstance(each, Var) else literal_key(each)
        for each in eqn.invars
    )


def _schedule(graph: CellGraph, kinds: list[list[JaxprEqn]]) -> list[list[JaxprEqn]]:
    """The fewest batches that run all equations of some kinds."""
    equations = [eqn for kind in kinds for eqn in kind]
    bit = {id(eqn): 1 << k for k, eqn in enumerate(equations)}
    before = _ancestors(graph, bit)
    kind_bits = [[bit[id(eqn)] for eqn in kind] for kind in kinds]

    def ready(done: int, kind: list[int]) -> int:
        return sum(b for b in kind if not b & done and not before[b] & ~done)

    everything = (1 << len(equations)) - 1
    steps = _fewest_steps(everything, kind_bits, ready)
    if steps is None:
        steps = _largest_share_first(everything, kind_bits, ready)
    return [[eqn for eqn in equations if bit[id(eqn)] & step] for step in steps]


def _ancestors(graph: CellGraph, bit: dict[int, int]) -> dict[int, int]:
    """The equations that each one waits for, by bit."""
    of_variable: dict[Var, int] = {}
    found = {}
    for node in graph.nodes:
        waits = 0
        for var in variables(node.invars):
            waits |= of_variable.get(var, 0)
        own = bit.get(id(node), 0)
        if own:
            found[own] = waits
        for var in node.outvars:
            of_variable[var] = waits | own
    return found


def _fewest_steps(
    everything: int,
    kinds: list[list[int]],
    ready: Callable[[int, list[int]], int],
) -> list[int] | None:
    """The batches of a shortest schedule; None if that takes too long to find."""
    came_from: dict[int, tuple[int, int]] = {0: (0, 0)}
    level = [0]
    while level and everything not in came_from:
        following = []
        for done in level:
            for kind in kinds:
                step = ready(done, kind)
                if step and done | step not in came_from:
                    came_from[done | step] = done, step
                    following.append(done | step)
        if len(came_from) > _MOST_STEPS:
            return None
        level = following
    steps = []
    done = everything
    while done:
        done, step = came_from[done]
        steps.append(step)
    return steps[::-1]


def _largest_share_first(
    everything: int,
    kinds: list[list[int]],
    ready: Callable[[int, list[int]], int],
) -> list[int]:
    steps = []
    done = 0
    while done != everything:
        shares = [
            (ready(done, kind).bit_count() / len(left), ready(done, kind))
            for kind in kinds
            if (left := [each for each in kind if not each & done])
        ]
        _, step = max(shares, key=lambda each: each[0])
        steps.append(step)
        done |= step
    return steps


def is_operation(eqn: JaxprEqn) -> bool:
    """Says whether XLA runs an equation as an operation of its own."""
    return eqn.primitive.name in OPERATIONS


def num_elements(atom: Atom) -> int:
    """Returns how many elements an array has."""
    return math.prod(shape_of(atom))
