"""How related in meaning are two sentences? A child-sum tree-LSTM on SICK.

Source: Tai, Socher, Manning, "Improved Semantic Representations From Tree-Structured
Long Short-Term Memory Networks", ACL 2015, sections 4.2 and 5.2. Both sentences of a
pair are encoded along their dependency trees with the same cells; the product and the
absolute difference of the two states give the probabilities of the scores 1 to 5; the
loss is the divergence from a sparse target whose mean is the annotated score.

Unlike the paper, which has fixed GloVe vectors, word vectors are initialized at random
and trained, for which 4,500 pairs are few. The paper reports Pearson 0.8676 and a mean
squared error of 0.2532 on the test pairs; expect less here, see
docs/results-training.md. In a clone:

    pip install -e ".[plot]"
    python experiments/train_relatedness.py --data path/to/sick --out sick
    python experiments/train_relatedness.py --data path/to/sick --out sick --resume

`--data` names a folder with `train/`, `dev/` and `test/`. In each of them `a.toks` and
`b.toks` have the tokens of one sentence per line, `a.parents` and `b.parents` the head
of each token (0 for the root), and `sim.txt` the scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.nn import sigmoid

import edbatch as eb
from edbatch.data import DataError, Tree, Vocabulary, index_tree, tree_from_heads
from edbatch.models import tree_lstm_childsum
from edbatch.models.shared import initial_params

from arguments import option, parse_arguments
from evaluation import SIZES, run_all
from training import History, Task, TrainingArguments, run

SCORES = np.arange(1, 6, dtype=np.float32)
_PUBLISHED = "Tai et al. 2015, with GloVe vectors: test pearson 0.8676, mse 0.2532"


@dataclass(frozen=True)
class Arguments(TrainingArguments):
    data: Path = option(Path("sick"), "Folder of SICK, parsed.")
    out: Path = option(Path("relatedness"), "Folder for checkpoints, metrics, curve.")
    epochs: int = option(15, "How often to go through the data.")
    hidden: int = option(150, "Length of the states; Tai et al. have 150.")
    vector: int = option(150, "Length of the word vectors; theirs have 300.")
    similarity: int = option(50, "Width of the layer that compares; theirs has 50.")
    weight_decay: float = option(1e-4, "L2 penalty on all but the word vectors.")
    min_count: int = option(2, "Rarer words share one vector, that of unknown words.")


class Pair(NamedTuple):
    """Two dependency trees; words are strings, or indices after indexing."""

    left: Tree
    right: Tree


@eb.cell
def relate(params: Any, left: Array, right: Array) -> Array:
    """Returns the log-probabilities of the scores, ``[5]``."""
    hidden = sigmoid(
        (left * right) @ params["product"]
        + jnp.abs(left - right) @ params["difference"]
        + params["b"]
    )
    logits = hidden @ params["scores"]["W"] + params["scores"]["b"]
    return jax.nn.log_softmax(logits)


def relatedness(params: Any, pair: Pair) -> Array:
    """The model, for one pair."""
    tree_lstm = params["tree_lstm"]
    left, right = (
        tree.fold(
            lambda node: tree_lstm_childsum.leaf(tree_lstm, node.word),
            lambda node, children: tree_lstm_childsum.head(
                tree_lstm, node.word, children
            ),
        )[0]
        for tree in pair
    )
    return relate(params["relate"], left, right)


def init_params(key: Array, vocabulary_size: int, arguments: Arguments) -> Any:
    words, gates, product, difference, scores = jax.random.split(key, 5)
    hidden, width = arguments.hidden, arguments.similarity
    return {
        "tree_lstm": {
            "embedding": initial_params.embedding(
                words, vocabulary_size, arguments.vector
            ),
            "gates": initial_params.gates(gates, "iouf", arguments.vector, hidden),
        },
        "relate": {
            "product": initial_params.affine(product, hidden, width)["W"],
            "difference": initial_params.affine(difference, hidden, width)["W"],
            "b": jnp.zeros(width, jnp.float32),
            "scores": initial_params.affine(scores, width, len(SCORES)),
        },
    }


def loss(batched: eb.Batched, params: Any, plan: eb.Plan, targets: Array) -> Array:
    """Returns the mean divergence of the predicted from the target distributions."""
    divergence = jax.scipy.special.xlogy(targets, targets)
    return jnp.mean(jnp.sum(divergence - targets * batched.apply(params, plan), axis=1))


def distributions(scores: np.ndarray) -> np.ndarray:
    """Returns distributions over 1 to 5 whose means are the scores; ``[N, 5]``.

    A score between two whole numbers distributes its weight over these two (Tai et al.,
    equation 16).
    """
    return np.maximum(0, 1 - np.abs(scores[:, None] - SCORES)).astype(np.float32)


def read_pairs(folder: Path) -> tuple[list[Pair], np.ndarray]:
    """Reads `train/`, `dev/` or `test/`: pairs and their scores."""
    left, right = (_read_trees(folder, side) for side in "ab")
    scores = _lines(folder / "sim.txt")
    if not len(left) == len(right) == len(scores):
        raise DataError(
            f"{folder}: a.toks, b.toks and sim.txt must have a line for each pair;"
            f" found {len(left)}, {len(right)} and {len(scores)} lines; usually a"
            " download that stopped early; fetch it again"
        )
    return list(map(Pair, left, right)), np.array(scores, np.float32)


def _read_trees(folder: Path, side: str) -> list[Tree]:
    tokens, heads = (_lines(folder / f"{side}.{name}") for name in ("toks", "parents"))
    trees = []
    for number, (words, parents) in enumerate(zip(tokens, heads, strict=True), start=1):
        try:
            trees.append(
                tree_from_heads(words.lower().split(), list(map(int, parents.split())))
            )
        except DataError as error:
            error.add_note(f"{folder / side}.parents, line {number}")
            raise
    return trees


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SystemExit(
            f"--data names the folder of SICK, but {path} cannot be read"
            f" ({error.strerror}); give the folder that has train, dev and test"
        ) from error


def metrics(
    outputs: Sequence[tuple[np.ndarray, np.ndarray]], scores: np.ndarray
) -> dict[str, float]:
    """Compares predicted scores with the annotated ones."""
    found = np.concatenate([np.exp(result) @ SCORES for _, result in outputs])
    return {
        "pearson": float(np.corrcoef(found, scores)[0, 1]),
        "mse": float(np.mean((found - scores) ** 2)),
    }


def make_task(arguments: Arguments) -> Task:
    parts = {
        name: read_pairs(arguments.data / name) for name in ("train", "dev", "test")
    }
    vocabulary = Vocabulary(
        (word for pair in parts["train"][0] for tree in pair for word in tree.words()),
        min_count=arguments.min_count,
    )
    numbered = {
        name: [Pair(*(index_tree(tree, vocabulary) for tree in pair)) for pair in pairs]
        for name, (pairs, _) in parts.items()
    }
    params = init_params(jax.random.key(arguments.seed), len(vocabulary), arguments)
    batched = eb.batch(relatedness, params=params, sizes=SIZES)
    judges = {
        name: run_all(batched, numbered[name], 4 * arguments.batch_size)
        for name in ("dev", "test")
    }
    penalised = jax.tree.map(lambda _: True, params)
    penalised["tree_lstm"]["embedding"] = False
    return Task(
        name="relatedness of SICK's pairs, child-sum tree-LSTM",
        batched=batched,
        params=params,
        loss=lambda params, plan, targets: loss(batched, params, plan, targets),
        optimizer=optax.chain(
            optax.add_decayed_weights(arguments.weight_decay, mask=penalised),
            optax.adagrad(arguments.learning_rate),
        ),
        instances=numbered["train"],
        targets=distributions(parts["train"][1]),
        judge=lambda params: metrics(judges["dev"](params), parts["dev"][1]),
        test=lambda params: metrics(judges["test"](params), parts["test"][1]),
    )


def main(arguments: Arguments) -> History:
    history = run(make_task(arguments), arguments)
    print(_PUBLISHED)
    return history


if __name__ == "__main__":
    eb.keep_memory()
    main(parse_arguments(Arguments, __doc__))
