"""Counting the floating-point operations of matrix products.

Only ``dot_general`` counts: fast programs spend their time on products, and a
processor's peak rate counts nothing else. A lookup in an embedding counts as zero.
"""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from edbatch.cell.jaxpr import (
    Dot,
    JaxprEqn,
    body_of,
    inner_bodies,
    read_dot,
    read_scan,
    shape_of,
)
from edbatch.cell.program import cell_program
from edbatch.cell.type_call import trace_settings
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.node_type import NodeType, input_specs
from edbatch.graph.type_table import TypeTable

Product = tuple[int, int, int, int]  # batch, m, n, k: [batch, m, k] @ [batch, k, n]


def products(jaxpr: Any) -> Iterator[tuple[Product, int]]:
    """Finds the matrix products of a jaxpr, including those of inner jaxprs.

    Yields:
        Each product and how often it runs. All branches of a conditional count. The
        body of a ``while`` counts once, since its number of iterations is not known.

    Example:
        >>> import jax.numpy as jnp
        >>> jaxpr = jax.make_jaxpr(lambda x, w: x @ w)(jnp.ones(3), jnp.ones((3, 5)))
        >>> list(products(jaxpr.jaxpr))
        [((1, 1, 5, 3), 1)]
    """
    stack = [(body_of(jaxpr), 1)]
    while stack:
        body, times = stack.pop()
        for equation in body.equations:
            if dot := read_dot(equation):
                yield _product(equation, dot), times
            scan = read_scan(equation)
            runs = times * scan.length if scan else times
            stack += [(inner, runs) for inner in inner_bodies(equation)]


def _product(equation: JaxprEqn, dot: Dot) -> Product:
    left, right = (shape_of(each) for each in equation.invars)
    batch = int(np.prod([left[d] for d in dot.batch_dims[0]], dtype=np.int64))
    k = int(np.prod([left[d] for d in dot.dims[0]], dtype=np.int64))
    m = int(np.prod(left, dtype=np.int64)) // max(1, batch * k)
    n = int(np.prod(right, dtype=np.int64)) // max(1, batch * k)
    return batch, m, n, k


def type_products(
    types: TypeTable, node_type: NodeType, *, packing: bool
) -> list[tuple[Product, int]]:
    """Finds the matrix products of one node.

    Args:
        types: The model's types.
        node_type: The node's type.
        packing: Whether to count the packed cell instead of the cell as written.

    Returns:
        Each product and how often it runs, as from `products`.
    """
    cell = cell_program(node_type, types, packing)
    specs = input_specs(
        node_type.template,
        node_type.operand_kinds,
        node_type.external_kinds,
        types.avals,
    )
    packed = jax.eval_shape(cell.pack, node_type.params_spec(types.params_spec))
    return list(products(jax.make_jaxpr(cell.run)(packed, *specs).jaxpr))


def type_flops(types: TypeTable, node_type: NodeType) -> int:
    """Counts the operations of one node's matrix products, with its cell as written.

    Args:
        types: The model's types.
        node_type: The node's type.

    Returns:
        Multiplications and additions; cached for the lifetime of the types.
    """

    def count() -> int:
        found = type_products(types, node_type, packing=False)
        return sum(
            2 * int(np.prod(product, dtype=np.int64)) * times
            for product, times in found
        )

    return types.derived((type_flops, node_type, trace_settings()), count)


def count_flops(graph: DataflowGraph) -> int:
    """Counts the operations of all matrix products of a minibatch, as written.

    A padded list counts with its padded length, since the cell computes that length.

    Returns:
        Multiplications and additions of all nodes, without padding rows of batches.
    """
    nodes, types = np.bincount(graph.node_type), graph.types
    return sum(
        int(nodes[each]) * type_flops(types, types.types[each])
        for each in np.flatnonzero(nodes).tolist()
    )
