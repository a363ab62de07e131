"""How positive is a sentence, and each of its phrases? A tree-LSTM classifier.

Source: Tai, Socher, Manning, "Improved Semantic Representations From Tree-Structured
Long Short-Term Memory Networks", ACL 2015, sections 4.1 and 5.1: an N-ary tree-LSTM
over binary constituency trees, a label from 0 (very negative) to 4 at every node,
Adagrad with steps of 0.05. Word vectors are trained with the rest and begin at random.
The epoch with the most roots right in `dev.txt` is the best one; what it reaches on
`test.txt` is reported. In a clone, for a folder with the Stanford sentiment treebank:

    pip install -e ".[plot]"
    python experiments/train_sentiment.py --data path/to/trees
    python experiments/train_sentiment.py --data path/to/trees --resume
    python experiments/train_sentiment.py

`--data` names a folder with `train.txt`, `dev.txt` and `test.txt`, a tree like
`(3 (2 It) (4 (4 works) (2 .)))` per line. Without it, trees are made up by a rule:
words have values, a phrase has the sum of its parts', and `not` turns its sister's.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax import Array

import edbatch as eb
from edbatch.data import DataError, Tree, Vocabulary, index_tree, read_trees
from edbatch.models import tree_lstm

from arguments import option, parse_arguments
from evaluation import SIZES, judge_label, mean_loss, run_all
from training import History, Task, TrainingArguments, run

PARTS = ("train", "dev", "test")
LABELS = ("0", "1", "2", "3", "4")
_MADE_UP = "made up"
_VALUES = {"not": 0, "bad": -1, "awful": -2, "good": 1, "great": 2, "film": 0, "a": 0}


@dataclass(frozen=True)
class Arguments(TrainingArguments):
    data: str = option(_MADE_UP, "Folder of the treebank; without it, made-up trees.")
    out: Path = option(Path("sentiment"), "Folder for checkpoints, metrics and curve.")
    min_count: int = option(2, "Rarer words share one vector, that of unknown words.")
    trees: int = option(1000, "How many trees are made up to train on.")


def sentiment(params: Any, tree: Tree) -> dict[str, Any]:
    """The model, for one tree: the losses of all nodes, and that of the root."""
    logits = tree_lstm.classify_nodes(params, tree)["logits"]
    nodes = [
        judge_label(each, int(node.label))
        for each, node in zip(logits, tree.postorder(), strict=True)
    ]
    return {"nodes": nodes, "root": nodes[-1]}


def read_part(path: Path) -> list[Tree]:
    """Reads one of the three files, and checks labels and arity."""
    trees = read_trees(path)
    for number, tree in enumerate(trees, start=1):
        for node in tree.postorder():
            if node.label not in LABELS or len(node.children) not in (0, 2):
                raise DataError(
                    f"{path}, tree {number}: every node must have a label from 0 to 4"
                    f" and two children or a word; found {node!r}; usually a treebank"
                    " of another kind, or one that was not binarized; give the Stanford"
                    " sentiment treebank"
                )
    return trees


def make_up(rng: np.random.Generator, count: int) -> list[Tree]:
    """Makes up trees whose labels follow from their words."""
    return [_phrase(rng, int(rng.integers(2, 9)))[0] for _ in range(count)]


def _phrase(rng: np.random.Generator, words: int) -> tuple[Tree, int]:
    if words == 1:
        word = str(rng.choice(list(_VALUES)[1:]))
        return _labelled(_VALUES[word], word=word)
    if rng.random() < 0.2:
        sister, value = _phrase(rng, words - 1)
        return _labelled(-value, children=(_labelled(0, word="not")[0], sister))
    first = int(rng.integers(1, words))
    parts = [_phrase(rng, first), _phrase(rng, words - first)]
    return _labelled(
        sum(value for _, value in parts), children=tuple(tree for tree, _ in parts)
    )


def _labelled(value: int, **parts: Any) -> tuple[Tree, int]:
    value = min(2, max(-2, value))
    return Tree(str(value + 2), **parts), value


def read_all(arguments: Arguments) -> dict[str, list[Tree]]:
    if arguments.data != _MADE_UP:
        return {name: read_part(Path(arguments.data, f"{name}.txt")) for name in PARTS}
    rng = np.random.default_rng(arguments.seed)
    sizes = (arguments.trees, *(max(1, arguments.trees // 5),) * 2)
    return {name: make_up(rng, size) for name, size in zip(PARTS, sizes, strict=True)}


def accuracies(outputs: list[tuple[np.ndarray, dict[str, Any]]]) -> dict[str, float]:
    """Returns the shares of roots and of nodes whose likeliest label is right."""
    roots = np.concatenate([each["root"]["right"] for _, each in outputs])
    nodes = [each["nodes"] for _, each in outputs]
    right = np.concatenate([each.values["right"][each.mask] for each in nodes])
    return {"roots": float(roots.mean()), "nodes": float(right.mean())}


def make_task(arguments: Arguments) -> Task:
    text = read_all(arguments)
    vocabulary = Vocabulary(
        (word for tree in text["train"] for word in tree.words()),
        min_count=arguments.min_count,
    )
    trees = {
        name: [index_tree(tree, vocabulary) for tree in part]
        for name, part in text.items()
    }
    params = tree_lstm.init_params(
        jax.random.key(arguments.seed), arguments.hidden, len(vocabulary)
    )
    batched = eb.batch(sentiment, params=params, sizes=SIZES)
    dev, test = (
        run_all(batched, trees[name], 4 * arguments.batch_size) for name in PARTS[1:]
    )

    def loss(params: Any, plan: eb.Plan, _: None) -> Array:
        return mean_loss(batched.apply(params, plan)["nodes"])

    return Task(
        name="sentiment of phrases, tree-LSTM",
        batched=batched,
        params=params,
        loss=loss,
        optimizer=optax.adagrad(arguments.learning_rate),
        instances=trees["train"],
        judge=partial(_judged, dev),
        test=partial(_judged, test),
    )


def _judged(run: Any, params: Any) -> dict[str, float]:
    return accuracies(run(params))


def main(arguments: Arguments) -> History:
    return run(make_task(arguments), arguments)


if __name__ == "__main__":
    eb.keep_memory()
    main(parse_arguments(Arguments, __doc__))
