"""A cell as a flat list of equations, the form that passes rewrite.

The equations come from the cell's jaxpr. Calls of jitted functions are replaced by
their bodies. Calls with their own differentiation rule (``custom_jvp``, ``custom_vjp``,
``remat``) and control flow stay one equation.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import jax
import numpy as np

from edbatch.cell.jaxpr import (
    Atom,
    Body,
    JaxprEqn,
    Var,
    called_body,
    new_variable,
    rewire,
    trace,
    variables,
)


class Node(Protocol):
    """An equation, or several that run as one."""

    @property
    def invars(self) -> Sequence[Atom]:
        """Its inputs."""

    @property
    def outvars(self) -> Sequence[Var]:
        """Its results."""


@dataclass(frozen=True, eq=False)
class CellGraph:
    """A cell for one instance.

    Attributes:
        parameters: Variables of the parameters' arrays.
        inputs: Variables of the other arguments' arrays.
        constants: Variables of the arrays that the cell's function closes over, with
            the arrays.
        nodes: Its operations, each after the operations that it reads.
        outputs: The cell's outputs.
    """

    parameters: tuple[Var, ...]
    inputs: tuple[Var, ...]
    constants: dict[Var, Any]
    nodes: tuple[Node, ...]
    outputs: tuple[Atom, ...]

    def with_nodes(
        self, nodes: Iterable[Node], constants: dict[Var, Any] | None = None
    ) -> "CellGraph":
        """Returns the graph with these nodes, given in any order; drops dead nodes."""
        constants = {**self.constants, **(constants or {})}
        live = drop_dead(tuple(nodes), self.outputs)
        return replace(self, nodes=sort_nodes(live), constants=constants)


class Inliner:
    """Collects equations; calls are replaced by the equations of the called functions.

    Attributes:
        nodes: The equations so far.
        constants: Arrays that the equations read.
    """

    def __init__(self) -> None:
        self.nodes: list[JaxprEqn] = []
        self.constants: dict[Var, Any] = {}
        self._variable_of: dict[int, Var] = {}  # by identity of the constant

    def add(self, body: Body, arguments: Sequence[Atom]) -> list[Atom]:
        """Adds a function's equations.

        Args:
            body: The function.
            arguments: Its arguments.

        Returns:
            Its results.
        """
        known: dict[Var, Atom] = dict(zip(body.inputs, arguments, strict=True))
        for var, value in body.constants.items():
            known[var] = self._constant(value, var)

        def read(atom: Atom) -> Atom:
            if isinstance(atom, Var):
                return known[atom]
            return self._constant(atom.val, atom) if np.ndim(atom.val) else atom

        for eqn in body.equations:
            inputs = [read(each) for each in eqn.invars]
            called = called_body(eqn)
            if called is not None:
                results = self.add(called, inputs)
            else:
                found = [new_variable(each) for each in eqn.outvars]
                self.nodes.append(rewire(eqn, inputs, found))
                results = list(found)
            known.update(zip(eqn.outvars, results, strict=True))
        return [read(each) for each in body.outputs]

    def _constant(self, value: Any, like: Atom) -> Var:
        found = self._variable_of.get(id(value))
        if found is None:
            found = self._variable_of[id(value)] = new_variable(like)
            self.constants[found] = value  # also keeps it, and so its id, alive
        return found


def trace_cell(
    function: Callable[..., Any], params_spec: Any, input_specs: Sequence[Any]
) -> tuple[CellGraph, Any]:
    """Traces a cell.

    Args:
        function: ``function(params, *inputs)``, for one instance.
        params_spec: The parameters, with ``jax.ShapeDtypeStruct`` leaves.
        input_specs: The inputs, likewise.

    Returns:
        The graph, and the structure of the function's output.
    """
    body, output_tree = trace(function, params_spec, *input_specs)
    count = len(jax.tree.leaves(params_spec))
    arguments = [new_variable(each) for each in body.inputs]
    inliner = Inliner()
    outputs = inliner.add(body, arguments)
    graph = CellGraph(
        parameters=tuple(arguments[:count]),
        inputs=tuple(arguments[count:]),
        constants=inliner.constants,
        nodes=tuple(inliner.nodes),
        outputs=tuple(outputs),
    )
    return graph, output_tree


def renamed(graph: CellGraph, names: dict[Var, Var]) -> CellGraph:
    """Returns a traced cell with some variables replaced where they are read.

    Args:
        graph: The cell, which consists of equations only.
        names: The new variables, by the variables that they replace.

    Returns:
        The cell, with the same parameters and inputs.
    """

    def read(atoms: Sequence[Atom]) -> list[Atom]:
        return [names.get(x, x) if isinstance(x, Var) else x for x in atoms]

    nodes = [
        rewire(node, read(node.invars)) if isinstance(node, JaxprEqn) else node
        for node in graph.nodes
    ]
    return replace(graph, nodes=tuple(nodes), outputs=tuple(read(graph.outputs)))


def effects_of(node: Node) -> Collection[Any]:
    """Returns the effects of a node: what it does besides computing values."""
    return node.effects if isinstance(node, JaxprEqn) else ()


def count_uses(graph: CellGraph) -> Counter[Var]:
    """Counts how often each variable is read, including as an output of the cell."""
    uses = Counter(variables(graph.outputs))
    for node in graph.nodes:
        uses.update(variables(node.invars))
    return uses


def drop_dead(nodes: Sequence[Node], outputs: Iterable[Atom]) -> tuple[Node, ...]:
    """Drops nodes that no output and no effect needs.

    Args:
        nodes: Nodes in any order.
        outputs: The variables that must be computed.

    Returns:
        The remaining nodes, in their order.
    """
    producer = {var: node for node in nodes for var in node.outvars}
    live: set[int] = set()
    open_ = [node for node in nodes if effects_of(node)]
    open_ += [producer[var] for var in variables(outputs) if var in producer]
    while open_:
        node = open_.pop()
        if id(node) not in live:
            live.add(id(node))
            read = variables(node.invars)
            open_.extend(producer[var] for var in read if var in producer)
    return tuple(node for node in nodes if id(node) in live)


def sort_nodes(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Sorts nodes so that each comes after the nodes that it reads.

    Args:
        nodes: Nodes in any order; those with effects keep their order.

    Returns:
        The nodes, otherwise as close to their original order as possible.
    """
    place = {var: k for k, node in enumerate(nodes) for var in node.outvars}
    before: list[set[int]] = [
        {place[var] for var in variables(node.invars) if var in place} for node in nodes
    ]
    acting = [k for k, node in enumerate(nodes) if effects_of(node)]
    for earlier, later in pairwise(acting):
        before[later].add(earlier)
    after: list[list[int]] = [[] for _ in nodes]
    for k, each in enumerate(before):
        for j in each:
            after[j].append(k)
    missing = [len(each) for each in before]
    ready = [k for k, count in enumerate(missing) if count == 0]
    found = []
    while ready:
        k = heapq.heappop(ready)
        found.append(nodes[k])
        for j in after[k]:
            missing[j] -= 1
            if missing[j] == 0:
                heapq.heappush(ready, j)
    assert len(found) == len(nodes), "no node waits for itself"
    return tuple(found)
