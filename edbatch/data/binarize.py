"""Binarization of constituency trees, and removal of their unary nodes."""

from typing import Literal

from edbatch.data.trees import Tree
from edbatch.errors import DataError, nearest, shown

Branching = Literal["right", "left"]


def collapse_unary(tree: Tree) -> Tree:
    """Replaces every chain of one-child nodes by one node with the topmost label.

    Other nodes keep their arity. A chain that ends in a leaf becomes a leaf. If the top
    of a chain has no label, the next label below it is used.

    Args:
        tree: A constituency tree (words at the leaves only).

    Returns:
        A tree whose inner nodes all have two or more children.

    Raises:
        DataError: An inner node has a word, as in a dependency tree.

    Example:
        >>> from edbatch.data import parse_trees
        >>> [tree] = parse_trees("(S (NP (NN dog)) (VP (VBZ is) (ADV so) (ADJ big)))")
        >>> print(collapse_unary(tree))
        (S (NP dog) (VP (VBZ is) (ADV so) (ADJ big)))
    """

    def compose(node: Tree, children: list[Tree]) -> Tree:
        _check_no_word(node)
        if len(children) == 1:
            return _merged(node, children[0])
        return Tree(node.label, None, tuple(children))

    return tree.fold(lambda leaf: leaf, compose)


def binarize(tree: Tree, branching: Branching = "right") -> Tree:
    """Makes a tree binary: collapses unary chains and splits wide nodes into pairs.

    A node `NP` over `a b c` becomes `(NP a (@NP b c))` with right branching and
    `(NP (@NP a b) c)` with left branching. Unary chains are collapsed as by
    `collapse_unary`.

    Args:
        tree: A constituency tree (words at the leaves only).
        branching: The side of the intermediate nodes: ``"right"`` or ``"left"``.

    Returns:
        A tree in which every node is a leaf or has two children.

    Raises:
        DataError: An inner node has a word, or the branching is unknown.

    Example:
        >>> from edbatch.data import parse_trees
        >>> [tree] = parse_trees("(S (NP (NN dog)) (VP (VBZ is) (ADV so) (ADJ big)))")
        >>> print(binarize(tree))
        (S (NP dog) (VP (VBZ is) (@VP (ADV so) (ADJ big))))
        >>> print(binarize(tree, "left"))
        (S (NP dog) (VP (@VP (VBZ is) (ADV so)) (ADJ big)))
    """
    if branching not in ("right", "left"):
        raise DataError(
            f"branching must be 'right' or 'left'; found {shown(branching)}; usually a "
            f"misspelling; {nearest(str(branching), ('right', 'left'))}"
        )
    paired = _paired_right if branching == "right" else _paired_left

    def compose(node: Tree, children: list[Tree]) -> Tree:
        _check_no_word(node)
        if len(children) == 1:
            return _merged(node, children[0])
        return paired(node.label, children)

    return tree.fold(lambda leaf: leaf, compose)


def _merged(top: Tree, below: Tree) -> Tree:
    label = below.label if top.label is None else top.label
    return Tree(label, below.word, below.children)


def _paired_right(label: str | None, children: list[Tree]) -> Tree:
    last = children[-1]
    for child in children[-2:0:-1]:
        last = Tree(_intermediate(label), None, (child, last))
    return Tree(label, None, (children[0], last))


def _paired_left(label: str | None, children: list[Tree]) -> Tree:
    first = children[0]
    for child in children[1:-1]:
        first = Tree(_intermediate(label), None, (first, child))
    return Tree(label, None, (first, children[-1]))


def _intermediate(label: str | None) -> str | None:
    return None if label is None else f"@{label}"


def _check_no_word(node: Tree) -> None:
    if node.word is not None:
        raise DataError(
            "only trees with words at the leaves can be collapsed or binarized; found "
            f"the word {shown(node.word)} on a node with {len(node.children)} "
            "children; usually a dependency tree; use its children as they are"
        )
