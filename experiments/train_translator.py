"""What is that in Chinese? An encoder-decoder with attention on pairs of sentences.

The model is the workload `lstm-nmt` of edbatch. It is trained on the given
translations, then evaluated on its own, decoded through `edbatch.value`, greedily and
by beam search. In a clone, with a file that has a sentence, a tab and its translation
per line:

    pip install -e ".[plot]"
    python experiments/train_translator.py --data cmn.txt

Add `--resume` to the same command to continue a run that was stopped.

A tenth of the sources is held out and a tenth is for the test, each with all its
translations, so that no source is in two parts. `bleu` is corpus BLEU (Papineni et al.
2002, up to four tokens, unsmoothed), with all translations of a source as references,
over the tokens of `lstm-nmt`, which are characters in Chinese. `exact` is the share of
sources for which the model found one of the references. Pairs with an unknown word in
the reference are evaluated like others.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import edbatch as eb
from edbatch.data import (
    PairVocabulary,
    SentencePair,
    Vocabulary,
    index_sentence_pair,
    read_sentence_pairs,
)
from edbatch.models.lstm_nmt import beam, greedy, init_params, translate

from arguments import option, parse_arguments
from evaluation import SIZES, judge_label, loss_of_labels, make_decoder
from training import History, Task, TrainingArguments, run

LONGEST = 4  # tokens of the longest n-grams that are counted
Words = tuple[int, ...]


@dataclass(frozen=True)
class Arguments(TrainingArguments):
    data: Path = option(Path("pairs.txt"), "File of pairs, or a folder.")
    out: Path = option(Path("translator"), "Folder for checkpoints, metrics and curve.")
    pairs: int = option(0, "How many pairs to draw from the file; 0 for all.")
    batch_size: int = option(64, "Pairs per minibatch.")
    learning_rate: float = option(0.003, "Size of the steps of Adam.")
    hidden: int = option(128, "Length of states and word vectors.")
    min_count: int = option(2, "Rarer words share one vector, that of unknown words.")
    beam_width: int = option(4, "Hypotheses of beam search.")


@dataclass(frozen=True)
class Source:
    """A source for evaluation: a pair to decode, and all translations of its source."""

    pair: SentencePair
    references: tuple[Words, ...]


def losses(params: Any, pair: SentencePair) -> list[Any]:
    """The training model, for one pair: the loss of each word of the target."""
    words = zip(translate(params, pair), pair.target[1:], strict=True)
    return [judge_label(logits, word) for logits, word in words]


def decoder(
    model: Callable[[Any, SentencePair], Any], size: int
) -> Callable[[Any, Sequence[Source]], list[Words]]:
    """Makes a function that translates minibatches of sources, without end marks."""
    decode_pairs = make_decoder(eb.batch(model, sizes=SIZES), ("words",), size)

    def decode(params: Any, sources: Sequence[Source]) -> list[Words]:
        found = decode_pairs(params, (each.pair for each in sources))
        ends = (each.pair.target[-1] for each in sources)
        return [
            tuple(word for word in words.tolist() if word != end)
            for (words,), end in zip(found, ends, strict=True)
        ]

    return decode


def counts(words: Words, length: int) -> Counter[Words]:
    """Counts the n-grams of ``length`` words."""
    return Counter(words[k : k + length] for k in range(len(words) - length + 1))


def score(found: Sequence[Words], sources: Sequence[Source]) -> dict[str, float]:
    """Returns corpus BLEU, and the share of translations that equal a reference."""
    right, total = np.zeros(LONGEST), np.zeros(LONGEST)
    own_length = reference_length = 0
    for words, source in zip(found, sources, strict=True):
        own_length += len(words)
        lengths = [len(each) for each in source.references]
        reference_length += min(lengths, key=lambda n: (abs(n - len(words)), n))
        for k in range(LONGEST):
            most: Counter[Words] = Counter()
            for each in source.references:
                most |= counts(each, k + 1)
            own = counts(words, k + 1)
            right[k] += (own & most).total()
            total[k] += own.total()
    exact = [w in s.references for w, s in zip(found, sources, strict=True)]
    bleu = 0.0
    if right.all():
        brevity = min(0.0, 1 - reference_length / own_length)
        bleu = math.exp(brevity + float(np.log(right / total).mean()))
    return {"bleu": bleu, "exact": float(np.mean(exact))}


def split(pairs: list[SentencePair], seed: int) -> list[list[Source]]:
    """Divides pairs by their sources: for training, held out, and for the test."""
    by_source: dict[Any, list[SentencePair]] = defaultdict(list)
    for pair in pairs:
        by_source[pair.source].append(pair)
    groups = list(by_source.values())
    order = np.random.default_rng(seed).permutation(len(groups)).tolist()
    sources = [
        Source(groups[k][0], tuple(pair.target[1:-1] for pair in groups[k]))  # type: ignore[misc]
        for k in order
    ]
    tenth = max(1, len(groups) // 10)
    return [sources[2 * tenth :], sources[:tenth], sources[tenth : 2 * tenth]]


def make_task(arguments: Arguments) -> Task:
    text = read_sentence_pairs(arguments.data)
    if arguments.pairs:
        rng = np.random.default_rng(arguments.seed)
        chosen = rng.permutation(len(text))[: arguments.pairs].tolist()
        text = [text[k] for k in sorted(chosen)]
    sizes = {"min_count": arguments.min_count}
    words = PairVocabulary(
        Vocabulary((word for each in text for word in each.source), **sizes),
        Vocabulary((word for each in text for word in each.target), **sizes),
    )
    numbered = [index_sentence_pair(pair, words) for pair in text]
    training, held_out, test = split(numbered, arguments.seed)
    known = {source.pair.source for source in training}
    params = init_params(jax.random.key(arguments.seed), arguments.hidden, len(words))
    batched = eb.batch(losses, params=params, sizes=SIZES)
    size = 2 * arguments.batch_size
    by_greedy = decoder(greedy, size)
    by_beam = decoder(partial(beam, width=arguments.beam_width), size)

    def judge_test(params: Any) -> dict[str, float]:
        found = score(by_beam(params, test), test)
        return score(by_greedy(params, test), test) | {
            f"{name}_beam": value for name, value in found.items()
        }

    return Task(
        name=f"translations of {arguments.data.name}, lstm-nmt",
        batched=batched,
        params=params,
        loss=loss_of_labels(batched),
        optimizer=optax.adam(arguments.learning_rate),
        instances=[pair for pair in numbered if pair.source in known],
        judge=lambda params: score(by_greedy(params, held_out), held_out),
        test=judge_test,
    )


def main(arguments: Arguments) -> History:
    return run(make_task(arguments), arguments)


if __name__ == "__main__":
    eb.keep_memory()
    main(parse_arguments(Arguments, __doc__))
