"""Sums of products, such as the pre-activation of a gate.

A sum is a tree of additions whose inner values have no other reader, so its terms can
be added in any order. A product that is not a term of a larger sum is a sum by itself.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from jax import Array, lax

from edbatch.cell.cell_graph import CellGraph, Node, count_uses
from edbatch.cell.jaxpr import (
    Atom,
    JaxprEqn,
    Var,
    dtype_of,
    is_operation,
    name_of,
    shape_of,
)
from edbatch.cell.primitives import ADDITIONS
from edbatch.cell.product import Product, match_product


@dataclass(frozen=True, eq=False)
class SumOfProducts:
    """A sum with at least one product among its terms.

    Attributes:
        output: The sum.
        products: Its terms that are products, each with a sign, 1 or -1.
        others: Its other terms, likewise.
    """

    output: Var
    products: tuple[tuple[Product, int], ...]
    others: tuple[tuple[Atom, int], ...]


def find_sums(graph: CellGraph, weights: Collection[Var]) -> list[SumOfProducts]:
    """Finds the sums of products of a graph.

    Args:
        graph: The graph.
        weights: Variables that depend on parameters only.

    Returns:
        The sums in the graph's order; each product is a term of exactly one.
    """
    uses = count_uses(graph)
    producer = {var: node for node in graph.nodes for var in node.outvars}
    products = {
        product.output: product
        for node in graph.nodes
        if (product := match_product(node, weights)) is not None
    }
    inner = _inner_values(graph.nodes, uses)
    holds = _holders(graph.nodes, products, inner)
    # A product that is read twice is a separate sum, and one of the `others` elsewhere.
    terms_once = inner & products.keys()
    found = []
    for var in (var for node in graph.nodes for var in node.outvars):
        if var not in holds or var in inner:
            continue
        mine: list[tuple[Product, int]] = []
        others: list[tuple[Atom, int]] = []
        for atom, sign in _terms(var, producer, products, holds & inner):
            if isinstance(atom, Var) and (atom is var or atom in terms_once):
                mine.append((products[atom], sign))
            else:
                others.append((atom, sign))
        found.append(SumOfProducts(var, tuple(mine), tuple(others)))
    return found


def _is_in(atom: Atom, some: Collection[Var]) -> bool:
    return isinstance(atom, Var) and atom in some


def _inner_values(nodes: Sequence[Node], uses: Counter[Var]) -> set[Var]:
    """Values whose only reader is an addition with a result of the same shape."""
    return {
        term
        for node in nodes
        if is_addition(node)
        for term in node.invars
        if isinstance(term, Var)
        and uses[term] == 1
        and shape_of(term) == shape_of(node.outvars[0])
        and dtype_of(term) == dtype_of(node.outvars[0])
    }


def _holders(
    nodes: Sequence[Node], products: Collection[Var], inner: Collection[Var]
) -> set[Var]:
    """Products, and sums with a product somewhere among their terms."""
    found: set[Var] = set()
    for node in nodes:
        if (node.outvars and node.outvars[0] in products) or (
            is_addition(node)
            and any(_is_in(term, inner) and _is_in(term, found) for term in node.invars)
        ):
            found.add(node.outvars[0])
    return found


def _terms(
    root: Var,
    producer: dict[Var, Node],
    products: Collection[Var],
    inside: Collection[Var],
) -> list[tuple[Atom, int]]:
    """The terms of a sum and their signs, from left to right."""
    found: list[tuple[Atom, int]] = []
    open_: list[tuple[Atom, int]] = [(root, 1)]
    while open_:
        atom, sign = open_.pop()
        is_sum = atom is root or _is_in(atom, inside)
        if not is_sum or _is_in(atom, products):
            found.append((atom, sign))
            continue
        assert isinstance(atom, Var), "a literal holds no product"
        node = producer[atom]
        assert isinstance(node, JaxprEqn), "sums are looked for among equations"
        signs = ADDITIONS[name_of(node)]
        terms = list(zip(node.invars, signs, strict=True))
        open_ += [(each, sign * own) for each, own in reversed(terms)]
    return found


def add_terms(
    arrays: Sequence[Any], signs: Sequence[int], shape: tuple[int, ...]
) -> Array:
    """Adds arrays of one shape, and scalars.

    Args:
        arrays: The terms, at least one.
        signs: 1 or -1 for each.
        shape: The shape of the sum.

    Returns:
        The sum.
    """
    full = [lax.broadcast(each, shape) if each.ndim == 0 else each for each in arrays]
    total = full[0] if signs[0] > 0 else lax.neg(full[0])
    for each, sign in zip(full[1:], signs[1:], strict=True):
        total = lax.add(total, each) if sign > 0 else lax.sub(total, each)
    return total


def is_addition(node: Node) -> bool:
    """Returns whether a node adds, subtracts or negates."""
    return is_operation(node, ADDITIONS) and not node.effects
