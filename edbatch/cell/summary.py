"""Counts the operations of a cell."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from edbatch.cell.cell_graph import Node
from edbatch.cell.jaxpr import JaxprEqn, equations_of, inner_bodies, read_dot, shape_of


@dataclass(frozen=True)
class ProductShape:
    """The shapes of a product, for one instance.

    Attributes:
        left: Shape of the left operand.
        right: Shape of the right operand.
        result: Shape of the result.

    Example:
        >>> ProductShape((8, 16), (16,), (8,)).result
        (8,)
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    result: tuple[int, ...]

    def __str__(self) -> str:
        return f"{_shape(self.left)} by {_shape(self.right)}"


@dataclass(frozen=True)
class CellSummary:
    """The operations of a cell, for one instance.

    Attributes:
        products: Its products, including those in functions that it calls. A product in
            the body of a loop counts once.
        num_equations: The number of its equations.
        packed_arrays: The number of arrays that are computed from parameters only, once
            per call of the program.
        packed_bytes: The total size of these arrays.

    Example:
        >>> shape = ProductShape((8, 16), (16,), (8,))
        >>> CellSummary((shape, shape), num_equations=5).num_products
        2
    """

    products: tuple[ProductShape, ...]
    num_equations: int
    packed_arrays: int = 0
    packed_bytes: int = 0

    @property
    def num_products(self) -> int:
        """Number of products."""
        return len(self.products)

    @property
    def products_text(self) -> str:
        """The products as readable text, with equal ones grouped."""
        counts = Counter(map(str, self.products))
        return ", ".join(f"{count} of {shape}" for shape, count in counts.items())


def summarize(
    nodes: Iterable[Node], packed_arrays: int = 0, packed_bytes: int = 0
) -> CellSummary:
    """Counts the operations of some equations.

    Args:
        nodes: The equations.
        packed_arrays: As in `CellSummary`.
        packed_bytes: As in `CellSummary`.

    Returns:
        The summary.
    """
    equations = equations_of(nodes)
    return CellSummary(
        products=tuple(_products(equations)),
        num_equations=len(equations),
        packed_arrays=packed_arrays,
        packed_bytes=packed_bytes,
    )


def _products(equations: Iterable[JaxprEqn]) -> list[ProductShape]:
    found: list[ProductShape] = []
    open_ = list(equations)[::-1]
    while open_:
        eqn = open_.pop()
        if read_dot(eqn):
            left, right = (shape_of(each) for each in eqn.invars)
            found.append(ProductShape(left, right, shape_of(eqn.outvars[0])))
        for body in inner_bodies(eqn):
            open_ += body.equations[::-1]
    return found


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "1"
