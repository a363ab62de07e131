"""Which part of speech is each word? A bidirectional LSTM on Universal Dependencies.

The model is the workload `bilstm-tagger` of edbatch or, with characters,
`bilstm-tagger-char`. The loss of a word's tag is a separate cell, so the model returns
the losses of a sentence, and the unbatched model defines the quantity that training
minimises. A tenth of the training sentences is held out to choose the best epoch, whose
accuracy on the test file is reported. In a clone, with CoNLL-U or column files:

    pip install -e ".[plot]"
    python experiments/train_tagger.py --data train.conllu --test-data test.conllu
    python experiments/train_tagger.py --data train.conllu --test-data test.conllu \
        --workload bilstm-tagger-char --out tagger-char

Add `--resume` to the same command to continue a run that was stopped.

There are no pretrained word vectors. Results are in docs/results-training.md.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import edbatch as eb
from edbatch.data import LabelledVocabulary, Sentence, Vocabulary
from edbatch.models import get_workload

from arguments import option, parse_arguments
from evaluation import SIZES, judge_label, loss_of_labels, run_all, set_apart
from training import History, Task, TrainingArguments, run

WORKLOADS = ("bilstm-tagger", "bilstm-tagger-char")


@dataclass(frozen=True)
class Arguments(TrainingArguments):
    data: Path = option(Path("train.conllu"), "File to train on, or a folder.")
    test_data: Path = option(Path("test.conllu"), "File to test on, or a folder.")
    out: Path = option(Path("tagger"), "Folder for checkpoints, metrics and curve.")
    workload: str = option(WORKLOADS[0], f"One of {' and '.join(WORKLOADS)}.")
    batch_size: int = option(16, "Sentences per minibatch.")
    learning_rate: float = option(0.003, "Size of the steps of Adam.")
    hidden: int = option(100, "Length of states and word vectors.")
    min_count: int = option(2, "Rarer words share one vector, that of unknown words.")


def tagger(model: Any) -> Any:
    """Makes the model that returns the loss of each word, for one sentence."""

    def losses(params: Any, sentence: Sentence) -> list[Any]:
        logits = model(params, sentence)
        pairs = zip(logits, sentence.tags, strict=True)
        return [judge_label(each, tag) for each, tag in pairs]

    return losses


def accuracy(outputs: list[tuple[np.ndarray, eb.Ragged]]) -> dict[str, float]:
    """Returns the share of words whose likeliest tag is right."""
    right = sum(float(each.values["right"][each.mask].sum()) for _, each in outputs)
    return {"accuracy": right / sum(int(each.lengths.sum()) for _, each in outputs)}


def make_task(arguments: Arguments) -> Task:
    workload = get_workload(arguments.workload)
    text = workload.read_text(arguments.data)
    words = Vocabulary(
        (word for each in text for word in workload.words(each)),
        min_count=arguments.min_count,
        max_size=workload.vocabulary_size,
    )
    both = text + workload.read_text(arguments.test_data)
    vocabulary = LabelledVocabulary(words, workload.number_labels(both))
    numbered = workload.number(both, vocabulary)
    training, held_out = (
        [numbered[k] for k in part] for part in set_apart(len(text), arguments.seed)
    )
    params = workload.init_params(jax.random.key(arguments.seed), arguments.hidden)
    batched = eb.batch(tagger(workload.model), params=params, sizes=SIZES)
    size = 4 * arguments.batch_size
    judges = [
        run_all(batched, each, size) for each in (held_out, numbered[len(text) :])
    ]

    return Task(
        name=f"tags of {arguments.data.name}, {workload.name}",
        batched=batched,
        params=params,
        loss=loss_of_labels(batched),
        optimizer=optax.adam(arguments.learning_rate),
        instances=training,
        judge=lambda params: accuracy(judges[0](params)),
        test=lambda params: accuracy(judges[1](params)),
    )


def main(arguments: Arguments) -> History:
    if arguments.workload not in WORKLOADS:
        raise SystemExit(
            f"--workload is one of {', '.join(WORKLOADS)} but this is"
            f" {arguments.workload!r}"
        )
    return run(make_task(arguments), arguments)


if __name__ == "__main__":
    eb.keep_memory()
    main(parse_arguments(Arguments, __doc__))
