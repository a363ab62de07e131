"""An N-ary tree-LSTM over constituency trees.

Source: Tai, Socher, Manning, "Improved Semantic Representations From Tree-Structured
Long Short-Term Memory Networks", ACL 2015, section 3.2, equations 9 to 14. Only leaves
have words, so the equations of a leaf have no child terms and those of an inner node no
input term, as in the paper's constituency model. Leaves and inner nodes have separate
cells.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.nn import sigmoid

import edbatch as eb
from edbatch.data import Tree
from edbatch.models.shared.constituency import GUM, over_constituency_trees
from edbatch.models.shared.gates import from_children, from_input
from edbatch.models.shared.initial_params import affine, child_gate, embedding
from edbatch.models.shared.initial_params import gates as init_gates
from edbatch.models.shared.label_classifier import classify
from edbatch.models.shared.tree_classifier import node_classifier, root_classifier
from edbatch.models.shared.workload import Workload

State = tuple[Array, Array]  # h and c, each [H]


@eb.cell
def leaf(params: Any, word: Any) -> State:
    """Returns the state of a leaf, ``h`` and ``c``, from the index of its word."""
    i, o, u = from_input(params["leaf"], "iou", params["embedding"][word])
    c = sigmoid(i) * jnp.tanh(u)
    return sigmoid(o) * jnp.tanh(c), c


@eb.cell
def compose(params: Any, children: list[State]) -> State:
    """Returns the state of a node from the states of its ``K`` children.

    Every gate has a matrix per child, and every child has a forget gate. A node with
    fewer than ``N`` children uses the first ``K`` matrices and forget gates.
    """
    own = params["compose"]
    h = [h for h, _ in children]
    i, o, u = (from_children(own[name], h) for name in "iou")
    c = sigmoid(i) * jnp.tanh(u)
    for gate, (_, c_k) in zip(own["f"], children, strict=False):
        c = c + sigmoid(from_children(gate, h)) * c_k
    return sigmoid(o) * jnp.tanh(c), c


def states(params: Any, tree: Tree) -> list[Array]:
    """Encodes a tree.

    Args:
        params: Parameters, as returned by `init_params`.
        tree: A tree with word indices at its leaves, at most ``N`` children per node.

    Returns:
        ``h`` of every node, ``[H]`` each, children before their parent.
    """
    found = tree.fold_all(
        lambda node: leaf(params, node.word),
        lambda _, children: compose(params, children),
    )
    return [h for h, _ in found]


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
    keys = jax.random.split(key, 4)
    return {
        "embedding": embedding(keys[0], vocabulary_size, hidden),
        "leaf": init_gates(keys[1], "iou", hidden, hidden, affine),
        "compose": init_compose(keys[2], arity, hidden),
        "classify": affine(keys[3], hidden, num_labels),
    }


def init_compose(key: Array, arity: int, hidden: int) -> dict[str, Any]:
    """Samples the parameters of `compose`.

    Args:
        key: A `jax.random` key.
        arity: Largest number of children of a node, N.
        hidden: Length of states, H.

    Returns:
        The gates ``i``, ``o``, ``u``, and ``f``, a list with one gate per child;
        float32.
    """
    i, o, u, *f = (
        child_gate(each, arity, hidden) for each in jax.random.split(key, 3 + arity)
    )
    return {"i": i, "o": o, "u": u, "f": f}


def workload(
    arity: int = 2,
    classify: str = "root",
    vocabulary_size: int = 10_000,
    num_labels: int = 5,
) -> Workload:
    """Builds ``"tree-lstm"``.

    Args:
        arity: Largest number of children of a node; 2 binarizes treebanks.
        classify: What the model classifies: ``"root"`` or ``"nodes"``.
        vocabulary_size: Number of words.
        num_labels: Number of labels of the classifier.

    Returns:
        The workload.
    """
    return over_constituency_trees(
        "tree-lstm",
        "An N-ary tree-LSTM (Tai et al. 2015)",
        (classify_root, classify_nodes),
        partial(init_params, arity=arity, num_labels=num_labels),
        arity=arity,
        classify=classify,
        vocabulary_size=vocabulary_size,
        zoo_data=GUM,
    )
