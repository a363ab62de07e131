"""The doubly recurrent decoder of trees: a tree is read, and grown again top-down.

Source: Alvarez-Melis, Jaakkola, "Tree-Structured Decoding with Doubly-Recurrent Neural
Networks", ICLR 2017, section 3: the state of a node comes from an ancestral LSTM, which
has read the labels above it, and a fraternal one, which has read those of the siblings
before it (equations 1 to 3); from it follow the label, and by two numbers of their own
whether children and whether siblings follow (equations 4 and 5), so that no label
stands for an end. Labels do not depend on these two here, so that one look at a node
decides all three. The source is encoded by the child-sum tree-LSTM of Tai et al. 2015
over its words (`tree-lstm-childsum`), whose state at the root is the ancestral state of
the generated root: a tree-to-tree model.

`score_gold` grows the very tree that it reads, for training, and `generate` what it
decides itself, by `edbatch.value`, all open places of an instance at once. The arity of
a node, and where a branch ends, is what was computed.
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

_ROOM = 4  # nodes that a generated tree may have for one of the source


@eb.cell
def first(params: Any) -> State:
    """Gives the fraternal state of a node without siblings before it."""
    return params["first"]["h"], params["first"]["c"]


@eb.cell
def below(params: Any, label: Any, state: State) -> State:
    """Gives the ancestral state of the children of a node of this label."""
    return lstm_step(params["ancestral"], params["label_embedding"][label], state)


@eb.cell
def beside(params: Any, label: Any, state: State) -> State:
    """Gives the fraternal state of the sibling behind a node of this label."""
    return lstm_step(params["fraternal"], params["label_embedding"][label], state)


@eb.cell
def predict(params: Any, ancestral: Array, fraternal: Array) -> dict[str, Array]:
    """Gives the logits of a node's label, ``[L]``, and of what follows it, ``[2]``.

    The two are of a child below it and of a sibling behind it, before the sigmoid.
    """
    own = params["predict"]
    h = jnp.tanh(jnp.concatenate([ancestral, fraternal]) @ own["W"] + own["b"])
    return {
        "label": h @ params["label"]["W"] + params["label"]["b"],
        "follows": h @ params["follows"]["W"] + params["follows"]["b"],
    }


def score_gold(params: Any, tree: Tree) -> list[Any]:
    """Scores the decisions that grow a tree, from the tree itself.

    Args:
        params: Parameters as from `init_params`.
        tree: A tree with a word number at every node, and numbers as labels.

    Returns:
        The logits of `predict` for each of `edbatch.data.decisions`, in its order.

    Example:
        >>> params = init_params(jax.random.key(0), 4, vocabulary_size=9, num_labels=3)
        >>> tree = Tree("2", 8, [Tree("0", 5), Tree("1", 7)])
        >>> [each["label"].shape for each in score_gold(params, tree)]
        [(3,), (3,), (3,)]
    """
    gold = iter(decisions(tree))
    return _grow(params, tree, lambda outputs: islice(gold, len(outputs)))[0]


def generate(params: Any, tree: Tree) -> dict[str, Any]:
    """Grows a tree by the likeliest decisions.

    Args:
        params: Parameters as from `init_params`.
        tree: The source, of which words and shape are read, not labels.

    Returns:
        ``label``, ``down``, ``on``: lists of integers, the decisions, of which
        `edbatch.data.tree_from_decisions` makes a tree; ``logits``: those of `predict`
        for each. The tree has at most four nodes for each of the source.

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
    """Grows the tree that ``decide`` wants; returns logits and decisions."""
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
        key: A key of `jax.random`.
        hidden: Length of states, and of the vectors of words and labels, H.
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
    """Replaces words by their numbers, and labels by theirs, as digits.

    Args:
        trees: Trees of strings.
        vocabulary: The numbers of words and ``"labels"``; what it lacks becomes 0.

    Returns:
        The trees of numbers.
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
    """Samples dependency trees whose labels follow from their words.

    Args:
        rng: The random generator.
        count: How many.
        vocabulary_size: Words are integers below it.
        num_labels: Labels are integers below it, as digits.

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
        num_labels: Number of labels of the nodes to generate.

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
