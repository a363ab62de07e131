"""Rewrites slices of sums of products as sums of narrower products.

Cells whose gates were packed by hand, ``x @ W4`` for all four, split the result and may
add the parts of two such products gate by gate. The parts become sums of products only
if the products are split instead of their results. The wide product that then joins the
parts is as wide as before. This way the `OptimizedLSTMCell` of Flax has one product
instead of two. The ready models are written gate by gate and do not need it.
"""

from collections.abc import Sequence

from jax import Array, lax

from edbatch.cell.binding_time import parameter_values
from edbatch.cell.cell_graph import CellGraph, Node
from edbatch.cell.emitter import Emitter
from edbatch.cell.jaxpr import JaxprEqn, Var, rewire, shape_of, variables
from edbatch.cell.places import Place, find_places
from edbatch.cell.product import Product
from edbatch.cell.sums import (
    SumOfProducts,
    add_terms,
    find_sums,
    is_addition,
)


def push_slices(graph: CellGraph) -> CellGraph:
    """Splits products whose results are only read in parts, some of which are added.

    Args:
        graph: A graph of equations.

    Returns:
        The graph with narrower products; the same graph if there is nothing to split.
    """
    packed = parameter_values(graph)
    readers: dict[Var, list[Node]] = {}
    for node in graph.nodes:
        for var in variables(node.invars):
            readers.setdefault(var, []).append(node)
    emitter = Emitter()
    gone: set[int] = set()
    for total in find_sums(graph, packed):
        cuts = readers.get(total.output, [])
        parts = _parts(total, cuts)
        added = [
            reader
            for var in parts
            for reader in readers.get(var, [])
            if is_addition(reader)
        ]
        if not added:
            continue
        gone.update(map(id, cuts))
        for var, place in parts.items():
            _emit_part(emitter, total, place, var)
    if not gone:
        return graph
    nodes = [node for node in graph.nodes if id(node) not in gone]
    return graph.with_nodes([*nodes, *emitter.nodes], emitter.constants)


def _parts(total: SumOfProducts, cuts: Sequence[Node]) -> dict[Var, Place]:
    """The parts of a sum along its weights' columns, if it is only read in parts."""
    dims = {_column_dim(product) for product, _ in total.products}
    found: dict[Var, Place] = {}
    for node in cuts:
        places = find_places(node, {}) if isinstance(node, JaxprEqn) else {}
        if len(places) != len(node.outvars):
            return {}
        found.update(places)
    if {place.dim for place in found.values()} == dims:
        return found
    return {}


def _column_dim(product: Product) -> int | None:
    """The dimension of the result that runs over the columns of the weight."""
    if len(product.column_shape) != 1:
        return None
    return 0 if product.weight_first else len(product.free_shape)


def _emit_part(
    emitter: Emitter, total: SumOfProducts, place: Place, outvar: Var
) -> None:
    """Computes a part of a sum from the parts of its terms."""
    start, stop, dim = place.start, place.stop, place.dim

    def cut(term: Array) -> Array:
        return lax.slice_in_dim(term, start, stop, axis=dim) if term.ndim else term

    terms = [
        emitter.emit(product.part(start, stop), *product.node.invars)
        for product, _ in total.products
    ]
    terms += [emitter.emit(cut, atom) for atom, _ in total.others]
    signs = [sign for _, sign in (*total.products, *total.others)]
    emitter.emit(lambda *arrays: add_terms(arrays, signs, shape_of(outvar)), *terms)
    *first, last = emitter.nodes
    emitter.nodes[:] = [*first, rewire(last, outvars=[outvar])]
