"""An N-ary tree-GRU over constituency trees.

Source: the gated recurrent unit of Cho et al., "Learning Phrase Representations using
RNN Encoder-Decoder for Statistical Machine Translation", EMNLP 2014, made N-ary as Tai,
Socher, Manning, ACL 2015, do for the LSTM. In this variant each child has its own reset
gate, and the update gates of the candidate and of the children sum to one in every
component, by a softmax, as in Chen et al., "Sentence Modeling with Gated Recursive
Neural Network", EMNLP 2015. Unlike there, the update gates are computed from the
children only, not from the candidate. With one child this is the GRU itself, and a leaf
is a GRU step from the zero state.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.nn import sigmoid, softmax

import edbatch as eb
from edbatch.data import Tree
from edbatch.models.shared.constituency import GUM, over_constituency_trees
from edbatch.models.shared.gates import check_children, from_children, from_input
from edbatch.models.shared.initial_params import affine, child_gate, embedding
from edbatch.models.shared.initial_params import gates as init_gates
from edbatch.models.shared.label_classifier import classify
from edbatch.models.shared.tree_classifier import node_classifier, root_classifier
from edbatch.models.shared.workload import Workload


@eb.cell
def leaf(params: Any, word: Any) -> Array:
    """Returns the state of a leaf, ``[H]``, from the index of its word."""
    z, u = from_input(params["leaf"], "zu", params["embedding"][word])
    return sigmoid(z) * jnp.tanh(u)


@eb.cell
def compose(params: Any, children: list[Array]) -> Array:
    """Returns the state of a node from the states of its ``K`` children.

    Every gate has a matrix per child, and every child has a reset and an update gate. A
    node with fewer than ``N`` children uses the first ``K`` matrices and gates.
    """
    own = params["compose"]
    count = len(children)
    check_children(count, len(own["r"]))
    resets = [sigmoid(from_children(each, children)) for each in own["r"][:count]]
    kept = [reset * h for reset, h in zip(resets, children, strict=True)]
    new = jnp.tanh(from_children(own["u"], kept))
    updates = [from_children(each, children) for each in (own["z"], *own["zs"][:count])]
    shares = softmax(jnp.stack(updates), axis=0)  # [1 + K, H]
    return jnp.sum(shares * jnp.stack([new, *children]), axis=0)


def states(params: Any, tree: Tree) -> list[Array]:
    """Encodes a tree.

    Args:
        params: Parameters, as returned by `init_params`.
        tree: A tree with word indices at its leaves, at most ``N`` children per node.

    Returns:
        The state of every node, ``[H]`` each, children before their parent.
    """
    return tree.fold_all(
        lambda node: leaf(params, node.word),
        lambda _, children: compose(params, children),
    )


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
        Nested dicts and lists of float32 arrays.
    """
    words, leaf, compose, output = jax.random.split(key, 4)
    u, z, *gates = (
        child_gate(each, arity, hidden)
        for each in jax.random.split(compose, 2 + 2 * arity)
    )
    return {
        "embedding": embedding(words, vocabulary_size, hidden),
        "leaf": init_gates(leaf, "zu", hidden, hidden, affine),
        # The candidate, its update gate, the children's update and reset gates.
        "compose": {"u": u, "z": z, "zs": gates[:arity], "r": gates[arity:]},
        "classify": affine(output, hidden, num_labels),
    }


def workload(
    arity: int = 2,
    classify: str = "root",
    vocabulary_size: int = 10_000,
    num_labels: int = 5,
) -> Workload:
    """Builds ``"tree-gru"``.

    Args:
        arity: Largest number of children of a node; 2 binarizes treebanks.
        classify: What the model classifies: ``"root"`` or ``"nodes"``.
        vocabulary_size: Number of words.
        num_labels: Number of labels of the classifier.

    Returns:
        The workload.
    """
    return over_constituency_trees(
        "tree-gru",
        "An N-ary tree-GRU (Cho et al. 2014, over children)",
        (classify_root, classify_nodes),
        partial(init_params, arity=arity, num_labels=num_labels),
        arity=arity,
        classify=classify,
        vocabulary_size=vocabulary_size,
        zoo_data=GUM,
    )
