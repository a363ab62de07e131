"""The models that the tests of load and of faults serve.

A server answers with what its clients read: labels, words and arcs, and not with the
logits on the way, which the workloads return for training. The models below are made
of the cells of the workloads. All systems run the same ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array

import edbatch as eb
from edbatch.data import SentencePair
from edbatch.models import get_workload
from edbatch.models.lstm_nmt import attended, likeliest, lstm, start, word_logits
from edbatch.models.transition_parser import parse
from edbatch.models.tree_lstm import classify_root

# Public data below one folder, as the workloads read it.
DATA = {
    "tree-lstm": "gum_const/const",
    "lstm-nmt": "tatoeba_cmn_eng/cmn.txt",
    "transition-parser": "ud_english_ewt/en_ewt-ud-dev.conllu",
}


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model, its parameters and its instances.

    Attributes:
        name: The workload's name.
        model: ``model(params, instance)``; what it returns is the answer.
        params: The parameters.
        instances: What requests ask about, by number.
        by_size: The same, those of most words last.
        asks: Whether it asks for values on the way; its answers are then made of Python
            numbers.
        data: Where the instances come from, for the record.
    """

    name: str
    model: Callable[[Any, Any], Any]
    params: Any
    instances: Sequence[Any]
    by_size: Sequence[Any]
    asks: bool
    data: str


def classify_tree(params: Any, tree: Any) -> Any:
    """Gives the logits of a tree's label, ``[L]``."""
    return classify_root(params, tree)["logits"]


@eb.cell(padded=("memory",))
def look(params: Any, h: Array, memory: Array, mask: Array) -> Array:
    """Gives the decoder's state with what it attends to, ``[H]``.

    Memories of different lengths are different types, which share no batch.
    """
    return attended(params, h, memory, mask)


@eb.cell
def word_of(params: Any, state: Array) -> Array:
    """Gives the likeliest word of a translation, ``[] int32``.

    Apart from `look`, so that one batch serves memories of all lengths; and with the
    choice of the word, so that no server keeps the logits of words that are known.
    """
    return likeliest.function(word_logits(params, state))


def translate_greedily(params: Any, pair: SentencePair) -> list[int]:
    """Translates word by word, with as many words as the reference has.

    With parameters that were not trained no translation would end. The lengths of the
    references are those of real answers, and the same for all systems.
    """
    state = start(params["encoder"])
    memory = []
    for source_word in pair.source:
        state = lstm(params["encoder"], source_word, state)
        memory.append(state[0])
    word, words = pair.target[0], []
    for _ in pair.target[1:]:
        state = lstm(params["decoder"], word, state)
        looked = look(params["attention"], state[0], memory)
        word = int(eb.value(word_of(params["attention"], looked)))
        words.append(word)
    return words


def parse_arcs(params: Any, sentence: Any) -> list[list[int]]:
    """Gives heads and relations of a sentence's parse."""
    found = parse(params, sentence)
    return [found["heads"], found["relations"]]


MODELS: dict[str, Callable[[Any, Any], Any]] = {
    "tree-lstm": classify_tree,
    "lstm-nmt": translate_greedily,
    "transition-parser": parse_arcs,
}


def load_model(
    name: str, hidden: int, count: int, *, data: Path | None = None, seed: int = 0
) -> ServedModel:
    """Makes a model and its instances, the same in every process.

    Args:
        name: One of `MODELS`.
        hidden: Length of its states.
        count: How many instances.
        data: The folder of public data; instances are sampled where it is missing.
        seed: Seed of parameters and instances.

    Returns:
        The model.
    """
    rng = np.random.default_rng(seed)
    workload = get_workload(name)
    path = None if data is None else data / DATA[name]
    if path is not None and path.exists():
        found = workload.read(path)
        # Where there are fewer, several requests ask the same.
        chosen = np.resize(rng.permutation(len(found)), count)
        instances, where = [found[k] for k in chosen], DATA[name]
    else:
        instances, where = workload.sample(rng, count), "sampled"
    return ServedModel(
        name=name,
        model=MODELS[name],
        params=workload.init_params(jax.random.key(seed), hidden),
        instances=instances,
        by_size=sorted(instances, key=lambda each: len([*workload.words(each)])),
        asks=workload.decode is not None,
        data=where,
    )


def encode_answer(answer: Any) -> bytes:
    """Returns an answer as the bytes that a client is sent, int32 or float32."""
    if isinstance(answer, np.ndarray | Array):
        return np.asarray(answer, np.float32).tobytes()
    return np.array(answer, np.int32).tobytes()


def same_answer(found: bytes, expected: bytes, *, asks: bool) -> bool:
    """Whether an answer is the expected one, within rounding if it has fractions."""
    if asks or len(found) != len(expected):
        return found == expected
    one, other = np.frombuffer(found, np.float32), np.frombuffer(expected, np.float32)
    # As np.allclose, which takes 30 µs, for finite numbers.
    return bool((np.abs(one - other) <= 1e-4 + 1e-3 * np.abs(other)).all())
