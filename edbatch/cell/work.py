"""Estimated work of a cell for one batch row, in multiply-adds."""

import math

import jax

from edbatch.cell.jaxpr import shape_of
from edbatch.cell.same_form import form_of
from edbatch.cell.summary import summarize
from edbatch.cell.type_call import trace_settings, traced_type
from edbatch.graph.node_type import NodeType
from edbatch.graph.type_table import TypeTable

_MOVED = 8  # multiply-adds in the time of reading or writing one number
_READ = 2.0  # multiply-adds in the time of reading one byte from main memory
_CACHED = 2**26  # bytes; parameters of larger families are read from main memory


def product_work(node_type: NodeType, types: TypeTable) -> float:
    """Counts the multiply-adds of a cell's matrix products for one batch row.

    Args:
        node_type: The type of its nodes.
        types: The type's table.

    Returns:
        The multiply-adds. A product with a weight counts as many as the weight has
        elements. The body of a loop counts once.
    """
    node_type = form_of(node_type, types).first

    def make() -> float:
        graph, _ = traced_type(node_type, types)
        return sum(
            math.sqrt(math.prod(each.left + each.right + each.result))
            for each in summarize(graph.nodes).products
        )

    return types.derived((product_work, node_type, trace_settings()), make)


def row_work(node_type: NodeType, types: TypeTable) -> float:
    """Estimates the work of a cell for one batch row.

    Args:
        node_type: The type of its nodes.
        types: The type's table.

    Returns:
        The multiply-adds of its matrix products, plus those that take as long as
        reading and writing its inputs and outputs. The body of a loop counts once.
    """
    node_type = form_of(node_type, types).first

    def make() -> float:
        graph, specs = traced_type(node_type, types)
        moved = [each.shape for each in jax.tree.leaves(specs)]
        moved += [shape_of(each) for each in graph.outputs]
        return product_work(node_type, types) + _MOVED * sum(map(math.prod, moved))

    return types.derived((row_work, node_type, trace_settings()), make)


def read_work(node_type: NodeType, types: TypeTable) -> float:
    """Estimates the cost of reading a family member's parameters in one chunk.

    Args:
        node_type: The type of its nodes.
        types: The type's table.

    Returns:
        The multiply-adds that would take as long as reading them. 0 for a type without
        a family, whose parameters stay in the caches from chunk to chunk, and for a
        family that is small enough to stay in the caches as a whole.
    """
    family = node_type.family
    if family is None:
        return 0.0
    leaves = jax.tree.leaves(family.spec(types.params_spec))
    own = [leaves[k] for k in family.leaves]
    size = sum(math.prod(each.shape) * each.dtype.itemsize for each in own)
    return _READ * size if size * family.size > _CACHED else 0.0
