"""Finds when each value of a cell is known (its binding time), and splits cells by it.

A cell combines constants in the code, parameters, external inputs and results of other
nodes. These are known at different times, and values known early are precomputed once
instead of once per node: products of parameters before all loops (`packed_cell`),
products of external inputs for the whole minibatch (`hoisted_cell`), and in gradients
values that do not depend on the batch row (`backward`). Analysis and split follow
partial evaluation (Jones, Gomard, Sestoft 1993, chapter 4: binding-time analysis).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from jax import lax

from edbatch.cell.cell_graph import CellGraph, Node, drop_dead, effects_of
from edbatch.cell.derivatives import active_variables
from edbatch.cell.jaxpr import (
    Atom,
    Var,
    as_function,
    equations_of,
    is_float,
    is_operation,
    variables,
)
from edbatch.cell.primitives import VIEWS


class BindingTime(IntEnum):
    """Binding time of a value; later times compare greater."""

    CONST = 0
    """Known when the cell is traced: computed from literals in the code, such as
    zeros."""
    PARAM = 1
    """Known with the parameters, once per call of a program. Arrays that the cell
    closes over count as parameters, since they may be as large."""
    INPUT = 2
    """Known with the minibatch: external inputs."""
    OPERAND = 3
    """Known only when other nodes have run."""


Times = Mapping[Var, BindingTime]


def binding_times(graph: CellGraph, inputs: Collection[Var] = ()) -> Times:
    """Finds the binding time of each variable of a cell.

    Args:
        graph: The cell.
        inputs: The external inputs among its inputs; all others are operands.

    Returns:
        The latest binding time of the values that a variable is computed from. Results
        of equations with effects count as operands: the effect happens each time a node
        runs.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from edbatch.cell.cell_graph import trace_cell
        >>> spec = jax.ShapeDtypeStruct((3,), "float32")
        >>> def cell(p, x, h):
        ...     return jnp.exp(p), jnp.exp(x), x + h
        >>> graph, _ = trace_cell(cell, spec, [spec, spec])
        >>> times = binding_times(graph, inputs=graph.inputs[:1])
        >>> [times[each].name for each in graph.outputs]
        ['PARAM', 'INPUT', 'OPERAND']
    """
    times = dict.fromkeys((*graph.parameters, *graph.constants), BindingTime.PARAM)
    for var in graph.inputs:
        times[var] = BindingTime.INPUT if var in inputs else BindingTime.OPERAND
    for node in graph.nodes:
        own = max((times[v] for v in variables(node.invars)), default=BindingTime.CONST)
        time = BindingTime.OPERAND if effects_of(node) else own
        times.update(dict.fromkeys(node.outvars, time))
    return times


def parameter_values(graph: CellGraph) -> frozenset[Var]:
    """Returns the variables of a cell that are computed from parameters only."""
    times = binding_times(graph)
    return frozenset(v for v, time in times.items() if time == BindingTime.PARAM)


@dataclass(frozen=True, eq=False)
class Split:
    """A cell in two partitions.

    Attributes:
        graph: The cell.
        precomputed: The equations of the first partition, in order.
        handed_on: The variables that the second partition reads from the first:
            parameters, and variables that the first computes.
        run_time: The equations of the second partition, in order.
    """

    graph: CellGraph
    precomputed: tuple[Node, ...]
    handed_on: tuple[Var, ...]
    run_time: tuple[Node, ...]

    @property
    def computed(self) -> tuple[Var, ...]:
        """The variables in `handed_on` that the first partition computes."""
        return tuple(var for var in self.handed_on if var not in self.graph.parameters)

    def precomputed_function(
        self, arguments: Sequence[Var], results: Sequence[Var]
    ) -> Callable[..., Sequence[Any]]:
        """Returns the first partition as a function.

        Args:
            arguments: The variables that it takes.
            results: The variables in `handed_on` that it returns.

        Returns:
            The function, of arrays.
        """
        nodes = drop_dead(self.precomputed, results)
        return graph_function(self.graph, arguments, nodes, results)

    def run_time_function(
        self, arguments: Sequence[Var]
    ) -> Callable[..., Sequence[Any]]:
        """Returns the second partition as a function.

        Args:
            arguments: The variables that it takes.

        Returns:
            The function, from arrays to the outputs of the cell.
        """
        return graph_function(self.graph, arguments, self.run_time, self.graph.outputs)


def split(
    graph: CellGraph,
    at: BindingTime,
    times: Times,
    *,
    worth: Callable[[Var], bool] = lambda _: True,
    remake: bool = True,
) -> Split:
    """Splits a cell by binding time.

    The second partition keeps every effect and repeats computations that are free
    there: constants, because XLA then knows their values where they are read, and views
    of variables that are handed on, which would otherwise take memory.

    Args:
        graph: A cell that consists of equations only.
        at: Values known by this time belong to the first partition.
        times: As from `binding_times`.
        worth: Whether to hand on a variable; a variable that is not worth it is
            recomputed in the second partition. If a variable is worth it, all variables
            computed from it must be, too.
        remake: Whether constants and views are repeated.

    Returns:
        The two partitions, without dead equations.
    """
    needed = set(variables(graph.outputs))
    handed_on: set[Var] = set()
    precomputed: list[Node] = []
    run_time: list[Node] = []
    for node in reversed(graph.nodes):
        read = needed.intersection(node.outvars)
        is_precomputed = bool(node.outvars) and all(
            times[v] <= at for v in node.outvars
        )
        if is_precomputed:
            precomputed.append(node)
        cheap = remake and (is_view(node) or not any(times[v] for v in node.outvars))
        if is_precomputed and not cheap and all(map(worth, read)):
            handed_on |= read
        elif read or effects_of(node):
            run_time.append(node)
            needed.update(variables(node.invars))
    computed = [var for node in graph.nodes for var in node.outvars if var in handed_on]
    known = [var for var in graph.parameters if var in needed]
    found = tuple(known + computed)
    live = drop_dead(precomputed[::-1], computed)
    return Split(graph, live, found, tuple(run_time[::-1]))


def is_view(node: Node) -> bool:
    """Returns whether a node shows an array in another shape and computes nothing."""
    return is_operation(node, VIEWS)


def graph_function(
    graph: CellGraph,
    arguments: Sequence[Var],
    nodes: Sequence[Node],
    results: Sequence[Atom],
) -> Callable[..., Sequence[Any]]:
    """Makes a function from some equations of a cell.

    Args:
        graph: The cell; the function closes over its constants.
        arguments: The variables that the function takes.
        nodes: Equations, in an order in which they can run.
        results: Its results.

    Returns:
        The function, of arrays. Arguments that depend on the cell's parameters and
        inputs only through `jax.lax.stop_gradient` have no derivative here either,
        because a loop that cannot be differentiated may read them.
    """
    equations = equations_of(nodes)
    assert len(equations) == len(nodes), "merged nodes were written as equations"
    read: Iterable[Atom] = (*(v for e in equations for v in e.invars), *results)
    constants = {v: graph.constants[v] for v in variables(read) if v in graph.constants}
    function = as_function(arguments, equations, results, constants)
    active = active_variables(graph.nodes, (*graph.parameters, *graph.inputs))
    stops = [var not in active and is_float(var) for var in arguments]
    if not any(stops):
        return function

    def stop_and_run(*arrays: Any) -> Sequence[Any]:
        pairs = zip(arrays, stops, strict=True)
        return function(*(lax.stop_gradient(x) if stop else x for x, stop in pairs))

    return stop_and_run
