"""Can a tree be generated from its own encoding? An autoencoder of dependency trees.

The model is the workload `tree-decoder` of edbatch: a child-sum tree-LSTM reads the
words and the shape of a tree of Universal Dependencies. From the state of its root
alone, a doubly recurrent decoder generates a tree of dependency relations: the relation
of every node and the number of its dependents. It is trained on the trees themselves,
then evaluated on the trees that it generates with its own decisions, decoded through
`edbatch.value`. In a clone, with CoNLL-U files:

    pip install -e ".[plot]"
    python experiments/train_tree_decoder.py --data train.conllu --test-data test.conllu

Add `--resume` to the same command to continue a run that was stopped.

A tenth of the training trees is held out to choose the best epoch. `nodes` is the F1
score of nodes; a node is right if the other tree has the same relation at the same
place, the path of child indices from the root. `edges` is the F1 score of pairs of a
head's and its dependent's relation, at any place. (Alvarez-Melis and Jaakkola 2017
report precision and recall of nodes and edges.) `exact` is the share of trees generated
without any error. `perplexity` is the perplexity of the gold trees per node, given the
previous nodes: of the relation, of whether a dependent follows, and of whether a
sibling follows.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax import Array

import edbatch as eb
from edbatch.data import (
    LabelledVocabulary,
    Tree,
    Vocabulary,
    decisions,
    tree_from_decisions,
)
from edbatch.models import get_workload
from edbatch.models.tree_decoder import generate, init_params, score_gold

from arguments import option, parse_arguments
from evaluation import SIZES, loss_of_labels, make_decoder, run_all, set_apart
from training import History, Task, TrainingArguments, run

LABELS = 60  # more than a treebank has relations, subtypes included


@dataclass(frozen=True)
class Arguments(TrainingArguments):
    data: Path = option(Path("train.conllu"), "File to train on, or a folder.")
    test_data: Path = option(Path("test.conllu"), "File to test on, or a folder.")
    out: Path = option(Path("tree-decoder"), "Folder for checkpoints and metrics.")
    epochs: int = option(30, "How often to go through the data.")
    batch_size: int = option(32, "Trees per minibatch.")
    learning_rate: float = option(0.003, "Size of the steps of Adam.")
    hidden: int = option(128, "Length of states and word vectors.")
    min_count: int = option(2, "Rarer words share one vector, that of unknown words.")
    weight_decay: float = option(1e-4, "Weight decay of AdamW.")


@eb.cell
def judge_decision(
    logits: dict[str, Array], label: Array, follows: Array, possible: Array
) -> dict[str, Array]:
    """Returns the negative log-likelihood of a node: its label and what follows.

    ``follows`` and ``possible``, ``[2]``, have an entry for a child and one for a
    sibling: 1 if it follows, and 1 if it may follow. The root has no sibling, so
    whether one follows is no decision.
    """
    of_label = -jax.nn.log_softmax(logits["label"])[label]
    of_rest = jax.nn.softplus((1 - 2 * follows) * logits["follows"])
    return {"loss": of_label + (possible * of_rest).sum()}


def losses(params: Any, tree: Tree) -> list[Any]:
    """The training model, for one tree: the loss of each node."""
    pairs = zip(score_gold(params, tree), decisions(tree), strict=True)
    return [
        judge_decision(
            logits,
            int(gold.label),
            np.float32([gold.down, gold.on]),
            np.float32([1, place > 0]),
        )
        for place, (logits, gold) in enumerate(pairs)
    ]


def perplexity(outputs: list[tuple[np.ndarray, eb.Ragged]]) -> float:
    """Returns the exponential of the mean loss of all nodes."""
    found = [each.values["loss"][each.mask] for _, each in outputs]
    return float(np.exp(np.concatenate(found).mean()))


def labelled_places(tree: Tree) -> Counter[Any]:
    """Lists the nodes of a tree: path of child indices from the root, and label."""
    found: Counter[Any] = Counter()
    stack: list[tuple[tuple[int, ...], Tree]] = [((), tree)]
    while stack:
        path, node = stack.pop()
        found[path, node.label] += 1
        stack += [((*path, k), child) for k, child in enumerate(node.children)]
    return found


def labelled_edges(tree: Tree) -> Counter[Any]:
    """Counts the pairs of labels of a node and its child."""
    return Counter(
        (node.label, child.label)
        for node in tree.postorder()
        for child in node.children
    )


def f1(
    parts: Callable[[Tree], Counter[Any]], found: Sequence[Tree], gold: Sequence[Tree]
) -> float:
    """Returns the F1 score of the parts of all trees together."""
    common = total = 0
    for one, other in zip(found, gold, strict=True):
        own, wanted = parts(one), parts(other)
        common += (own & wanted).total()
        total += own.total() + wanted.total()
    return 2 * common / max(1, total)


def agreement(found: Sequence[Tree], gold: Sequence[Tree]) -> dict[str, float]:
    """Compares generated trees with gold trees, without their words.

    Args:
        found: The generated trees.
        gold: The gold trees, as many.

    Returns:
        `nodes`, `edges` and `exact`, from 0 to 1.
    """
    exact = [
        labelled_places(one) == labelled_places(other)
        for one, other in zip(found, gold, strict=True)
    ]
    return {
        "nodes": f1(labelled_places, found, gold),
        "edges": f1(labelled_edges, found, gold),
        "exact": float(np.mean(exact)),
    }


def grower(size: int) -> Callable[[Any, Iterable[Tree]], list[Tree]]:
    """Makes a function that generates trees from their encodings, in minibatches."""
    decode = make_decoder(
        eb.batch(generate, sizes=SIZES), ("label", "down", "on"), size
    )

    def grow(params: Any, sources: Iterable[Tree]) -> list[Tree]:
        return [
            tree_from_decisions(zip(map(str, labels), downs, ons, strict=True))
            for labels, downs, ons in decode(params, sources)
        ]

    return grow


def make_task(arguments: Arguments) -> Task:
    workload = get_workload("tree-decoder", num_labels=LABELS)
    text = workload.read_text(arguments.data)
    words = Vocabulary(
        (word for each in text for word in workload.words(each)),
        min_count=arguments.min_count,
        max_size=workload.vocabulary_size,
    )
    both = text + workload.read_text(arguments.test_data)
    vocabulary = LabelledVocabulary(words, workload.number_labels(both))
    trees = workload.number(both, vocabulary)
    training, held_out = (
        [trees[k] for k in part] for part in set_apart(len(text), arguments.seed)
    )
    params = init_params(
        jax.random.key(arguments.seed), arguments.hidden, len(words), num_labels=LABELS
    )
    batched = eb.batch(losses, params=params, sizes=SIZES)
    size = 4 * arguments.batch_size
    grow = grower(size)

    def judge(part: list[Tree]) -> Callable[[Any], dict[str, float]]:
        outputs = run_all(batched, part, size)
        return lambda params: {
            **agreement(grow(params, part), part),
            "perplexity": perplexity(outputs(params)),
        }

    return Task(
        name=f"trees of {arguments.data.name}, {workload.name}",
        batched=batched,
        params=params,
        loss=loss_of_labels(batched),
        optimizer=optax.adamw(
            arguments.learning_rate, weight_decay=arguments.weight_decay
        ),
        instances=training,
        judge=judge(held_out),
        test=judge(trees[len(text) :]),
    )


def main(arguments: Arguments) -> History:
    return run(make_task(arguments), arguments)


if __name__ == "__main__":
    eb.keep_memory()
    main(parse_arguments(Arguments, __doc__))
