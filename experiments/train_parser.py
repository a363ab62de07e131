"""Which word depends on which? A transition-based parser on Universal Dependencies.

The model is the workload `transition-parser` of edbatch. It is trained on the
transitions of the gold trees, then evaluated on the trees that it derives with its own
transitions, decoded through `edbatch.value`. In a clone, with CoNLL-U files:

    pip install -e ".[plot]"
    python experiments/train_parser.py --data train.conllu --test-data test.conllu

Add `--resume` to the same command to continue a run that was stopped.

Sentences with crossing arcs, which no transitions derive, are left out of training and
counted; the held-out tenth and the test file keep them. Unlabelled and labelled
attachment scores (`uas`, `las`) count all words, punctuation included, as in the CoNLL
2018 shared task, and compare full relations (`nsubj:pass` is not `nsubj`). `uas_words`
and `las_words` leave out words tagged `PUNCT`. Tags are read from the files. There are
no pretrained word vectors. Results are in docs/results-training.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import edbatch as eb
from edbatch.data import (
    LabelledVocabulary,
    ParsedSentence,
    Vocabulary,
    oracle,
    read_parsed_sentences,
)
from edbatch.models import get_workload
from edbatch.models.transition_parser import number_parses, parse, score_oracle

from arguments import option, parse_arguments
from evaluation import SIZES, judge_label, loss_of_labels, make_decoder, set_apart
from training import History, Task, TrainingArguments, run

PUNCTUATION = "PUNCT"


@dataclass(frozen=True)
class Arguments(TrainingArguments):
    data: Path = option(Path("train.conllu"), "File to train on, or a folder.")
    test_data: Path = option(Path("test.conllu"), "File to test on, or a folder.")
    out: Path = option(Path("parser"), "Folder for checkpoints, metrics and curve.")
    batch_size: int = option(32, "Sentences per minibatch.")
    learning_rate: float = option(0.003, "Size of the steps of Adam.")
    hidden: int = option(128, "Length of states and word vectors.")
    min_count: int = option(2, "Rarer words share one vector, that of unknown words.")
    weight_decay: float = option(1e-4, "Weight decay of AdamW.")


@dataclass(frozen=True)
class Judged:
    """A sentence for evaluation: its indices, and which words are punctuation."""

    sentence: ParsedSentence
    punctuation: tuple[bool, ...]


def losses(params: Any, sentence: ParsedSentence) -> list[Any]:
    """The training model, for one sentence: the loss of each transition."""
    pairs = zip(
        score_oracle(params, sentence),
        oracle(sentence.heads, sentence.relations),
        strict=True,
    )
    return [judge_label(logits, transition) for logits, transition in pairs]


def attachment(found: list[Any], judged: list[Judged]) -> dict[str, float]:
    """Returns the shares of words with the right head, and also the right relation.

    Args:
        found: For each sentence its predicted heads and relations, `[L]` each.
        judged: The sentences.

    Returns:
        `las` and `uas` of all words, `las_words` and `uas_words` without punctuation.
    """
    heads, labelled, counted = [], [], []
    for (own_heads, own_relations), each in zip(found, judged, strict=True):
        right = np.equal(own_heads, each.sentence.heads)
        heads.append(right)
        labelled.append(right & np.equal(own_relations, each.sentence.relations))
        counted.append(~np.array(each.punctuation))
    uas, las, word = (np.concatenate(parts) for parts in (heads, labelled, counted))
    return {
        "las": float(las.mean()),
        "uas": float(uas.mean()),
        "las_words": float(las[word].mean()),
        "uas_words": float(uas[word].mean()),
    }


def decoder(size: int) -> Callable[[Any, list[Judged]], list[Any]]:
    """Makes a function that parses minibatches; it returns heads and relations."""
    decode = make_decoder(eb.batch(parse, sizes=SIZES), ("heads", "relations"), size)
    return lambda params, judged: decode(params, (each.sentence for each in judged))


def make_task(arguments: Arguments) -> Task:
    workload = get_workload("transition-parser")
    text = read_parsed_sentences(arguments.data)
    test = read_parsed_sentences(arguments.test_data)
    words = Vocabulary(
        (word for each in text for word in each.words),
        min_count=arguments.min_count,
        max_size=workload.vocabulary_size,
    )
    vocabulary = LabelledVocabulary(words, workload.number_labels(text + test))
    numbered = number_parses(text + test, vocabulary)
    judged = [
        Judged(numbers, tuple(tag == PUNCTUATION for tag in strings.tags))
        for numbers, strings in zip(numbered, text + test, strict=True)
    ]
    training, held_out = set_apart(len(text), arguments.seed)
    projective = [k for k in training if judged[k].sentence.is_projective]
    print(
        f"{len(projective)} sentences to train on; {len(training) - len(projective)}"
        " with crossing arcs are left out"
    )
    params = workload.init_params(jax.random.key(arguments.seed), arguments.hidden)
    params["word_embedding"] = params["word_embedding"][: len(words)]
    batched = eb.batch(losses, params=params, sizes=SIZES)
    decode = decoder(4 * arguments.batch_size)
    parts = [[judged[k] for k in held_out], judged[len(text) :]]

    def judge(part: list[Judged]) -> Any:
        return lambda params: attachment(decode(params, part), part)

    return Task(
        name=f"parses of {arguments.data.name}, {workload.name}",
        batched=batched,
        params=params,
        loss=loss_of_labels(batched),
        optimizer=optax.adamw(
            arguments.learning_rate, weight_decay=arguments.weight_decay
        ),
        instances=[judged[k].sentence for k in projective],
        judge=judge(parts[0]),
        test=judge(parts[1]),
    )


def main(arguments: Arguments) -> History:
    return run(make_task(arguments), arguments)


if __name__ == "__main__":
    eb.keep_memory()
    main(parse_arguments(Arguments, __doc__))
