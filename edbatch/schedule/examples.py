"""Small graphs for examples, doctests and tests."""

from collections.abc import Sequence

import numpy as np

from edbatch.graph.node_type import TypeKey
from edbatch.graph.structure import GraphStructure


def from_operands(types: str, operands: Sequence[Sequence[int]]) -> GraphStructure:
    """Builds a graph from the operands of each node.

    Args:
        types: One letter per node, its type; letters are numbered alphabetically.
        operands: For each node the earlier nodes that it reads.

    Returns:
        The graph, as one instance.

    Example:
        >>> from_operands("aab", [[], [], [0, 1]]).operand_start.tolist()
        [0, 0, 0, 2]
    """
    letters = sorted(set(types))
    keys = tuple(TypeKey(letter, "", 0) for letter in letters)
    flat = [u for each in operands for u in each]
    return GraphStructure(
        type_keys=keys,
        node_type=np.array([letters.index(each) for each in types], np.int32),
        operand_start=np.cumsum([0] + [len(each) for each in operands], dtype=np.int32),
        operand_node=np.array(flat, np.int32),
        instance_nodes=np.array([len(types)], np.int32),
    )


def chain(types: str) -> GraphStructure:
    """Builds a chain in which each node reads the one before.

    Args:
        types: One letter per node, its type.

    Returns:
        The graph.

    Example:
        >>> chain("ab").operand_node.tolist()
        [0]
    """
    return from_operands(types, [[] if k == 0 else [k - 1] for k in range(len(types))])


def tree(text: str) -> GraphStructure:
    """Builds a tree from nested parentheses in post-order notation.

    Args:
        text: A letter is a leaf; ``(...)x`` is a node of type x over the nodes inside.

    Returns:
        The graph.

    Example:
        >>> tree("((ab)cb)c").operand_node.tolist()
        [0, 1, 2, 3]
    """
    types: list[str] = []
    operands: list[list[int]] = []
    stack: list[list[int]] = [[]]
    for k, letter in enumerate(text):
        if letter == "(":
            stack.append([])
        elif letter != ")":
            operands.append(stack.pop() if k and text[k - 1] == ")" else [])
            types.append(letter)
            stack[-1].append(len(types) - 1)
    return from_operands("".join(types), operands)
