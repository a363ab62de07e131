"""Constituency trees of limited arity, as tree-LSTMs take them."""

import numpy as np

from edbatch.data import DataError, Tree, binarize, collapse_unary, read_trees
from edbatch.data import sample_trees as sample_binary_trees
from edbatch.data.files import Paths
from edbatch.errors import shown

_MERGED = 0.4  # share of binary inner nodes that are merged into their parents


def read_limited(path: Paths, arity: int) -> list[Tree]:
    """Reads a treebank into trees without unary nodes.

    Args:
        path: A file, a folder, or several of them; as for `read_trees`.
        arity: 2: trees are binarized; more: nodes keep their children, of which they
            may have at most so many.

    Returns:
        The trees, words still strings.

    Raises:
        DataError: A file is missing or malformed, or a node has too many children.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "a.ptb")
        ...     _ = file.write_text("(NP (DT a) (JJ big) (NN dog))")
        ...     print(*read_limited(file, 2), *read_limited(file, 3))
        (NP (DT a) (@NP (JJ big) (NN dog))) (NP (DT a) (JJ big) (NN dog))
    """
    if arity == 2:
        return [binarize(tree) for tree in read_trees(path)]
    trees = [collapse_unary(tree) for tree in read_trees(path)]
    widest = max(
        (node for tree in trees for node in tree.postorder()),
        key=lambda node: len(node.children),
    )
    if len(widest.children) > arity:
        raise DataError(
            f"with arity {arity} a node may have at most {arity} children; found one"
            f" with {len(widest.children)}: {shown(widest)}; usually a treebank with"
            f" flat phrases; choose arity {len(widest.children)}, or 2, which binarizes"
        )
    return trees


def sample_limited(
    rng: np.random.Generator, count: int, vocabulary_size: int, arity: int
) -> list[Tree]:
    """Samples trees: binary ones, or ones with up to ``arity`` children per node.

    Args:
        rng: The random generator.
        count: How many.
        vocabulary_size: Words are integers below it.
        arity: Largest number of children.

    Returns:
        The trees.

    Example:
        >>> [tree] = sample_limited(np.random.default_rng(0), 1, 100, 3)
        >>> sorted({len(node.children) for node in tree.postorder()})
        [0, 2, 3]
    """
    trees = sample_binary_trees(rng, count, vocabulary_size)
    if arity == 2:
        return trees
    return [_widened(tree, rng, arity) for tree in trees]


def _widened(tree: Tree, rng: np.random.Generator, arity: int) -> Tree:
    """Merges some inner nodes of a binary tree into their parents."""

    def compose(node: Tree, children: list[Tree]) -> Tree:
        merged: list[Tree] = []
        for k, child in enumerate(children):
            room = arity - len(merged) - (len(children) - k - 1)
            fits = 0 < len(child.children) <= room
            if fits and rng.random() < _MERGED:
                merged += child.children
            else:
                merged.append(child)
        return Tree(node.label, node.word, tuple(merged))

    return tree.fold(lambda leaf: leaf, compose)
