"""The order of a wide product's columns, so that another one reads them as one slice.

A wide product that reads several columns of another one needs them side by side. Such
*adjacency constraints* on one block are what a PQ-tree holds. Which of them to accept
together is searched for exactly, for the most elements that need not be copied; beyond
a number of steps the best set found so far is taken.

No ready workload has such a cell: at hidden sizes 64 and 256 all 174 packed cells of
the twelve are the same without this file. It is for factored weights, as in
``(x @ A1) @ B1 + (x @ A3) @ B3``, where it saves a concatenation per chunk.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from edbatch.cell.cell_graph import CellGraph
from edbatch.cell.jaxpr import size_of
from edbatch.cell.wide_product import WideProduct
from edbatch.memory_planner.pq_tree import PQTree

_MOST_STEPS = 2_000

Orders = Mapping[WideProduct, Sequence[int]]


class Adjacency(NamedTuple):
    """Columns that a reader needs side by side, in any order.

    Attributes:
        columns: Their numbers.
        elements: How many elements are copied if they are not.
    """

    columns: frozenset[int]
    elements: int


def order_columns(graph: CellGraph) -> Orders:
    """Orders the columns of each wide product of a graph.

    Args:
        graph: A graph with wide products.

    Returns:
        The columns of each, in their order.
    """
    wide = [node for node in graph.nodes if isinstance(node, WideProduct)]
    orders = {}
    for node in wide:
        number = {var: k for k, var in enumerate(node.outvars)}
        wanted = []
        for reader in wide:
            inputs = [product.x for product in reader.inputs]
            if len(inputs) > 1 and all(each in number for each in inputs):
                columns = frozenset(number[each] for each in inputs)
                wanted.append(Adjacency(columns, sum(map(size_of, inputs))))
        orders[node] = best_order(len(number), wanted)
    return orders


def best_order(count: int, wanted: Sequence[Adjacency]) -> list[int]:
    """Orders the columns of one block.

    Args:
        count: How many there are.
        wanted: The columns that each reader needs side by side.

    Returns:
        The columns, in the order that saves the most elements.

    Example:
        >>> best_order(4, [Adjacency(frozenset({0, 1, 3}), 96)])
        [0, 1, 3, 2]
    """
    if not wanted:
        return list(range(count))
    wanted = sorted(wanted, key=lambda each: -each.elements)
    best, most = PQTree(count), 0
    open_ = [(0, best, 0)]
    for _ in range(_MOST_STEPS):
        if not open_:
            break
        k, tree, saved = open_.pop()
        if saved > most:
            best, most = tree, saved
        if saved + sum(each.elements for each in wanted[k:]) <= most:
            continue
        open_.append((k + 1, tree, saved))
        after = tree.copy()
        if after.reduce(sorted(wanted[k].columns)):
            open_.append((k + 1, after, saved + wanted[k].elements))
    found: list[int] = best.frontier().tolist()
    return min(found, found[::-1])
