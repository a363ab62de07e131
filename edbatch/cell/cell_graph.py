"""A cell as a flat list of equations, and which of them read parameters alone.

The equations are those of the cell's jaxpr. Calls of jitted functions are replaced by
their bodies. What has a rule of its own (``custom_jvp``, ``custom_vjp``, ``remat``) or
is control flow stays one equation.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

Atom = Var | Literal

_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr"}


class Node(Protocol):
    """What computes some variables from others: an equation, or several as one."""

    @property
    def invars(self) -> Sequence[Atom]:
        """What it reads."""

    @property
    def outvars(self) -> Sequence[Var]:
        """What it computes."""


@dataclass(frozen=True, eq=False)
class CellGraph:
    """A cell for one instance.

    Attributes:
        parameters: Variables of the parameters' arrays.
        inputs: Variables of the other arguments' arrays.
        constants: Variables of arrays that the cell's function closes over, and these.
        nodes: What is computed, each node after those that it reads.
        outputs: The cell's outputs.
        traced: The jaxpr that the graph was made from.
    """

    parameters: tuple[Var, ...]
    inputs: tuple[Var, ...]
    constants: dict[Var, Any]
    nodes: tuple[Node, ...]
    outputs: tuple[Atom, ...]
    traced: Jaxpr

    def with_nodes(
        self, nodes: Iterable[Node], constants: dict[Var, Any] | None = None
    ) -> "CellGraph":
        """Returns the graph with other nodes, in any order; dead ones are dropped."""
        constants = {**self.constants, **(constants or {})}
        live = drop_dead(tuple(nodes), self.outputs)
        return replace(self, nodes=sort_nodes(live), constants=constants)


class Inliner:
    """Collects equations, those of called functions in place of the calls.

    Attributes:
        nodes: The equations so far.
        constants: Arrays that the equations read.
    """

    def __init__(self) -> None:
        self.nodes: list[JaxprEqn] = []
        self.constants: dict[Var, Any] = {}
        self._variable_of: dict[int, Var] = {}  # of a constant, by identity

    def add(self, closed: ClosedJaxpr, arguments: Sequence[Atom]) -> list[Atom]:
        """Adds a function's equations.

        Args:
            closed: The function.
            arguments: What it is called with.

        Returns:
            What it returns.
        """
        jaxpr = closed.jaxpr
        known: dict[Var, Atom] = dict(zip(jaxpr.invars, arguments, strict=True))
        for var, value in zip(jaxpr.constvars, closed.consts, strict=True):
            known[var] = self._constant(value, var.aval)

        def read(atom: Atom) -> Atom:
            if isinstance(atom, Var):
                return known[atom]
            return self._constant(atom.val, atom.aval) if np.ndim(atom.val) else atom

        for eqn in jaxpr.eqns:
            inputs = [read(each) for each in eqn.invars]
            body = _called(eqn)
            if body is not None:
                results = self.add(body, inputs)
            else:
                results = [Var(each.aval) for each in eqn.outvars]
                self.nodes.append(eqn.replace(invars=inputs, outvars=results))
            known.update(zip(eqn.outvars, results, strict=True))
        return [read(each) for each in jaxpr.outvars]

    def _constant(self, value: Any, aval: Any) -> Var:
        found = self._variable_of.get(id(value))
        if found is None:
            found = self._variable_of[id(value)] = Var(aval)
            self.constants[found] = value  # which keeps it, and so its id, alive
        return found


def _called(eqn: JaxprEqn) -> ClosedJaxpr | None:
    """The function that an equation calls and that can take its place."""
    name = _CALLS.get(eqn.primitive.name)
    if name is None:
        return None
    asked = [
        *eqn.params.get("in_shardings", ()),
        *eqn.params.get("out_shardings", ()),
        *filter(None, eqn.params.get("in_layouts", ())),
        *filter(None, eqn.params.get("out_layouts", ())),
    ]
    if any(type(each).__name__ != "UnspecifiedValue" for each in asked):
        return None  # it says where its arrays lie
    return None if eqn.params.get("compiler_options_kvs") else eqn.params[name]


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
    closed, output = jax.make_jaxpr(function, return_shape=True)(
        params_spec, *input_specs
    )
    count = len(jax.tree.leaves(params_spec))
    arguments = [Var(each.aval) for each in closed.jaxpr.invars]
    inliner = Inliner()
    outputs = inliner.add(closed, arguments)
    graph = CellGraph(
        parameters=tuple(arguments[:count]),
        inputs=tuple(arguments[count:]),
        constants=inliner.constants,
        nodes=tuple(inliner.nodes),
        outputs=tuple(outputs),
        traced=closed.jaxpr,
    )
    return graph, jax.tree.structure(output)


def effects_of(node: Node) -> Collection[Any]:
    """Returns the effects of a node: what it does beside computing."""
    return node.effects if isinstance(node, JaxprEqn) else ()


def shape_of(atom: Atom) -> tuple[int, ...]:
    """Returns the shape of an array."""
    aval: Any = atom.aval
    return aval.shape


def dtype_of(atom: Atom) -> Any:
    """Returns the dtype of an array."""
    aval: Any = atom.aval
    return aval.dtype


def variables(atoms: Iterable[Atom]) -> list[Var]:
    """Returns the variables among atoms, without literals."""
    return [each for each in atoms if isinstance(each, Var)]


def count_uses(graph: CellGraph) -> Counter[Var]:
    """Counts how often each variable is read, as an output of the cell included."""
    uses = Counter(variables(graph.outputs))
    for node in graph.nodes:
        uses.update(variables(node.invars))
    return uses


def find_parameter_only(graph: CellGraph) -> tuple[frozenset[Var], frozenset[Var]]:
    """Finds what can be computed before any input is known.

    Args:
        graph: The graph.

    Returns:
        Variables that depend on parameters or constants alone, and those that depend
        on nothing, such as an array of zeros.
    """
    packed = {*graph.parameters, *graph.constants}
    free: set[Var] = set()
    for node in graph.nodes:
        read = set(variables(node.invars))
        if effects_of(node):
            continue
        if read <= free:
            free.update(node.outvars)
        elif read <= packed | free:
            packed.update(node.outvars)
    return frozenset(packed), frozenset(free)


def drop_dead(nodes: Sequence[Node], outputs: Iterable[Atom]) -> tuple[Node, ...]:
    """Drops nodes that neither the outputs nor an effect needs.

    Args:
        nodes: Nodes in any order.
        outputs: What must be computed.

    Returns:
        The others, in their order.
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
    """Sorts nodes so that each stands after those that it reads.

    Args:
        nodes: Nodes in any order; those with effects keep their order.

    Returns:
        The nodes, otherwise as near to their order as that allows.
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
