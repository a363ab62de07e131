"""A bidirectional LSTM tagger: two layers over the words, one tag per word.

Source: Hochreiter, Schmidhuber, "Long Short-Term Memory", 1997, with the forget gate of
Gers, Schmidhuber, Cummins, 2000; two directions as in Graves, Schmidhuber, 2005; the
tagger as in Huang, Xu, Yu, "Bidirectional LSTM-CRF Models for Sequence Tagging", 2015,
without the CRF. The second layer reads both directions of the first. The initial states
are parameters.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

import edbatch as eb
from edbatch.data import (
    LabelledVocabulary,
    Sentence,
    index_sentence,
    sample_sentences,
)
from edbatch.models.shared.gates import lstm_step
from edbatch.models.shared.initial_params import affine, embedding
from edbatch.models.shared.initial_params import gates as init_gates
from edbatch.models.shared.tagged_text import TAGGED_FORMATS, read_tagged, tags_of
from edbatch.models.shared.workload import Workload

NUM_LAYERS = 2

State = tuple[Array, Array]  # h and c, each [H]


@eb.cell
def embed(params: Any, word: Any) -> Array:
    """Returns a word's vector, ``[H]``."""
    return params["embedding"][word]


@eb.cell
def start(params: Any) -> State:
    """Returns the initial state of one direction."""
    return params["h"], params["c"]


@eb.cell
def lstm(params: Any, inputs: list[Array], state: State) -> State:
    """Returns the next state from the inputs at one word and the previous state."""
    return lstm_step(params, jnp.concatenate(inputs), state)


@eb.cell
def classify(params: Any, forward: Array, backward: Array) -> Array:
    """Returns the logits of a word's tag, ``[L]``."""
    h = jnp.concatenate([forward, backward])
    return h @ params["classify"]["W"] + params["classify"]["b"]


def tag(params: Any, sentence: Sentence) -> list[Any]:
    """Tags a sentence.

    Args:
        params: Parameters, as returned by `init_params`.
        sentence: A sentence of word indices; its tags are not read.

    Returns:
        Logits ``[L]`` for each word.

    Example:
        >>> from edbatch.data import Sentence
        >>> params = init_params(jax.random.key(0), hidden=4, vocabulary_size=9)
        >>> len(tag(params, Sentence(words=[3, 1, 2], tags=[0, 0, 0])))
        3
    """
    return tag_vectors(params, [embed(params, word) for word in sentence.words])


def tag_vectors(params: Any, vectors: Sequence[Any]) -> list[Any]:
    """Tags a sentence given as word vectors.

    Args:
        params: Parameters, as returned by `init_params`.
        vectors: One vector ``[H]`` per word.

    Returns:
        Logits ``[L]`` for each word.
    """
    words = [[vector] for vector in vectors]
    for layer in range(NUM_LAYERS):
        directions = params["layers"][layer]
        forward = run(directions["forward"], words)
        backward = run(directions["backward"], words[::-1])[::-1]
        words = [list(pair) for pair in zip(forward, backward, strict=True)]
    return [classify(params, *pair) for pair in words]


def run(params: Any, sequence: Iterable[list[Any]], state: Any = None) -> list[Any]:
    """Runs one direction of an LSTM.

    Args:
        params: Parameters, as returned by `direction`.
        sequence: The inputs at each step.
        state: The initial state; by default the state that `start` returns.

    Returns:
        The h of each step, in the order of the steps.
    """
    state = start(params) if state is None else state
    found = []
    for inputs in sequence:
        state = lstm(params, inputs, state)
        found.append(state[0])
    return found


def init_params(
    key: Array, hidden: int, vocabulary_size: int, *, num_tags: int = 18
) -> dict[str, Any]:
    """Samples parameters.

    Args:
        key: A `jax.random` key.
        hidden: Length of the states of each direction and of word vectors, H.
        vocabulary_size: Number of words.
        num_tags: Number of tags, L; by default the 17 tags of Universal Dependencies
            and the unknown tag.

    Returns:
        Nested dicts and lists of float32 arrays.
    """
    words, output, *layers = jax.random.split(key, 2 + NUM_LAYERS)
    return {
        "embedding": embedding(words, vocabulary_size, hidden),
        "layers": [
            {
                name: direction(each, num_inputs * hidden, hidden)
                for name, each in zip(
                    ("forward", "backward"), jax.random.split(layer), strict=True
                )
            }
            for layer, num_inputs in zip(layers, (1, 2), strict=True)
        ],
        "classify": affine(output, 2 * hidden, num_tags),
    }


def direction(key: Array, inputs: int, hidden: int) -> dict[str, Any]:
    """Samples the parameters of one direction of an LSTM.

    Args:
        key: A `jax.random` key.
        inputs: Total length of the inputs at one step.
        hidden: Length of the states, H.

    Returns:
        Nested dicts of float32 arrays: the initial state, which is zero, and the gates.
    """
    start = {"h": jnp.zeros(hidden, jnp.float32), "c": jnp.zeros(hidden, jnp.float32)}
    return start | init_gates(key, "ifou", inputs, hidden)


def workload(vocabulary_size: int = 10_000, num_tags: int = 18) -> Workload:
    """Builds ``"bilstm-tagger"``.

    Args:
        vocabulary_size: Number of words.
        num_tags: Number of tags.

    Returns:
        The workload.
    """

    def number(
        sentences: list[Sentence], vocabulary: LabelledVocabulary
    ) -> list[Sentence]:
        words, tags = vocabulary.words, vocabulary.labels["tags"]
        return [index_sentence(each, words, tags) for each in sentences]

    return Workload(
        name="bilstm-tagger",
        description="A tagger of two bidirectional LSTM layers, with a tag per word.",
        reads=TAGGED_FORMATS,
        vocabulary_size=vocabulary_size,
        model=tag,
        init_params=partial(
            init_params, vocabulary_size=vocabulary_size, num_tags=num_tags
        ),
        read_text=read_tagged,
        words=lambda sentence: sentence.words,
        number=number,
        labels=(tags_of(num_tags),),
        sample=partial(
            sample_sentences, vocabulary_size=vocabulary_size, num_tags=num_tags
        ),
        zoo_data=("ud_english_ewt",),
    )
