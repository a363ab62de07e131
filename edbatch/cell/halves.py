"""A cell in two halves: what parameters alone decide, and what waits for the inputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Var, jaxpr_as_fun

from edbatch.cell.cell_graph import (
    Atom,
    CellGraph,
    Node,
    drop_dead,
    dtype_of,
    find_parameter_only,
    variables,
)
from edbatch.cell.derivatives import moving_variables

# Views of parameters cost nothing where they are read, and may take memory elsewhere.
_VIEWS = frozenset({"broadcast_in_dim", "reshape", "squeeze", "transpose"})


@dataclass(frozen=True, eq=False)
class Halves:
    """A graph of equations, divided.

    Attributes:
        graph: The graph.
        early: Equations that read parameters and constants alone.
        handed_on: What the late half reads of parameters and of the early half.
        late: The other equations.
    """

    graph: CellGraph
    early: tuple[Node, ...]
    handed_on: tuple[Var, ...]
    late: tuple[Node, ...]

    @property
    def derived(self) -> list[Var]:
        """Those of the arrays handed on that are no parameters as they are."""
        return [var for var in self.handed_on if var not in self.graph.parameters]

    def early_function(self) -> Callable[..., Sequence[Any]]:
        """Returns the function from the parameters to what is handed on."""
        return as_function(
            self.graph, self.graph.parameters, self.early, self.handed_on
        )

    def late_function(self) -> Callable[..., Sequence[Any]]:
        """Returns the function from what is handed on and the inputs to the outputs."""
        arguments = (*self.handed_on, *self.graph.inputs)
        return as_function(self.graph, arguments, self.late, self.graph.outputs)


def divide(graph: CellGraph) -> Halves:
    """Divides a graph.

    What depends on nothing, such as an array of zeros, is made where it is read, so
    that XLA knows its value. Constants are no more handed on than such arrays.

    Args:
        graph: A graph of equations.

    Returns:
        Its halves.
    """
    packed, free = find_parameter_only(graph)
    early = [node for node in graph.nodes if _computes(node, packed)]
    anywhere = [node for node in graph.nodes if _computes(node, free)]
    rest = {id(node) for node in (*early, *anywhere)}
    late = [node for node in graph.nodes if id(node) not in rest]
    read = {var for node in late for var in variables(node.invars)}
    read.update(variables(graph.outputs))
    views = []
    for node in reversed(early):
        if is_view(node) and not read.isdisjoint(node.outvars):
            views.append(node)
            read.update(variables(node.invars))
    known = (*anywhere, *views[::-1], *late)
    late_nodes = drop_dead(_in_order(graph, known), graph.outputs)
    made = {var for node in late_nodes for var in node.outvars}
    wanted = [var for node in late_nodes for var in variables(node.invars)]
    wanted += variables(graph.outputs)
    handed_on = tuple(
        dict.fromkeys(
            var
            for var in wanted
            if var in packed and var not in made and var not in graph.constants
        )
    )
    early_nodes = drop_dead(_in_order(graph, (*anywhere, *early)), handed_on)
    return Halves(graph, early_nodes, handed_on, late_nodes)


def _computes(node: Node, some: frozenset[Var]) -> bool:
    return bool(node.outvars) and some.issuperset(node.outvars)


def is_view(node: Node) -> bool:
    """Tells equations that show an array in another shape."""
    return isinstance(node, JaxprEqn) and node.primitive.name in _VIEWS


def _in_order(graph: CellGraph, nodes: Sequence[Node]) -> list[Node]:
    some = {id(node) for node in nodes}
    return [node for node in graph.nodes if id(node) in some]


def as_function(
    graph: CellGraph,
    arguments: Sequence[Var],
    nodes: Sequence[Node],
    results: Sequence[Atom],
) -> Callable[..., Sequence[Any]]:
    """Makes a function of some equations of a graph.

    Args:
        graph: The graph; its constants are known.
        arguments: The variables that the function takes.
        nodes: Equations, in an order in which they can run.
        results: What it returns.

    Returns:
        The function, of arrays. An argument that the graph computes behind
        `jax.lax.stop_gradient` has no derivative here either: a loop that cannot be
        differentiated may read it.
    """
    equations = [node for node in nodes if isinstance(node, JaxprEqn)]
    assert len(equations) == len(nodes), "merged nodes were written as equations"
    read = [var for node in equations for var in variables(node.invars)]
    constants = [
        var
        for var in dict.fromkeys((*read, *variables(results)))
        if var in graph.constants
    ]
    jaxpr = graph.traced.replace(
        constvars=constants,
        invars=list(arguments),
        outvars=list(results),
        eqns=equations,
        effects=set().union(*(eqn.effects for eqn in equations)),
    )
    values = [graph.constants[var] for var in constants]
    function = jaxpr_as_fun(ClosedJaxpr(jaxpr, values))
    moving = moving_variables(graph.nodes, (*graph.parameters, *graph.inputs))
    stops = [
        var not in moving and jnp.issubdtype(dtype_of(var), jnp.inexact)
        for var in arguments
    ]
    if not any(stops):
        return function

    def stop_and_run(*arrays: Any) -> Sequence[Any]:
        return function(
            *(
                lax.stop_gradient(array) if stop else array
                for array, stop in zip(arrays, stops, strict=True)
            )
        )

    return stop_and_run
