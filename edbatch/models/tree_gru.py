"""The N-ary tree-GRU over constituency trees.

Source: the gated recurrent unit of Cho et al., "Learning Phrase Representations using
RNN Encoder-Decoder for Statistical Machine Translation", EMNLP 2014, made N-ary as
Tai, Socher, Manning, ACL 2015, do for the LSTM. The variant: each child has a reset
gate of its own, and the update gates of the candidate and of the children sum to one
in every component, by a softmax, as in Chen et al., "Sentence Modeling with Gated
Recursive Neural Network", EMNLP 2015, but computed from the children alone, so that
all gates are one product. With one child this is the GRU itself, and a leaf is a GRU
step from the zero state.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.nn import sigmoid, softmax

import edbatch as eb
from edbatch.data import Tree
from edbatch.models.initial_params import affine, embedding


@eb.cell
def leaf(params: Any, word: Array) -> Array:
    """Gives the state of a leaf, ``[H]``, from its word's number."""
    gates = params["embedding"][word] @ params["leaf"]["W"] + params["leaf"]["b"]
    z, u = jnp.split(gates, 2)
    return sigmoid(z) * jnp.tanh(u)


@eb.cell
def compose(params: Any, children: list[Array]) -> Array:
    """Gives the state of a node from those of its ``K`` children.

    The matrix of the gates is ``[N H, (1 + 2 N) H]`` for up to ``N`` children: rows
    for the children in order, columns for the update gate of the candidate, then an
    update and a reset gate per child. The candidate's is ``[N H, H]``. A node with
    fewer children uses the first rows and columns.
    """
    h = jnp.concatenate(children)  # [K H]
    size = len(h) // len(children)
    used = (1 + 2 * len(children)) * size
    W, b = params["gates"]["W"], params["gates"]["b"]
    z_new, *gates = jnp.split(h @ W[: len(h), :used] + b[:used], used // size)
    z = softmax(jnp.stack([z_new, *gates[::2]]), axis=0)  # [1 + K, H]
    reset = sigmoid(jnp.concatenate(gates[1::2])) * h
    W, b = params["candidate"]["W"], params["candidate"]["b"]
    new = jnp.tanh(reset @ W[: len(h)] + b)
    return jnp.sum(z * jnp.stack([new, *children]), axis=0)


@eb.cell
def classify(params: Any, h: Array) -> Array:
    """Gives the logits of a node's label, ``[L]``."""
    return h @ params["classify"]["W"] + params["classify"]["b"]


def classify_root(params: Any, tree: Tree) -> dict[str, Any]:
    """Encodes a tree and classifies it as a whole.

    Args:
        params: Parameters as from `init_params`.
        tree: A tree with word numbers at its leaves, at most ``N`` children per node.

    Returns:
        ``state``: the root's state, ``[H]``; ``logits``: ``[L]``.

    Example:
        >>> from edbatch.data import Tree
        >>> params = init_params(jax.random.key(0), hidden=4, vocabulary_size=9)
        >>> tree = Tree(children=[Tree(word=3), Tree(word=5)])
        >>> classify_root(params, tree)["logits"].shape
        (5,)
    """
    h = tree.fold(
        lambda node: leaf(params, node.word),
        lambda _, children: compose(params, children),
    )
    return {"state": h, "logits": classify(params, h)}


def classify_nodes(params: Any, tree: Tree) -> dict[str, Any]:
    """Encodes a tree and classifies every node.

    Args:
        params: Parameters as from `init_params`.
        tree: A tree as for `classify_root`.

    Returns:
        ``state``: the root's state, ``[H]``; ``logits``: a list with one ``[L]`` per
        node, children before their parent.

    Example:
        >>> from edbatch.data import Tree
        >>> params = init_params(jax.random.key(0), hidden=4, vocabulary_size=9)
        >>> tree = Tree(children=[Tree(word=3), Tree(word=5)])
        >>> len(classify_nodes(params, tree)["logits"])
        3
    """
    logits: list[Array] = []

    def classified(h: Array) -> Array:
        logits.append(classify(params, h))
        return h

    h = tree.fold(
        lambda node: classified(leaf(params, node.word)),
        lambda _, children: classified(compose(params, children)),
    )
    return {"state": h, "logits": logits}


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
        key: A key of `jax.random`.
        hidden: Length of states and word vectors, H.
        vocabulary_size: Number of words.
        arity: Largest number of children of a node, N.
        num_labels: Number of labels, L.

    Returns:
        Nested dicts of float32 arrays.
    """
    keys = jax.random.split(key, 5)
    return {
        "embedding": embedding(keys[0], vocabulary_size, hidden),
        "leaf": affine(keys[1], hidden, 2 * hidden),
        "gates": affine(keys[2], arity * hidden, (1 + 2 * arity) * hidden),
        "candidate": affine(keys[3], arity * hidden, hidden),
        "classify": affine(keys[4], hidden, num_labels),
    }
