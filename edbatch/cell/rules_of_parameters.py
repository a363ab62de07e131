"""Runs nonlinear `jax.custom_vjp` rules separately for each node.

Values that depend on parameters only are computed once for all nodes of a cell, and
differentiated once, with the sum of the nodes' cotangents. That equals the sum of the
nodes' derivatives if the rule is linear in the cotangent, as a derivative is. A
user-written rule need not be linear: a rule that clips has to see each node's own
cotangent. So if a gradient is taken, the inputs of such a rule are made to depend on an
input of the cell. That costs one copy of them per batch row, and nothing if all rules
are linear.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import jax

from edbatch.cell.binding_time import BindingTime, binding_times
from edbatch.cell.cell_graph import CellGraph
from edbatch.cell.derivatives import active_variables, differentiable_inputs
from edbatch.cell.jaxpr import (
    Body,
    JaxprEqn,
    Var,
    as_function,
    contains,
    dtype_of,
    equations_of,
    has_rule_of_jvp,
    inner_bodies,
    is_float,
    name_of,
    new_variable,
    of_each_row,
    read_scan,
    rewire,
    shape_of,
    takes_symbolic_zeros,
    trace,
    variables,
)
from edbatch.cell.linearity import is_linear
from edbatch.cell.primitives import CUSTOM_LINEAR, CUSTOM_VJP
from edbatch.cell.type_call import trace_settings, traced_type
from edbatch.errors import CellError
from edbatch.graph.node_type import NodeType
from edbatch.graph.type_table import TypeTable


def differentiated_graph(node_type: NodeType, types: TypeTable) -> CellGraph:
    """Returns the cell of a type as it is differentiated.

    Args:
        node_type: The type.
        types: The type's table.

    Returns:
        The traced cell itself if all rules are linear; otherwise a cell in which the
        inputs of the other rules depend on the batch row.
    """

    def make() -> CellGraph:
        return with_rules_of_rows(traced_type(node_type, types)[0])

    return types.derived((differentiated_graph, node_type, trace_settings()), make)


def has_rules_of_rows(node_type: NodeType, types: TypeTable) -> bool:
    """Returns whether the cell of a type is changed for differentiation."""
    traced, _ = traced_type(node_type, types)
    return differentiated_graph(node_type, types) is not traced


def check_rules(node_type: NodeType, types: TypeTable) -> None:
    """Refuses a nonlinear rule in a cell that takes parameters only.

    Args:
        node_type: The type whose cell is to be differentiated.
        types: The type's table.

    Raises:
        CellError: The cell takes parameters only, and has such a rule.
    """
    graph, _ = traced_type(node_type, types)
    if not graph.inputs and _read_by_rules(graph):
        raise CellError(
            f"cell {node_type.key.cell!r} takes only parameters and applies a"
            " jax.custom_vjp rule that is not known to be linear in the cotangent, so"
            " the rule would have to run for each node; pass the cell an argument, such"
            " as a number, or apply the rule in the cells that read the result"
        )


def with_rules_of_rows(graph: CellGraph) -> CellGraph:
    """Makes rules that are not linear run for each batch row.

    Args:
        graph: A traced cell.

    Returns:
        The cell with the inputs of such rules depending on the batch row; the same cell
        if it has no such rule, or no input.
    """
    found = _read_by_rules(graph)
    if not found or not graph.inputs:
        return graph
    row = graph.inputs[0]
    nodes = []
    for eqn in equations_of(graph.nodes):
        own = {var: new_variable(var) for var in found.get(id(eqn), ())}
        for var, copy in own.items():
            body, _ = trace(of_each_row, _spec(var), _spec(row))
            nodes.append(rewire(body.equations[0], [var, row], [copy]))
        read = [own.get(x, x) if isinstance(x, Var) else x for x in eqn.invars]
        nodes.append(rewire(eqn, read) if own else eqn)
    return replace(graph, nodes=tuple(nodes))


def _read_by_rules(graph: CellGraph) -> dict[int, list[Var]]:
    """The parameter values read by equations with a nonlinear rule, by equation id.

    Rules that are on no path from a parameter to an output are left out.
    """
    eqns = equations_of(graph.nodes)
    suspects = [each for each in eqns if _applies_rule(each)]
    found: dict[int, list[Var]] = {}
    if not suspects:
        return found
    times = binding_times(graph)
    of_row = {var for var, time in times.items() if time > BindingTime.PARAM}
    moved = active_variables(eqns, graph.parameters)
    reached = differentiable_inputs(eqns, graph.outputs)
    for eqn in suspects:
        if reached.isdisjoint(eqn.outvars):
            continue
        read = _of_rules(eqn, of_row)
        own = [var for var in dict.fromkeys(variables(eqn.invars)) if var in read]
        if own := [var for var in own if var in moved and var not in of_row]:
            found[id(eqn)] = own
    return found


def _of_rules(eqn: JaxprEqn, of_row: Collection[Var]) -> set[Var]:
    """The inputs of an equation that a rule has to see for each batch row.

    Args:
        eqn: The equation.
        of_row: Variables that have rows. If one input of a rule has rows, JAX runs the
            whole rule for each row, and sums afterwards.

    Returns:
        Some of its inputs; possibly more than needed if that cannot be decided.
    """
    if name_of(eqn) == CUSTOM_VJP or has_rule_of_jvp(eqn):
        read = set(variables(eqn.invars))
        return read if read.isdisjoint(of_row) and not _is_linear(eqn) else set()
    found: set[Var] = set()
    for body in inner_bodies(eqn):
        if any(map(_applies_rule, body.equations)):
            found |= _of_rules_inside(eqn, body, of_row)
    return found


def _of_rules_inside(eqn: JaxprEqn, body: Body, of_row: Collection[Var]) -> set[Var]:
    """As `_of_rules`, for the rules in one function that the equation calls."""
    first = len(eqn.invars) - len(body.inputs)  # a switch reads its index first
    if not 0 <= first <= 1:
        return {var for var in variables(eqn.invars) if is_float(var)}
    outer = dict(zip(body.inputs, eqn.invars[first:], strict=True))
    rows = {x for x, own in outer.items() if isinstance(own, Var) and own in of_row}
    sources: dict[Any, set[Var]] = {var: {var} for var in outer}
    carried = _carried(eqn, body)
    size = -1
    while size < (size := len(rows) + sum(map(len, sources.values()))):
        for each in body.equations:
            read = variables(each.invars)
            if not rows.isdisjoint(read):
                rows.update(each.outvars)
            own = set().union(*(sources.get(var, set()) for var in read))
            for var in each.outvars:
                sources[var] = sources.get(var, set()) | own
        for before, after in carried:
            rows.update([before] if after in rows else [])
            sources[before] |= sources.get(after, set())
    found: set[Var] = set()
    for each in body.equations:
        if _applies_rule(each):
            for var in _of_rules(each, rows):
                found.update(variables(outer[own] for own in sources.get(var, ())))
    return set(filter(is_float, found))


def _carried(eqn: JaxprEqn, body: Body) -> list[tuple[Var, Var]]:
    """The carried variables of a loop: in one step, and in the next."""
    scan = read_scan(eqn)
    if scan is None:
        return []
    own = body.inputs[scan.num_consts : scan.num_consts + scan.num_carried]
    pairs = zip(own, body.outputs, strict=False)
    return [(before, after) for before, after in pairs if isinstance(after, Var)]


def _applies_rule(eqn: JaxprEqn) -> bool:
    """Whether the derivative of an equation runs a `jax.custom_vjp` rule."""
    if name_of(eqn) == CUSTOM_VJP:
        return True
    if has_rule_of_jvp(eqn):
        inputs = list(dict.fromkeys(variables(eqn.invars)))

        def push(arrays: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
            function, own = _of_floats(eqn, inputs, arrays)
            return jax.jvp(function, own, tuple(tangents))[1]

        specs = [_spec(each) for each in inputs]
        tangents = [_spec(each) for each in inputs if is_float(each)]
        try:
            body, _ = trace(push, specs, tangents)
        except Exception:  # raised again when the gradient is taken
            return True
        return any(
            contains(each, CUSTOM_VJP) or contains(each, CUSTOM_LINEAR)
            for each in body.equations
        )
    return any(
        _applies_rule(each) for body in inner_bodies(eqn) for each in body.equations
    )


def _is_linear(eqn: JaxprEqn) -> bool:
    """Whether a rule is linear in the cotangent; False if that cannot be decided."""
    if takes_symbolic_zeros(eqn):
        return False
    inputs = list(dict.fromkeys(variables(eqn.invars)))

    def pull(arrays: Sequence[Any], bars: Sequence[Any]) -> list[Any]:
        function, own = _of_floats(eqn, inputs, arrays)
        return list(jax.vjp(function, *own)[1](list(bars)))

    bars = [_spec(each) for each in eqn.outvars if is_float(each)]
    try:
        body, _ = trace(pull, [_spec(each) for each in inputs], bars)
    except Exception:  # raised again when the gradient is taken
        return False
    return is_linear(body, constant=len(inputs))


def _of_floats(
    eqn: JaxprEqn, inputs: Sequence[Var], arrays: Sequence[Any]
) -> tuple[Callable[..., list[Any]], tuple[Any, ...]]:
    """An equation as a function of its floating-point inputs, and their values.

    Args:
        eqn: The equation.
        inputs: Its inputs, each once.
        arrays: Their values.

    Returns:
        A function that returns the floating-point results, and its arguments.
    """
    function = as_function(inputs, [eqn], eqn.outvars)
    floats = [is_float(each) for each in inputs]

    def of_floats(*own: Any) -> list[Any]:
        rest = iter(own)
        pairs = zip(arrays, floats, strict=True)
        results = function(*(next(rest) if k else x for x, k in pairs))
        kinds = map(is_float, eqn.outvars)
        return [x for x, k in zip(results, kinds, strict=True) if k]

    return of_floats, tuple(x for x, k in zip(arrays, floats, strict=True) if k)


def _spec(var: Var) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape_of(var), dtype_of(var))
