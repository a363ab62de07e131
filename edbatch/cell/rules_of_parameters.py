"""Rules of `jax.custom_vjp` that have to run for each node.

What a cell makes of parameters alone is computed once for all its nodes, and its
derivative is taken once, of the sum of their cotangents. That is the sum of each node's
derivative if the rule is linear in the cotangent, as a derivative is. A rule that a
user writes need not be: one that clips, say, has to see each node's own. So what such a
rule reads is made to depend on an input of the cell, which costs a copy of it for each
batch row, and nothing where all rules are linear.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp

from edbatch.cell.binding_time import BindingTime, binding_times
from edbatch.cell.cell_graph import CellGraph, Inliner
from edbatch.cell.jaxpr import (
    Atom,
    JaxprEqn,
    Var,
    as_function,
    contains,
    dtype_of,
    equations_of,
    inner_bodies,
    is_float,
    literal_value,
    name_of,
    new_variable,
    of_each_row,
    rewire,
    shape_of,
    trace,
    variables,
)
from edbatch.cell.primitives import CUSTOM_VJP, LINEAR_IN_ALL, LINEAR_IN_FIRST, PRODUCTS
from edbatch.errors import CellError


def with_rules_of_rows(graph: CellGraph) -> CellGraph:
    """Lets rules that are not linear run for each batch row.

    Args:
        graph: A cell as it is traced.

    Returns:
        The cell, in which what such a rule makes of parameters is an operand.
    """
    found = _equations_to_part(graph)
    if not found or not graph.inputs:
        return graph
    row = graph.inputs[0]
    nodes = []
    for eqn in equations_of(graph.nodes):
        known = found.get(id(eqn), ())
        own = {var: new_variable(var) for var in known}
        for var in known:
            body, _ = trace(of_each_row, _spec(var), _spec(row))
            nodes.append(rewire(body.equations[0], [var, row], [own[var]]))
        read = [own.get(x, x) if isinstance(x, Var) else x for x in eqn.invars]
        nodes.append(rewire(eqn, read) if own else eqn)
    return replace(graph, nodes=tuple(nodes))


def check_rules(graph: CellGraph, cell: str) -> None:
    """Refuses a rule that is not linear where no input tells the nodes apart.

    Args:
        graph: A cell whose gradient is to be taken.
        cell: Its name.

    Raises:
        CellError: The cell takes parameters alone, and there is such a rule.
    """
    if not graph.inputs and _equations_to_part(graph):
        raise CellError(
            f"cell {cell!r} takes parameters alone and applies a rule of jax.custom_vjp"
            " that is not linear in the cotangent, which would have to run for each"
            " node; call the cell with an argument, such as a number, or apply the rule"
            " in the cells that read the result"
        )


def _equations_to_part(graph: CellGraph) -> dict[int, list[Var]]:
    """Of equations with a rule that is not linear, what they read of parameters."""
    eqns = equations_of(graph.nodes)
    suspects = [each for each in eqns if contains(each, CUSTOM_VJP)]
    found: dict[int, list[Var]] = {}
    if not suspects:
        return found
    times = binding_times(graph)
    for eqn in suspects:
        floats = list(dict.fromkeys(v for v in variables(eqn.invars) if is_float(v)))
        known = [each for each in floats if times[each] <= BindingTime.PARAM]
        # JAX sums the cotangents of what has no rows after the rule if anything has.
        itself = name_of(eqn) == CUSTOM_VJP and len(known) < len(floats)
        if known and not itself and not all(map(_is_linear, _rules(eqn))):
            found[id(eqn)] = known
    return found


def _rules(eqn: JaxprEqn) -> Iterable[JaxprEqn]:
    """The equations with a rule of their own in one equation, itself included."""
    if name_of(eqn) == CUSTOM_VJP:
        yield eqn
        return
    for body in inner_bodies(eqn):
        for each in body.equations:
            yield from _rules(each)


def _is_linear(eqn: JaxprEqn) -> bool:
    """Whether a rule is linear in the cotangent; False if that cannot be told."""
    inputs = list(dict.fromkeys(variables(eqn.invars)))
    function = as_function(inputs, [eqn], eqn.outvars)
    floats = [is_float(each) for each in inputs]

    def pull(arrays: Sequence[jax.Array], bars: Sequence[jax.Array]) -> list[jax.Array]:
        def of_floats(*own: jax.Array) -> list[jax.Array]:
            rest = iter(own)
            pairs = zip(arrays, floats, strict=True)
            results = function(*(next(rest) if k else x for x, k in pairs))
            pairs = zip(results, map(is_float, eqn.outvars), strict=True)
            return [x for x, k in pairs if k]

        own = [x for x, k in zip(arrays, floats, strict=True) if k]
        return list(jax.vjp(of_floats, *own)[1](list(bars)))

    bars = [_spec(each) for each in eqn.outvars if is_float(each)]
    try:
        body, _ = trace(pull, [_spec(each) for each in inputs], bars)
    except Exception:  # is raised where the gradient is taken
        return False
    inliner = Inliner()
    arguments = [new_variable(each) for each in body.inputs]
    outputs = inliner.add(body, arguments)
    return _are_linear(inliner.nodes, set(arguments[len(inputs) :]), outputs)


def _are_linear(
    eqns: Iterable[JaxprEqn], linear: set[Var], outputs: Iterable[Atom]
) -> bool:
    """Tells whether some values are linear in some variables.

    Args:
        eqns: Equations, each after those that it reads.
        linear: The variables, to which is added what is linear in them.
        outputs: The values.

    Returns:
        True only if they are.
    """
    zero: set[Var] = set()
    dependent = set(linear)  # in whatever way

    def depends(atom: Atom) -> bool:
        return isinstance(atom, Var) and atom in dependent

    def is_zero(atom: Atom) -> bool:
        return atom in zero if isinstance(atom, Var) else not literal_value(atom).any()

    def fits(atom: Atom) -> bool:
        return is_zero(atom) or (isinstance(atom, Var) and atom in linear)

    for eqn in eqns:
        if name_of(eqn) in LINEAR_IN_ALL and all(map(is_zero, eqn.invars)):
            zero.update(eqn.outvars)
        if not any(map(depends, eqn.invars)):
            continue
        dependent.update(eqn.outvars)
        places = _linear_places(eqn, [depends(each) for each in eqn.invars])
        if places and all(
            fits(each) if k in places else not depends(each)
            for k, each in enumerate(eqn.invars)
        ):
            linear.update(each for each in eqn.outvars if is_float(each))
    return all(map(fits, outputs))


def _linear_places(eqn: JaxprEqn, dependent: Sequence[bool]) -> Sequence[int]:
    """Returns which inputs an equation is linear in, if all others are constant.

    Args:
        eqn: The equation.
        dependent: Which inputs are not constant.

    Returns:
        The places of the inputs; none if it is linear in none.
    """
    name, places = name_of(eqn), range(len(dependent))
    if name in LINEAR_IN_ALL:
        return places
    if name in LINEAR_IN_FIRST:
        return places[:1]
    if name == "select_n":
        return places[1:]
    if name == "mul" or name in PRODUCTS:  # a square is not
        return [k for k in places if dependent[k]] if sum(dependent) == 1 else ()
    return ()


def _spec(var: Var) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape_of(var), jnp.dtype(dtype_of(var)))
