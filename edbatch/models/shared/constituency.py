"""Workloads over constituency trees: builds them, reads and samples their trees."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from edbatch.data import (
    Tree,
    Vocabulary,
    binarize,
    collapse_unary,
    index_tree,
    read_trees,
)
from edbatch.data import sample_trees as sample_binary_trees
from edbatch.data.files import Paths
from edbatch.errors import DataError, WorkloadError, nearest, shown
from edbatch.models.shared.tree_classifier import Model
from edbatch.models.shared.workload import Workload

# The public treebank that the zoo's policies over constituency trees are trained on.
GUM = ("gum_const/const",)

_MERGED = 0.4  # probability that a binary inner node is merged into its parent


def over_constituency_trees(
    name: str,
    what: str,
    models: tuple[Model, Model],
    init_params: Callable[..., Any],
    *,
    vocabulary_size: int,
    classify: str,
    arity: int = 2,
    zoo_data: tuple[str, ...] = (),
) -> Workload:
    """Builds a workload over constituency trees.

    Args:
        name: The workload's name.
        what: The network, as a noun phrase that begins the description.
        models: The model that classifies the root, and the one that classifies every
            node.
        init_params: ``init_params(key, hidden, vocabulary_size=)``.
        vocabulary_size: Number of words.
        classify: Which of the models to use: ``"root"`` or ``"nodes"``.
        arity: Largest number of children of a node; 2 binarizes treebanks.
        zoo_data: As for `Workload`.

    Returns:
        The workload.

    Raises:
        WorkloadError: ``arity`` is below 2, or ``classify`` is unknown.
    """
    if arity < 2:
        raise WorkloadError(
            f"the arity of {name!r} is 2 or more but this is {arity}; 2 binarizes"
            " treebanks, the largest number of children keeps them as they are"
        )
    where = {"root": "the root", "nodes": "every node"}
    if classify not in where:
        raise WorkloadError(
            f"option 'classify' of {name!r} is 'root' or 'nodes' but this is"
            f" {classify!r}; {nearest(str(classify), where)}"
        )
    return Workload(
        name=name,
        description=(
            f"{what} over constituency trees of arity {arity}, with a classifier at"
            f" {where[classify]}."
        ),
        reads="Penn Treebank brackets",
        vocabulary_size=vocabulary_size,
        model=models[0] if classify == "root" else models[1],
        init_params=partial(init_params, vocabulary_size=vocabulary_size),
        read_text=partial(read_limited, arity=arity),
        words=Tree.words,
        number=number_trees,
        sample=partial(sample_limited, vocabulary_size=vocabulary_size, arity=arity),
        zoo_data=zoo_data,
    )


def number_trees(trees: list[Tree], vocabulary: Vocabulary) -> list[Tree]:
    """Replaces the words of trees by their indices."""
    return [index_tree(tree, vocabulary) for tree in trees]


def read_limited(path: Paths, arity: int) -> list[Tree]:
    """Reads a treebank into trees without unary nodes.

    Args:
        path: A file, a folder, or several of them; as for `read_trees`.
        arity: Largest number of children of a node. 2 binarizes the trees; a larger
            number leaves the children of nodes as they are.

    Returns:
        The trees; words are still strings.

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
    """Samples trees whose nodes have up to ``arity`` children.

    Args:
        rng: The random generator.
        count: Number of trees.
        vocabulary_size: Words are integers below this number.
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
