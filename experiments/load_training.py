r"""The load test's translator in a form for train-policy: words are known in advance.

The load test serves a greedy decoder whose cells `look` and `word_of` do not occur in
the workload `lstm-nmt`, and a policy identifies types by their cells. A simulation
needs recordings, which read no values, so this model decodes the words of the
reference, with the same number of calls of each cell. In this folder, with public data
in `LOAD_DATA`, or sampled pairs otherwise:

    export LOAD_DATA=../shared/data
    ASK="--model load_training:translate_known --instances load_training:pairs
        --params load_training:parameters"
    edbatch calibrate $ASK --minibatches 2 --rounds 3 --out lstm-nmt.costs.json
    train-policy --serving $ASK --costs lstm-nmt.costs.json --objective p99 \
        --overhead-us 500 --out lstm-nmt.json
"""

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
from load_models import load_model, look, word_of

from edbatch.data import SentencePair
from edbatch.models.lstm_nmt import lstm, start

_HIDDEN = 128


def translate_known(params: Any, pair: SentencePair) -> list[Any]:
    """Returns each next word, computed like `load_models.translate_greedily`."""
    state = start(params["encoder"])
    memory = []
    for source_word in pair.source:
        state = lstm(params["encoder"], source_word, state)
        memory.append(state[0])
    words = []
    for word in pair.target[:-1]:
        state = lstm(params["decoder"], word, state)
        looked = look(params["attention"], state[0], memory)
        words.append(word_of(params["attention"], looked))
    return words


def pairs(rng: np.random.Generator, count: int) -> list[SentencePair]:
    """Returns indexed sentence pairs, chosen by the random generator."""
    folder = os.environ.get("LOAD_DATA")
    seed = int(rng.integers(2**31))
    data = None if folder is None else Path(folder)
    return list(load_model("lstm-nmt", 2, count, data=data, seed=seed).instances)


def parameters(key: jax.Array) -> Any:
    """Returns parameters with the hidden size that is measured."""
    return load_model("lstm-nmt", _HIDDEN, 1).params
