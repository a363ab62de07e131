"""A tree-LSTM with two compositions, one for nominal phrases and one for the rest.

The cells are those of the N-ary tree-LSTM (Tai, Socher, Manning, ACL 2015). Each
composition has its own weights. A node's composition is chosen as follows:

1. A phrase is nominal if its category is one of `NOMINAL`. The category is the label
   without function tags (a suffix) and without the mark of binarization (a prefix), so
   ``NP-SBJ`` and ``@NP`` are both ``NP``. Of the inner nodes of binarized GUM, 42% are
   nominal.
2. A node without a label, or whose label is a number (a sentiment), is nominal if the
   sum of the word indices below it is even, which is the case for about half of the
   nodes of sampled trees.

So the choice depends on the tree alone, not on the data set that contains it.
"""

import re
from functools import partial
from typing import Any

import jax
from jax import Array

from edbatch.data import Tree
from edbatch.models import tree_lstm
from edbatch.models.shared.constituency import GUM, over_constituency_trees
from edbatch.models.shared.label_classifier import classify
from edbatch.models.shared.tree_classifier import node_classifier, root_classifier
from edbatch.models.shared.workload import Workload
from edbatch.models.tree_lstm import State, init_compose, leaf

NOMINAL = frozenset({"NP", "NX", "NAC", "NML", "QP", "WHNP"})
KINDS = ("nominal", "other")

_CATEGORY = re.compile(r"@?([^-=|]*)")


def composition(label: str | None, word_sum: int) -> str:
    """Chooses the composition of a node.

    Args:
        label: The node's label.
        word_sum: The sum of the word indices below it.

    Returns:
        ``"nominal"`` or ``"other"``.

    Example:
        >>> composition("@NP-SBJ", 7), composition("VP", 7), composition(None, 8)
        ('nominal', 'other', 'nominal')
    """
    if label is None or label.isdigit():
        return KINDS[word_sum % 2]
    match = _CATEGORY.match(label)
    assert match is not None, "the pattern matches every text"
    return KINDS[match[1] not in NOMINAL]


def states(params: Any, tree: Tree) -> list[Array]:
    """Encodes a tree.

    Args:
        params: Parameters, as returned by `init_params`.
        tree: A tree with word indices at its leaves, at most ``N`` children per node.

    Returns:
        ``h`` of every node, ``[H]`` each, children before their parent.
    """

    def join(node: Tree, children: list[tuple[State, int]]) -> tuple[State, int]:
        word_sum = sum(words for _, words in children)
        kind = composition(node.label, word_sum)
        state = tree_lstm.compose(params[kind], [each for each, _ in children])
        return state, word_sum

    found = tree.fold_all(
        lambda node: (leaf(params, node.word), int(node.word or 0)), join
    )
    return [h for (h, _), _ in found]


classify_root = root_classifier(states, classify)
classify_nodes = node_classifier(states, classify)


def init_params(
    key: Array,
    hidden: int,
    vocabulary_size: int,
    *,
    arity: int = 2,
    num_labels: int = 5,
) -> dict[str, Any]:
    """Samples parameters.

    Args:
        key: A `jax.random` key.
        hidden: Length of states and word vectors, H.
        vocabulary_size: Number of words.
        arity: Largest number of children of a node, N.
        num_labels: Number of labels, L.

    Returns:
        Nested dicts and lists of float32 arrays: the parameters of the tree-LSTM, with
        one ``compose`` for each of `KINDS`.
    """
    shared, other = jax.random.split(key)
    params = tree_lstm.init_params(
        shared, hidden, vocabulary_size, arity=arity, num_labels=num_labels
    )
    compositions = (params.pop("compose"), init_compose(other, arity, hidden))
    for kind, compose in zip(KINDS, compositions, strict=True):
        params[kind] = {"compose": compose}
    return params


def workload(
    arity: int = 2,
    classify: str = "root",
    vocabulary_size: int = 10_000,
    num_labels: int = 5,
) -> Workload:
    """Builds ``"tree-lstm-2type"``.

    Args:
        arity: Largest number of children of a node; 2 binarizes treebanks.
        classify: What the model classifies: ``"root"`` or ``"nodes"``.
        vocabulary_size: Number of words.
        num_labels: Number of labels of the classifier.

    Returns:
        The workload.
    """
    return over_constituency_trees(
        "tree-lstm-2type",
        "An N-ary tree-LSTM with a composition for nominal phrases and one for others",
        (classify_root, classify_nodes),
        partial(init_params, arity=arity, num_labels=num_labels),
        arity=arity,
        classify=classify,
        vocabulary_size=vocabulary_size,
        zoo_data=GUM,
    )
