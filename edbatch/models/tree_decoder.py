"""A doubly recurrent tree decoder: encodes a tree and generates it again top-down.

Source: Alvarez-Melis, Jaakkola, "Tree-Structured Decoding with Doubly-Recurrent Neural
Networks", ICLR 2017, section 3: the state of a node combines an ancestral LSTM, which
has read the labels of its ancestors, and a fraternal LSTM, which has read the labels of
its previous siblings (equations 1 to 3). The state predicts the node's label, and with
two separate outputs whether children and whether siblings follow (equations 4 and 5),
so there is no end label. Here labels do not depend on these two predictions, so the
label and both predictions are read at once. The source is encoded by the child-sum
tree-LSTM of Tai et al. 2015 over its words (`tree-lstm-childsum`). The encoder's state
at the root is the ancestral state of the generated root, which makes this a
tree-to-tree model.

`score_gold` generates the tree that it reads, for training. `generate` follows its own
decisions, which it reads with `edbatch.value` for all open places of an instance at
once. The arity of a node and the end of a branch are therefore computed values.
"""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import edbatch as eb
from edbatch.data import (
    LabelledVocabulary,
    Tree,
    index_tree,
    read_dependency_trees,
    sample_dependency_trees,
)
from edbatch.data.tree_decisions import Decision, decisions, grow
from edbatch.models import tree_lstm_childsum
from edbatch.models.shared.gates import lstm_step
from edbatch.models.shared.initial_params import affine, embedding
from edbatch.models.shared.initial_params import gates as init_gates
from edbatch.models.shared.workload import Labels, Workload

State = tuple[Array, Array]  # h and c, each [H]
Decide = Callable[[list[Any]], Iterable[Decision]]  # outputs of `predict` -> decisions

_ROOM = 4  # most nodes of a generated tree per node of the source


@eb.cell
def first(params: Any) -> State:
    """Returns the fraternal state of a node without previous siblings."""
    return params["first"]["h"], params["first"]["c"]


@eb.cell
def below(params: Any, label: Any, state: State) -> State:
    """Returns the ancestral state of the children of a node with this label."""
    return lstm_step(params["ancestral"], params["label_embedding"][label], state)


@eb.cell
def beside(params: Any, label: Any, state: State) -> State:
    """Returns the fraternal state of the next sibling of a node with this label."""
    return lstm_step(params["fraternal"], params["label_embedding"][label], state)


@eb.cell
def predict(params: Any, ancestral: Array, fraternal: Array) -> dict[str, Array]:
    """Returns the logits of a node's label, ``[L]``, and of what follows, ``[2]``.

    The two logits of ``follows`` are for a child and for a next sibling.
    """
    own = params["predict"]
    h = jnp.tanh(jnp.concatenate([ancestral, fraternal]) @ own["W"] + own["b"])
    return {
        "label": h @ params["label"]["W"] + params["label"]["b"],
        "follows": h @ params["follows"]["W"] + params["follows"]["b"],
    }


def score_gold(params: Any, tree: Tree) -> list[Any]:
    """Scores the decisions that generate a tree from its own encoding.

    Args:
        params: Parameters, as returned by `init_params`.
        tree: A tree with a word index at every node, and label indices as labels.

    Returns:
        The outputs of `predict` for each of `edbatch.data.decisions`, in its order.

    Example:
        >>> params = init_params(jax.random.key(0), 4, vocabulary_size=9, num_labels=3)
        >>> tree = Tree("2", 8, [Tree("0", 5), Tree("1", 7)])
        >>> [each["label"].shape for each in score_gold(params, tree)]
        [(3,), (3,), (3,)]
    """
    gold = iter(decisions(tree))
    return _grow(params, tree, lambda outputs: islice(gold, len(outputs)))[0]


def generate(params: Any, tree: Tree) -> dict[str, Any]:
    """Generates a tree greedily: takes the likeliest decision at each place.

    Args:
        params: Parameters, as returned by `init_params`.
        tree: The source; its words and shape are read, not its labels.

    Returns:
        ``label``, ``down``, ``on``: the decisions as lists of integers, from which
        `edbatch.data.tree_from_decisions` builds a tree; ``logits``: the outputs of
        `predict` for each decision. The tree has at most four times as many nodes as
        the source.

    Example:
        >>> from edbatch.data import tree_from_decisions
        >>> params = init_params(jax.random.key(0), 4, vocabulary_size=9, num_labels=3)
        >>> found = generate(params, Tree("2", 8, [Tree("0", 5), Tree("1", 7)]))
        >>> grown = zip(found["label"], found["down"], found["on"])
        >>> tree_from_decisions(grown).num_nodes() == len(found["logits"])
        True
    """
    most = _ROOM * tree.num_nodes()
    opened = 1  # places, the root's included

    def decide(outputs: list[Any]) -> Iterable[Decision]:
        nonlocal opened
        for each in eb.value(outputs):
            is_root = opened == 1
            down, on = (each["follows"] > 0).tolist()
            down = down and opened < most
            opened += down
            on = on and opened < most and not is_root
            opened += on
            yield Decision(int(np.argmax(each["label"])), down, on)

    logits, found = _grow(params, tree, decide)
    return {
        "label": [each.label for each in found],
        "down": [int(each.down) for each in found],
        "on": [int(each.on) for each in found],
        "logits": logits,
    }


def _grow(params: Any, tree: Tree, decide: Decide) -> tuple[list[Any], list[Decision]]:
    """Grows a tree by the decisions of ``decide``; returns logits and decisions."""
    encoder = params["encoder"]
    root = tree.fold(
        lambda node: tree_lstm_childsum.leaf(encoder, node.word),
        lambda node, children: tree_lstm_childsum.head(encoder, node.word, children),
    )
    oldest = first(params)
    logits: list[Any] = []

    def decide_round(places: list[Any]) -> Iterable[Decision]:
        outputs = [predict(params, up[0], before[0]) for up, before in places]
        logits.extend(outputs)
        return decide(outputs)

    found = grow(
        (root, oldest),
        decide_round,
        child=lambda place, own: (below(params, int(own.label), place[0]), oldest),
        sibling=lambda place, own: (
            place[0],
            beside(params, int(own.label), place[1]),
        ),
    )
    return logits, found


def init_params(
    key: Array, hidden: int, vocabulary_size: int, *, num_labels: int = 60
) -> dict[str, Any]:
    """Samples parameters.

    Args:
        key: A `jax.random` key.
        hidden: Length of the states and of the vectors of words and labels, H.
        vocabulary_size: Number of words.
        num_labels: Number of labels, L.

    Returns:
        Nested dicts of float32 arrays.
    """
    keys = jax.random.split(key, 7)
    encoder = tree_lstm_childsum.init_params(keys[0], hidden, vocabulary_size)
    zero = jnp.zeros(hidden, jnp.float32)
    return {
        "encoder": {name: encoder[name] for name in ("embedding", "gates")},
        "first": {"h": zero, "c": zero},
        "label_embedding": embedding(keys[1], num_labels, hidden),
        "ancestral": init_gates(keys[2], "ifou", hidden, hidden),
        "fraternal": init_gates(keys[3], "ifou", hidden, hidden),
        "predict": affine(keys[4], 2 * hidden, hidden),
        "label": affine(keys[5], hidden, num_labels),
        "follows": affine(keys[6], hidden, 2),
    }


def number_labels(trees: list[Tree], vocabulary: LabelledVocabulary) -> list[Tree]:
    """Replaces words by their indices, and labels by their indices as decimal strings.

    Args:
        trees: Trees of strings.
        vocabulary: The vocabulary of words, with labels ``"labels"``. Unknown words and
            labels become 0.

    Returns:
        The trees of indices.
    """
    words, labels = vocabulary.words, vocabulary.labels["labels"]

    def number(node: Tree, children: list[Tree]) -> Tree:
        return Tree(str(labels.index(str(node.label))), node.word, tuple(children))

    return [
        index_tree(tree, words).fold(lambda leaf: number(leaf, []), number)
        for tree in trees
    ]


def sample_labelled(
    rng: np.random.Generator, count: int, vocabulary_size: int, num_labels: int
) -> list[Tree]:
    """Samples dependency trees whose labels are determined by their words.

    Args:
        rng: The random generator.
        count: Number of trees.
        vocabulary_size: Words are integers below this number.
        num_labels: Labels are integers below this number, as decimal strings.

    Returns:
        The trees.
    """

    def label(node: Tree, children: list[Tree]) -> Tree:
        assert isinstance(node.word, int)
        return Tree(str(node.word % num_labels), node.word, tuple(children))

    return [
        tree.fold(lambda leaf: label(leaf, []), label)
        for tree in sample_dependency_trees(rng, count, vocabulary_size)
    ]


def workload(vocabulary_size: int = 10_000, num_labels: int = 60) -> Workload:
    """Builds ``"tree-decoder"``.

    Args:
        vocabulary_size: Number of words.
        num_labels: Number of labels of the generated nodes.

    Returns:
        The workload.
    """
    return Workload(
        name="tree-decoder",
        description=(
            "A doubly recurrent decoder (Alvarez-Melis and Jaakkola 2017) that grows a"
            " dependency tree again from its encoding, with the logits of each node."
        ),
        reads="CoNLL-U",
        vocabulary_size=vocabulary_size,
        model=score_gold,
        decode=generate,
        init_params=partial(
            init_params, vocabulary_size=vocabulary_size, num_labels=num_labels
        ),
        read_text=read_dependency_trees,
        words=Tree.words,
        number=number_labels,
        labels=(
            Labels(
                "labels",
                lambda tree: [str(node.label) for node in tree.postorder()],
                num_labels,
            ),
        ),
        sample=partial(
            sample_labelled, vocabulary_size=vocabulary_size, num_labels=num_labels
        ),
    )
