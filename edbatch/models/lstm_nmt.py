"""An LSTM encoder-decoder with attention, for translation.

Source: Luong, Pham, Manning, "Effective Approaches to Attention-based Neural Machine
Translation", EMNLP 2015: global attention (section 3.1) with the score "general",
without input feeding; one layer, teacher forcing. The decoder starts from the last
state of the encoder, whose initial state is a parameter. Without input feeding, the
attention at a position depends on the decoder's state there and on the whole source,
but no later decoder state depends on the attention.

`translate` is the training form, which follows the words of the target. `greedy` and
`beam` follow the words that they choose, which they read with `edbatch.value`.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

import edbatch as eb
from edbatch.data import (
    PairVocabulary,
    SentencePair,
    index_sentence_pair,
    read_sentence_pairs,
    sample_sentence_pairs,
)
from edbatch.data.sentence_pairs import TOKENS
from edbatch.errors import WorkloadError, nearest
from edbatch.models.shared.beam_search import beam_search
from edbatch.models.shared.gates import lstm_step
from edbatch.models.shared.initial_params import affine, embedding
from edbatch.models.shared.initial_params import gates as init_gates
from edbatch.models.shared.workload import Workload

State = tuple[Array, Array]  # h and c, each [H]


@eb.cell
def start(params: Any) -> State:
    """Returns the initial state of the encoder."""
    return params["start"]["h"], params["start"]["c"]


@eb.cell
def lstm(params: Any, word: Any, state: State) -> State:
    """Returns the next state of the encoder or decoder from a word and a state."""
    return lstm_step(params, params["embedding"][word], state)


@eb.cell(padded=("memory",))
def attend(params: Any, h: Array, memory: Array, mask: Array) -> Array:
    """Returns the logits of a target word, ``[V]``; equations 5 to 8 of the source.

    The states of the encoder arrive as ``memory``, ``[K, H]``. The mask ``[K]`` is true
    for states and false for padding.
    """
    return word_logits(params, attended(params, h, memory, mask))


@eb.cell
def likeliest(logits: Array) -> Array:
    """Returns the index of the likeliest word, ``[] int32``."""
    return jnp.argmax(logits).astype(jnp.int32)


def attended(params: Any, h: Array, memory: Array, mask: Array) -> Array:
    """Computes the attentional state; equations 5, 7 and 8 of the source.

    Args:
        params: The ``attention`` entry of the parameters that `init_params` returns.
        h: The decoder's state, ``[H]``.
        memory: States of the encoder, ``[K, H]``; padding rows are zero.
        mask: True for states, false for padding rows, ``[K] bool``.

    Returns:
        The attentional state, ``[H]``.
    """
    scores = memory @ (h @ params["score"]["W"])  # [K]
    weights = jax.nn.softmax(scores, where=mask)
    # Padding rows are zero, and so are their weights: they add nothing.
    inputs = jnp.concatenate([weights @ memory, h])
    return jnp.tanh(inputs @ params["combine"]["W"] + params["combine"]["b"])


def word_logits(params: Any, attentional: Array) -> Array:
    """Computes the logits of a target word; equation 6 of the source.

    Args:
        params: The ``attention`` entry of the parameters that `init_params` returns.
        attentional: The attentional state, as returned by `attended`, ``[H]``.

    Returns:
        The logits, ``[V]``.
    """
    return attentional @ params["output"]["W"] + params["output"]["b"]


def translate(params: Any, pair: SentencePair) -> list[Any]:
    """Predicts each word of a translation from the source and the preceding words.

    Args:
        params: Parameters, as returned by `init_params`.
        pair: A pair of word indices.

    Returns:
        Logits ``[V]`` for each word of the target after the start mark.

    Example:
        >>> params = init_params(jax.random.key(0), hidden=4, vocabulary_size=9)
        >>> pair = SentencePair([3, 5], [1, 4, 8, 2])
        >>> [logits.shape for logits in translate(params, pair)]
        [(9,), (9,), (9,)]
    """
    memory, state = _encode(params, pair)
    logits = []
    for word in pair.target[:-1]:
        predicted, state = _step(params, memory, word, state)
        logits.append(predicted)
    return logits


def greedy(params: Any, pair: SentencePair) -> dict[str, Any]:
    """Translates greedily: takes the likeliest word at each position.

    Args:
        params: Parameters, as returned by `init_params`.
        pair: A pair of word indices. Only the source is read, and the start and end
            marks of the target.

    Returns:
        ``words``: the translation without the start mark, and with the end mark unless
        it was cut at ``2 S + 10`` words; ``logits``: ``[V]`` for each word.

    Example:
        >>> params = init_params(jax.random.key(0), hidden=4, vocabulary_size=9)
        >>> found = greedy(params, SentencePair([3, 5], [1, 2]))
        >>> len(found["words"]) == len(found["logits"]) <= 14
        True
    """
    memory, state = _encode(params, pair)
    word, end = pair.target[0], pair.target[-1]
    words: list[int] = []
    logits = []
    while word != end and len(words) < _max_length(pair):
        predicted, state = _step(params, memory, word, state)
        logits.append(predicted)
        word = int(eb.value(likeliest(predicted)))
        words.append(word)
    return {"words": words, "logits": logits}


def beam(
    params: Any, pair: SentencePair, width: int = 4, length_penalty: float = 1.0
) -> dict[str, Any]:
    """Translates by beam search (see `edbatch.models.shared.beam_search`).

    Args:
        params: Parameters, as returned by `init_params`.
        pair: As for `greedy`.
        width: Number of hypotheses.
        length_penalty: Log-probabilities are divided by the number of words to this
            power when the result is chosen among finished hypotheses.

    Returns:
        ``words``: as for `greedy`; ``score``: their log-probability after this
        division.

    Raises:
        EdbatchError: No hypothesis can continue, because parameters are not finite.

    Example:
        >>> params = init_params(jax.random.key(0), hidden=4, vocabulary_size=9)
        >>> pair = SentencePair([3, 5], [1, 2])
        >>> beam(params, pair, width=1)["words"] == greedy(params, pair)["words"]
        True
    """
    memory, state = _encode(params, pair)
    words, score = beam_search(
        partial(_step, params, memory),
        state,
        int(pair.target[0]),
        int(pair.target[-1]),
        width=width,
        max_length=_max_length(pair),
        length_penalty=length_penalty,
    )
    return {"words": words, "score": score}


def _encode(params: Any, pair: SentencePair) -> tuple[list[Any], Any]:
    """Reads the source; returns the h at each word and the last state."""
    state = start(params["encoder"])
    memory = []
    for word in pair.source:
        state = lstm(params["encoder"], word, state)
        memory.append(state[0])
    return memory, state


def _step(params: Any, memory: list[Any], word: Any, state: Any) -> tuple[Any, Any]:
    """Reads a word of the target; returns the next word's logits and the state."""
    state = lstm(params["decoder"], word, state)
    return attend(params["attention"], state[0], memory), state


def _max_length(pair: SentencePair) -> int:
    return 2 * len(pair.source) + 10


def init_params(key: Array, hidden: int, vocabulary_size: int) -> dict[str, Any]:
    """Samples parameters.

    Args:
        key: A `jax.random` key.
        hidden: Length of states and word vectors, H.
        vocabulary_size: Number of words of each language, V.

    Returns:
        Nested dicts of float32 arrays.
    """
    encoder, decoder, score, combine, output = jax.random.split(key, 5)
    zero = jnp.zeros(hidden, jnp.float32)
    return {
        "encoder": _side(encoder, hidden, vocabulary_size)
        | {"start": {"h": zero, "c": zero}},
        "decoder": _side(decoder, hidden, vocabulary_size),
        "attention": {
            "score": {"W": affine(score, hidden, hidden)["W"]},
            "combine": affine(combine, 2 * hidden, hidden),
            "output": affine(output, hidden, vocabulary_size),
        },
    }


def _side(key: Array, hidden: int, vocabulary_size: int) -> dict[str, Any]:
    words, lstm = jax.random.split(key)
    return {
        "embedding": embedding(words, vocabulary_size, hidden),
        **init_gates(lstm, "ifou", hidden, hidden),
    }


def workload(
    vocabulary_size: int = 10_000,
    source_tokens: str = "words",
    target_tokens: str = "words",
    beam_width: int = 1,
) -> Workload:
    """Builds ``"lstm-nmt"``.

    Args:
        vocabulary_size: Number of words of each language.
        source_tokens: The tokens of the source: ``"words"`` or ``"characters"``.
        target_tokens: The tokens of the target: ``"words"`` or ``"characters"``.
        beam_width: Number of hypotheses in decoding; 1 selects `greedy`.

    Returns:
        The workload.

    Raises:
        WorkloadError: The kind of tokens is unknown.
    """
    tokens = {"source_tokens": source_tokens, "target_tokens": target_tokens}
    for option, value in tokens.items():
        if value not in TOKENS:
            raise WorkloadError(
                f"option {option!r} of 'lstm-nmt' is 'words' or 'characters' but this"
                f" is {value!r}; {nearest(str(value), TOKENS)}"
            )
    return Workload(
        name="lstm-nmt",
        description=(
            "An LSTM encoder-decoder with attention over the source (Luong et al."
            " 2015), with the logits of every target word."
        ),
        reads="sentences with a tab between the languages",
        vocabulary_size=vocabulary_size,
        model=translate,
        decode=greedy if beam_width == 1 else partial(beam, width=beam_width),
        init_params=partial(init_params, vocabulary_size=vocabulary_size),
        read_text=partial(
            read_sentence_pairs,
            source_tokens=source_tokens,
            target_tokens=target_tokens,
        ),
        words=lambda pair: pair.source,
        target_words=lambda pair: pair.target,
        number=_number,
        sample=partial(sample_sentence_pairs, vocabulary_size=vocabulary_size),
        zoo_data=("tatoeba_cmn_eng/cmn.txt",),
    )


def _number(pairs: list[SentencePair], words: PairVocabulary) -> list[SentencePair]:
    return [index_sentence_pair(each, words) for each in pairs]
