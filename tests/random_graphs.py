"""Graphs for tests of scheduling: all small ones, and random ones by hypothesis."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from hypothesis import strategies as st

from edbatch.graph.node_type import TypeKey
from edbatch.graph.structure import GraphStructure


def build(
    types: Sequence[int], operands: Sequence[Sequence[int]], num_types: int
) -> GraphStructure:
    """A graph from the type and the operands (-1 where missing) of each node."""
    flat = [u for each in operands for u in each]
    return GraphStructure(
        type_keys=tuple(TypeKey(f"t{k}", "", 0) for k in range(num_types)),
        node_type=np.array(types, np.int32),
        operand_start=np.cumsum([0] + [len(each) for each in operands], dtype=np.int32),
        operand_node=np.array(flat, np.int32),
        instance_nodes=np.array([len(types)], np.int32),
    )


def long_chain(nodes: int, types: int = 2) -> GraphStructure:
    """A chain whose types alternate."""
    return GraphStructure(
        type_keys=tuple(TypeKey(f"t{k}", "", 0) for k in range(types)),
        node_type=np.arange(nodes, dtype=np.int32) % np.int32(types),
        operand_start=np.maximum(np.arange(nodes + 1, dtype=np.int32) - 1, 0),
        operand_node=np.arange(nodes - 1, dtype=np.int32),
        instance_nodes=np.array([nodes], np.int32),
    )


def all_graphs(max_nodes: int, num_types: int = 2) -> Iterator[GraphStructure]:
    """Every graph of up to `max_nodes` nodes; the first node has type 0."""
    yield build([], [], num_types)
    for n in range(1, max_nodes + 1):
        pairs = [(u, v) for v in range(n) for u in range(v)]
        for chosen in itertools.product([False, True], repeat=len(pairs)):
            operands: list[list[int]] = [[] for _ in range(n)]
            for (u, v), is_read in zip(pairs, chosen, strict=True):
                if is_read:
                    operands[v].append(u)
            for rest in itertools.product(range(num_types), repeat=n - 1):
                yield build([0, *rest], operands, num_types)


@st.composite
def graphs(draw, max_nodes=60, max_types=4, max_arity=3, num_types=None):
    """Graphs whose operands may be missing or repeated; types may have no node."""
    if num_types is None:
        num_types = draw(st.integers(1, max_types))
    n = draw(st.integers(0, max_nodes))
    types = draw(st.lists(st.integers(0, num_types - 1), min_size=n, max_size=n))
    operands = [
        draw(st.lists(st.integers(max(-1, v - 8), v - 1), max_size=max_arity))
        for v in range(n)
    ]
    return build(types, operands, num_types)
