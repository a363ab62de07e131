"""A child-sum tree-LSTM over dependency trees.

Source: Tai, Socher, Manning, "Improved Semantic Representations From Tree-Structured
Long Short-Term Memory Networks", ACL 2015, section 3.1, equations 2 to 8. Every node
has a word and any number of children. Nodes without children have a separate cell,
which omits the empty sums. All children share one forget matrix.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.nn import sigmoid

import edbatch as eb
from edbatch.data import Tree, read_dependency_trees, sample_dependency_trees
from edbatch.models.shared.constituency import number_trees
from edbatch.models.shared.gates import from_input, gates, linked
from edbatch.models.shared.initial_params import affine, embedding
from edbatch.models.shared.initial_params import gates as init_gates
from edbatch.models.shared.label_classifier import classify
from edbatch.models.shared.workload import Workload

State = tuple[Array, Array]  # h and c, each [H]


@eb.cell
def leaf(params: Any, word: Any) -> State:
    """Returns the state of a node without children, ``h`` and ``c``."""
    i, o, u = from_input(params["gates"], "iou", params["embedding"][word])
    c = sigmoid(i) * jnp.tanh(u)
    return sigmoid(o) * jnp.tanh(c), c


# Few lengths: more padding costs less than the batches of more types (measured with
# hidden=64 and hidden=256).
@eb.cell(padded=("children",), lengths=(4, 16, 64))
def head(params: Any, word: Any, children: State, mask: Array) -> State:
    """Returns the state of a node from its word and its children's states.

    The children arrive as ``h`` and ``c``, each ``[K, H]``. The mask ``[K]`` is true
    for children and false for padding.
    """
    h, c = children
    exists = mask[:, None]
    own, x = params["gates"], params["embedding"][word]
    i, o, u = gates(own, "iou", x, jnp.sum(h, axis=0, where=exists))
    f = linked(own["f"], x, h)
    kept = jnp.sum(sigmoid(f) * c, axis=0, where=exists)
    c = sigmoid(i) * jnp.tanh(u) + kept
    return sigmoid(o) * jnp.tanh(c), c


def classify_root(params: Any, tree: Tree) -> dict[str, Any]:
    """Encodes a dependency tree and classifies it.

    Args:
        params: Parameters, as returned by `init_params`.
        tree: A tree with a word index at every node.

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
        key: A `jax.random` key.
        hidden: Length of states and word vectors, H.
        vocabulary_size: Number of words.
        num_labels: Number of labels, L.

    Returns:
        Nested dicts of float32 arrays.
    """
    words, own, output = jax.random.split(key, 3)
    return {
        "embedding": embedding(words, vocabulary_size, hidden),
        "gates": init_gates(own, "iouf", hidden, hidden),
        "classify": affine(output, hidden, num_labels),
    }


def workload(vocabulary_size: int = 10_000, num_labels: int = 5) -> Workload:
    """Builds ``"tree-lstm-childsum"``.

    Args:
        vocabulary_size: Number of words.
        num_labels: Number of labels of the classifier.

    Returns:
        The workload.
    """
    return Workload(
        name="tree-lstm-childsum",
        description=(
            "A child-sum tree-LSTM (Tai et al. 2015) over dependency trees, with a"
            " classifier at the root."
        ),
        reads="CoNLL-U",
        vocabulary_size=vocabulary_size,
        model=classify_root,
        init_params=partial(
            init_params, vocabulary_size=vocabulary_size, num_labels=num_labels
        ),
        read_text=read_dependency_trees,
        words=Tree.words,
        number=number_trees,
        sample=partial(sample_dependency_trees, vocabulary_size=vocabulary_size),
        zoo_data=("ud_english_ewt",),
    )
