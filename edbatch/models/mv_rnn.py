"""A matrix-vector recursive network over binary constituency trees.

Source: Socher, Huval, Manning, Ng, "Semantic Compositionality through Recursive
Matrix-Vector Spaces", EMNLP 2012, sections 2.2 to 2.4: every node has a vector for its
meaning and a matrix that modifies its sibling. A word's matrix is a diagonal matrix
plus a product of rank `RANK`, as in the paper; the diagonal starts at one. Vectors are
row vectors here, so matrices multiply from the right. A node's matrix costs H times as
much as its vector, so H is usually 32 to 64.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

import edbatch as eb
from edbatch.data import Tree
from edbatch.models.shared.constituency import GUM, over_constituency_trees
from edbatch.models.shared.initial_params import affine, embedding
from edbatch.models.shared.label_classifier import classify
from edbatch.models.shared.tree_classifier import node_classifier, root_classifier
from edbatch.models.shared.workload import Workload

RANK = 3
# Initial standard deviation of x @ M, for the low-rank part M of a word's matrix and an
# x with entries of unit variance.
_NOISE = 0.1

State = tuple[Array, Array]  # the vector [H] and the matrix [H, H]


@eb.cell
def leaf(params: Any, word: Any) -> State:
    """Returns the vector and the matrix of a word from its index."""
    own = params["word_matrix"]
    matrix = jnp.diag(own["diagonal"][word]) + own["left"][word] @ own["right"][word]
    return params["embedding"][word], matrix


@eb.cell
def compose(params: Any, left: State, right: State) -> State:
    """Returns the vector and the matrix of a node from those of its children."""
    (a, A), (b, B) = left, right
    modified = jnp.concatenate([a @ B, b @ A])
    p = jnp.tanh(modified @ params["vector"]["W"] + params["vector"]["b"])
    P = jnp.concatenate([A, B], axis=1) @ params["matrix"]["W"]
    return p, P


def states(params: Any, tree: Tree) -> list[Array]:
    """Encodes a tree.

    Args:
        params: Parameters, as returned by `init_params`.
        tree: A binary tree with word indices at its leaves.

    Returns:
        The vector of every node, ``[H]`` each, children before their parent.
    """
    found = tree.fold_all(
        lambda node: leaf(params, node.word),
        lambda _, children: compose(params, *children),
    )
    return [p for p, _ in found]


classify_root = root_classifier(states, classify)
classify_nodes = node_classifier(states, classify)


def init_params(
    key: Array, hidden: int, vocabulary_size: int, *, num_labels: int = 5
) -> dict[str, Any]:
    """Samples parameters.

    Args:
        key: A `jax.random` key.
        hidden: Length of vectors and of the sides of matrices, H.
        vocabulary_size: Number of words.
        num_labels: Number of labels, L.

    Returns:
        Nested dicts of float32 arrays.
    """
    keys = jax.random.split(key, 6)
    factors = (vocabulary_size, hidden * RANK)
    # An entry of the product is a sum of RANK terms.
    scale = (_NOISE / (RANK * hidden) ** 0.5) ** 0.5
    left, right = (scale * embedding(each, *factors) for each in keys[1:3])
    return {
        "embedding": embedding(keys[0], vocabulary_size, hidden),
        "word_matrix": {
            "left": left.reshape(vocabulary_size, hidden, RANK),
            "right": right.reshape(vocabulary_size, RANK, hidden),
            "diagonal": jnp.ones((vocabulary_size, hidden), jnp.float32),
        },
        "vector": affine(keys[3], 2 * hidden, hidden),
        "matrix": {"W": affine(keys[4], 2 * hidden, hidden)["W"]},
        "classify": affine(keys[5], hidden, num_labels),
    }


def workload(
    classify: str = "root", vocabulary_size: int = 10_000, num_labels: int = 5
) -> Workload:
    """Builds ``"mv-rnn"``.

    Args:
        classify: What the model classifies: ``"root"`` or ``"nodes"``.
        vocabulary_size: Number of words.
        num_labels: Number of labels of the classifier.

    Returns:
        The workload.
    """
    return over_constituency_trees(
        "mv-rnn",
        "A matrix-vector recursive network (Socher et al. 2012)",
        (classify_root, classify_nodes),
        partial(init_params, num_labels=num_labels),
        classify=classify,
        vocabulary_size=vocabulary_size,
        zoo_data=GUM,
    )
