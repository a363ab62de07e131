"""The models served in the load test and the fault test.

A server returns the results that clients need, such as labels, words and arcs, not the
intermediate logits that the workloads return for training. The models below are built
from the workloads' cells. All systems run the same models.
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

# Paths of public data below one folder, readable by the workloads.
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
        model: ``model(params, instance)``, which returns the answer.
        params: The parameters.
        instances: The instances, by the index that requests contain.
        by_size: The same instances, in ascending number of words.
        asks: Whether the model reads values while it runs; its answers then consist of
            Python numbers.
        data: The source of the instances, for the record.
    """

    name: str
    model: Callable[[Any, Any], Any]
    params: Any
    instances: Sequence[Any]
    by_size: Sequence[Any]
    asks: bool
    data: str


def classify_tree(params: Any, tree: Any) -> Any:
    """Returns the logits of a tree's label, ``[L]``."""
    return classify_root(params, tree)["logits"]


@eb.cell(padded=("memory",))
def look(params: Any, h: Array, memory: Array, mask: Array) -> Array:
    """Returns the attentional state of the decoder, ``[H]``.

    Memories of different lengths are different types, which share no batch.
    """
    return attended(params, h, memory, mask)


@eb.cell
def word_of(params: Any, state: Array) -> Array:
    """Returns the likeliest word of a translation, ``[] int32``.

    Separate from `look`, so that one batch serves memories of all lengths. Includes the
    choice of the word, so that servers keep no logits of words already chosen.
    """
    return likeliest.function(word_logits(params, state))


def translate_greedily(params: Any, pair: SentencePair) -> list[int]:
    """Translates word by word, to exactly the length of the reference.

    With untrained parameters no translation would end. The references have the lengths
    of real answers, the same for all systems.
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
    """Returns heads and relations of a sentence's parse."""
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
        hidden: Length of the model's states.
        count: Number of instances.
        data: The folder of public data; instances are sampled if it is missing.
        seed: Seed of parameters and instances.

    Returns:
        The model.
    """
    rng = np.random.default_rng(seed)
    workload = get_workload(name)
    path = None if data is None else data / DATA[name]
    if path is not None and path.exists():
        found = workload.read(path)
        # If there are fewer, instances are repeated.
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
    """Encodes an answer as the bytes to send to the client, int32 or float32."""
    if isinstance(answer, np.ndarray | Array):
        return np.asarray(answer, np.float32).tobytes()
    return np.array(answer, np.int32).tobytes()


def same_answer(found: bytes, expected: bytes, *, asks: bool) -> bool:
    """Whether an answer is as expected, up to rounding for floating-point answers."""
    if asks or len(found) != len(expected):
        return found == expected
    one, other = np.frombuffer(found, np.float32), np.frombuffer(expected, np.float32)
    # Like np.allclose, which takes 30 µs, for finite numbers.
    return bool((np.abs(one - other) <= 1e-4 + 1e-3 * np.abs(other)).all())
