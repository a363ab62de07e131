"""How much work a cell is for one batch row."""

import math

import jax
from jax.sharding import use_abstract_mesh

from edbatch.cell.cell_graph import trace_cell
from edbatch.cell.jaxpr import shape_of
from edbatch.cell.program import NO_MESH, trace_settings
from edbatch.cell.summary import summarize
from edbatch.cell.type_call import type_call
from edbatch.graph.node_type import NodeType
from edbatch.graph.type_table import TypeTable

_MOVED = 8  # multiply-adds in the time in which one number is read or written


def row_work(node_type: NodeType, types: TypeTable) -> float:
    """Estimates the work of a cell for one batch row.

    Args:
        node_type: The type of its nodes.
        types: The table that it is in.

    Returns:
        The multiply-adds of its matrix products, and as many for the numbers that it
        reads and writes as would take as long. The body of a loop counts once.
    """

    def make() -> float:
        function, specs = type_call(node_type, types)
        params = node_type.params_spec(types.params_spec)
        with use_abstract_mesh(NO_MESH):
            graph, _ = trace_cell(function, params, specs)
        products = sum(
            math.sqrt(math.prod(each.left + each.right + each.result))
            for each in summarize(graph.nodes).products
        )
        moved = [each.shape for each in jax.tree.leaves(specs)]
        moved += [shape_of(each) for each in graph.outputs]
        return products + _MOVED * sum(map(math.prod, moved))

    return types.derived((row_work, node_type, trace_settings()), make)
