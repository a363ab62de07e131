"""The child-sum tree-LSTM over dependency trees.

Source: Tai, Socher, Manning, "Improved Semantic Representations From Tree-Structured
Long Short-Term Memory Networks", ACL 2015, section 3.1, equations 2 to 8. Every node
has a word, and any number of children. Nodes without children are a cell of their own,
which leaves out the sums over nothing. All children share one forget matrix, and the
matrices of the gates i, o and u stand side by side.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.nn import sigmoid

import edbatch as eb
from edbatch.data import Tree
from edbatch.models.initial_params import affine, embedding

State = tuple[Array, Array]  # h and c, each [H]


@eb.cell
def leaf(params: Any, word: Array) -> State:
    """Gives the state of a node without children, ``h`` and ``c``."""
    i, o, u, _ = _word_gates(params, word)
    c = sigmoid(i) * jnp.tanh(u)
    return sigmoid(o) * jnp.tanh(c), c


# Few lengths: more padding costs less than the batches of more types (measured at
# hidden 64 and 256).
@eb.cell(padded=("children",), lengths=(4, 16, 64))
def head(params: Any, word: Array, children: State, mask: Array) -> State:
    """Gives the state of a node from its word and its children's states.

    The children arrive as ``h`` and ``c``, each ``[K, H]``, of which those count where
    the mask ``[K]`` is true.
    """
    h, c = children
    exists = mask[:, None]
    word_i, word_o, word_u, word_f = _word_gates(params, word)
    h_sum = jnp.sum(h, axis=0, where=exists)
    i, o, u = jnp.split(h_sum @ params["sum"]["W"], 3)
    f = h @ params["forget"]["W"]  # [K, H]
    kept = jnp.sum(sigmoid(f + word_f[None]) * c, axis=0, where=exists)
    c = sigmoid(i + word_i) * jnp.tanh(u + word_u) + kept
    return sigmoid(o + word_o) * jnp.tanh(c), c


@eb.cell
def classify(params: Any, h: Array) -> Array:
    """Gives the logits of a node's label, ``[L]``."""
    return h @ params["classify"]["W"] + params["classify"]["b"]


def _word_gates(params: Any, word: Array) -> list[Array]:
    """The terms of a word in the gates i, o, u and f, biases included."""
    gates = params["embedding"][word] @ params["word"]["W"] + params["word"]["b"]
    return jnp.split(gates, 4)


def classify_root(params: Any, tree: Tree) -> dict[str, Any]:
    """Encodes a dependency tree and classifies it.

    Args:
        params: Parameters as from `init_params`.
        tree: A tree with a word number at every node.

    Returns:
        ``state``: the root's ``h``, ``[H]``; ``logits``: ``[L]``.

    Example:
        >>> from edbatch.data import Tree
        >>> params = init_params(jax.random.key(0), hidden=4, vocabulary_size=9)
        >>> tree = Tree(word=1, children=[Tree(word=3), Tree(word=5), Tree(word=2)])
        >>> classify_root(params, tree)["logits"].shape
        (5,)
    """
    h, _ = tree.fold(
        lambda node: leaf(params, node.word),
        lambda node, children: head(params, node.word, children),
    )
    return {"state": h, "logits": classify(params, h)}


def init_params(
    key: Array, hidden: int, vocabulary_size: int, *, num_labels: int = 5
) -> dict[str, Any]:
    """Samples parameters.

    Args:
        key: A key of `jax.random`.
        hidden: Length of states and word vectors, H.
        vocabulary_size: Number of words.
        num_labels: Number of labels, L.

    Returns:
        Nested dicts of float32 arrays.
    """
    keys = jax.random.split(key, 5)
    return {
        "embedding": embedding(keys[0], vocabulary_size, hidden),
        "word": affine(keys[1], hidden, 4 * hidden),
        "sum": {"W": affine(keys[2], hidden, 3 * hidden)["W"]},
        "forget": {"W": affine(keys[3], hidden, hidden)["W"]},
        "classify": affine(keys[4], hidden, num_labels),
    }
