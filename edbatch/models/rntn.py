"""A recursive neural tensor network over binary constituency trees.

Source: Socher, Perelygin, Wu, Chuang, Manning, Ng, Potts, "Recursive Deep Models for
Semantic Compositionality Over a Sentiment Treebank", EMNLP 2013, section 4.3: the two
children are concatenated to a vector ``x`` of length 2H, and each component of the
parent is computed with its own bilinear form: ``tanh(x V x + x W)``. As in the paper, a
leaf is its word's vector. Unlike in the paper, the sum has a bias. The tensor has 4 H³
entries, so H is usually 25 to 35.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

import edbatch as eb
from edbatch.data import Tree
from edbatch.models.shared.constituency import over_constituency_trees
from edbatch.models.shared.initial_params import affine, embedding
from edbatch.models.shared.label_classifier import classify
from edbatch.models.shared.tree_classifier import node_classifier, root_classifier
from edbatch.models.shared.workload import Workload

# Initial standard deviation of the bilinear term, for children of unit variance.
_BILINEAR = 0.1


@eb.cell
def leaf(params: Any, word: Any) -> Array:
    """Returns a word's vector, ``[H]``."""
    return params["embedding"][word]


@eb.cell
def compose(params: Any, left: Array, right: Array) -> Array:
    """Composes the vectors of two children, ``[H]`` each; equation 5 of the source."""
    x = jnp.concatenate([left, right])
    tensor = params["compose"]["V"]  # [2H, 2H, H]
    # One large matrix product for the minibatch, then a small one per node.
    xV = (x @ tensor.reshape(len(x), -1)).reshape(tensor.shape[1:])
    return jnp.tanh(x @ xV + x @ params["compose"]["W"] + params["compose"]["b"])


def states(params: Any, tree: Tree) -> list[Array]:
    """Encodes a tree.

    Args:
        params: Parameters, as returned by `init_params`.
        tree: A binary tree with word indices at its leaves.

    Returns:
        The vector of every node, ``[H]`` each, children before their parent.
    """
    return tree.fold_all(
        lambda node: leaf(params, node.word),
        lambda _, children: compose(params, *children),
    )


classify_root = root_classifier(states, classify)
classify_nodes = node_classifier(states, classify)


def init_params(
    key: Array, hidden: int, vocabulary_size: int, *, num_labels: int = 5
) -> dict[str, Any]:
    """Samples parameters.

    Args:
        key: A `jax.random` key.
        hidden: Length of vectors, H.
        vocabulary_size: Number of words.
        num_labels: Number of labels, L.

    Returns:
        Nested dicts of float32 arrays.
    """
    words, linear, bilinear, output = jax.random.split(key, 4)
    shape = (2 * hidden, 2 * hidden, hidden)
    tensor = jax.random.normal(bilinear, shape, jnp.float32)
    return {
        "embedding": embedding(words, vocabulary_size, hidden),
        "compose": affine(linear, 2 * hidden, hidden)
        | {"V": _BILINEAR / (2 * hidden) * tensor},
        "classify": affine(output, hidden, num_labels),
    }


def workload(
    classify: str = "root", vocabulary_size: int = 10_000, num_labels: int = 5
) -> Workload:
    """Builds ``"rntn"``.

    Args:
        classify: What the model classifies: ``"root"`` or ``"nodes"``.
        vocabulary_size: Number of words.
        num_labels: Number of labels of the classifier; the sentiment treebank has 5.

    Returns:
        The workload.
    """
    return over_constituency_trees(
        "rntn",
        "A recursive neural tensor network (Socher et al. 2013)",
        (classify_root, classify_nodes),
        partial(init_params, num_labels=num_labels),
        classify=classify,
        vocabulary_size=vocabulary_size,
    )
