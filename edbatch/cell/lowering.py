"""Writes wide products as equations, with slices in place of copies where possible.

A wide product computes one *block*: its concatenated columns. Its results are slices of
the block. If the inputs of a wide product are adjacent in a larger variable, it reads
one slice; otherwise they are concatenated.
"""

from collections.abc import Sequence
from dataclasses import replace

import jax.numpy as jnp
from jax import Array, lax

from edbatch.cell.cell_graph import CellGraph
from edbatch.cell.emitter import Emitter
from edbatch.cell.jaxpr import Atom, JaxprEqn, Var, dtype_of, rewire, shape_of
from edbatch.cell.places import Place, concatenated, find_places, read_place
from edbatch.cell.product import Product
from edbatch.cell.wide_product import WideProduct
from edbatch.target import Target


def lower(graph: CellGraph, target: Target) -> CellGraph:
    """Writes wide products as equations.

    Args:
        graph: A graph with wide products.
        target: The kind of device that runs it.

    Returns:
        A graph that consists of equations only.
    """
    lowering = _Lowering(target)
    for node in graph.nodes:
        if isinstance(node, WideProduct):
            lowering.wide_product(node)
        else:
            assert isinstance(node, JaxprEqn), "every merged node has its lowering"
            lowering.equation(node)
    outputs = tuple(map(lowering.read, graph.outputs))
    return replace(graph, outputs=outputs).with_nodes(
        lowering.nodes, lowering.constants
    )


def extra_columns(rows: int, columns: int, itemsize: int, target: Target) -> int:
    """Returns the number of zero columns that make products with a matrix faster.

    Rows that are a multiple of 4,096 bytes apart map to the same few sets of a CPU's
    caches. With 512 or 768 by 1,024 float32, a product of 8 to 32 rows took 1.2 to 1.6
    times as long as with one more cache line of columns, a product of 64 rows 0.92 to
    1.05 times. For matrices of one megabyte the additional columns made no difference.

    Args:
        rows: Rows of the matrix, which is stored in row-major order.
        columns: Columns of the matrix.
        itemsize: Bytes per element.
        target: The kind of device that multiplies by it.

    Returns:
        The columns of one cache line; 0 if the length of a row is not a multiple of
        `Target.page_bytes`, the matrix is small, or the target needs none.
    """
    length = columns * itemsize
    page = target.page_bytes
    if not page or length % page or rows * length <= target.padded_bytes:
        return 0
    return target.line_bytes // itemsize


class _Lowering(Emitter):
    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target = target
        self.places: dict[Var, Place] = {}
        self.known: dict[Var, Atom] = {}  # replacements of wide products' results

    def read(self, atom: Atom) -> Atom:
        return self.known.get(atom, atom) if isinstance(atom, Var) else atom

    def equation(self, eqn: JaxprEqn) -> None:
        eqn = rewire(eqn, [self.read(each) for each in eqn.invars])
        self.nodes.append(eqn)
        self.places.update(find_places(eqn, self.places))

    def wide_product(self, node: WideProduct) -> None:
        """Emits one product of concatenated inputs and weights."""
        inputs = [
            self.emit(product.input_matrix, self.read(product.x))
            for product in node.inputs
        ]
        rows = self._row_order(inputs)
        last = len(shape_of(inputs[0])) - 1
        x = self._concatenated([inputs[row] for row in rows], last)
        weights = [self._concatenated(self._weights(node, row), 1) for row in rows]
        weight = self._concatenated(weights, 0)
        height, columns = shape_of(weight)
        itemsize = dtype_of(weight).itemsize
        extra = extra_columns(height, columns, itemsize, self.target)
        block = self.emit(node.columns[0].multiply, x, self._widened(weight, extra))
        if node.biases:
            biases = [self.read(each) for each in node.biases]
            bias = self._widened(self._concatenated(biases, 0), extra)
            block = self.emit(_add_to_last, block, bias)
        start = 0
        for outvar, product in zip(node.outvars, node.columns, strict=True):
            stop = start + product.columns
            self._read_column(outvar, block, product, start, stop)
            start = stop

    def _widened(self, array: Atom, extra: int) -> Atom:
        """Adds zero columns, whose products are not read."""
        if not extra:
            return array
        none = [(0, 0)] * (len(shape_of(array)) - 1)
        widened: Atom = self.emit(lambda x: jnp.pad(x, [*none, (0, extra)]), array)
        return widened

    def _weights(self, node: WideProduct, row: int) -> list[Atom]:
        weights = []
        for product, sign in node.grid[row]:
            weight = self.emit(product.weight_matrix, self.read(product.weight))
            weights.append(weight if sign > 0 else self.emit(lax.neg, weight))
        return weights

    def _row_order(self, inputs: Sequence[Atom]) -> list[int]:
        """Order of the inputs: slices of a block are adjacent, in the block's order."""
        blocks: dict[Var, int] = {}

        def key(row: int) -> tuple[int, int]:
            atom = inputs[row]
            place = self.places.get(atom) if isinstance(atom, Var) else None
            if place is None:
                return row, 0
            return blocks.setdefault(place.block, row), place.start

        return sorted(range(len(inputs)), key=key)

    def _read_column(
        self, outvar: Var, block: Var, product: Product, start: int, stop: int
    ) -> None:
        dim = len(shape_of(block)) - 1
        place = Place(block, dim, start, stop)
        column = read_place(self, place)
        if column is not block:
            self.places[column] = place
        self.known[outvar] = self.emit(product.result, column)

    def _concatenated(self, atoms: Sequence[Atom], dim: int) -> Atom:
        return concatenated(self, self.places, atoms, dim)


def _add_to_last(y: Array, bias: Array) -> Array:
    """Adds a vector along the last dimension."""
    return lax.add(y, lax.broadcast_in_dim(bias, y.shape, (y.ndim - 1,)))
