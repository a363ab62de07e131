"""A bidirectional LSTM tagger that reads rare words character by character.

Source: the tagger of `edbatch.models.bilstm_tagger`. The vector of a rare word is
composed from its characters as in Ling et al., "Finding Function in Form:
Compositional Character Models for Open Vocabulary Word Representation", EMNLP 2015,
equation 2: an affine map combines the two last states of a bidirectional LSTM over the
characters. Each frequent word has its own vector. Here character vectors and states
have length H, like those of words.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

import edbatch as eb
from edbatch.data import (
    LabelledVocabulary,
    Sentence,
    SpelledSentence,
    sample_spelled_sentences,
    spell_sentence,
)
from edbatch.models import bilstm_tagger
from edbatch.models.bilstm_tagger import direction, embed, run, start, tag_vectors
from edbatch.models.shared.initial_params import affine, embedding
from edbatch.models.shared.tagged_text import TAGGED_FORMATS, read_tagged, tags_of
from edbatch.models.shared.workload import Workload

DIRECTIONS = ("forward", "backward")


@eb.cell
def spell(params: Any, forward: Array, backward: Array) -> Array:
    """Returns a word's vector, ``[H]``, from the last state of each direction."""
    h = jnp.concatenate([forward, backward])
    return h @ params["spell"]["W"] + params["spell"]["b"]


def tag(params: Any, sentence: SpelledSentence) -> list[Any]:
    """Tags a sentence.

    Args:
        params: Parameters, as returned by `init_params`.
        sentence: A sentence of word indices, with the character indices of its rare
            words; its tags are not read.

    Returns:
        Logits ``[L]`` for each word.

    Example:
        >>> from edbatch.data import SpelledSentence
        >>> params = init_params(jax.random.key(0), hidden=4, vocabulary_size=9)
        >>> sentence = SpelledSentence([3, 0], [0, 0], [(), (99, 97, 116)])
        >>> len(tag(params, sentence))
        2
    """
    characters = params["characters"]
    starts: list[Any] = []  # shared by all rare words of the sentence

    def read(spelling: tuple[int, ...]) -> Any:
        if not starts:
            starts.extend(start(characters[each]) for each in DIRECTIONS)
        inputs = [[embed(characters, character)] for character in spelling]
        forward = run(characters["forward"], inputs, starts[0])[-1]
        backward = run(characters["backward"], inputs[::-1], starts[1])[-1]
        return spell(characters, forward, backward)

    vectors = [
        read(spelling) if spelling else embed(params, word)
        for word, spelling in zip(sentence.words, sentence.spellings, strict=True)
    ]
    return tag_vectors(params, vectors)


def init_params(
    key: Array,
    hidden: int,
    vocabulary_size: int,
    *,
    num_tags: int = 18,
    num_characters: int = 256,
) -> dict[str, Any]:
    """Samples parameters.

    Args:
        key: A `jax.random` key.
        hidden: Length of the states of each direction and of the vectors of words and
            characters, H.
        vocabulary_size: Number of words.
        num_tags: Number of tags, L; by default the 17 tags of Universal Dependencies
            and the unknown tag.
        num_characters: Number of characters.

    Returns:
        Nested dicts and lists of float32 arrays: the tagger's parameters and
        ``characters``.
    """
    tagger, characters, output, *directions = jax.random.split(key, 5)
    params = bilstm_tagger.init_params(
        tagger, hidden, vocabulary_size, num_tags=num_tags
    )
    params["characters"] = {
        "embedding": embedding(characters, num_characters, hidden),
        "spell": affine(output, 2 * hidden, hidden),
    }
    for name, each in zip(DIRECTIONS, directions, strict=True):
        params["characters"][name] = direction(each, hidden, hidden)
    return params


def workload(
    min_count: int = 5,
    vocabulary_size: int = 10_000,
    num_tags: int = 18,
    num_characters: int = 256,
) -> Workload:
    """Builds ``"bilstm-tagger-char"``.

    Args:
        min_count: Words that occur less often in the data are read character by
            character.
        vocabulary_size: Number of words.
        num_tags: Number of tags.
        num_characters: Number of characters, which are indices below this number.

    Returns:
        The workload.
    """

    def number(
        sentences: list[Sentence], vocabulary: LabelledVocabulary
    ) -> list[SpelledSentence]:
        words, tags = vocabulary.words, vocabulary.labels["tags"]
        return [spell_sentence(each, words, tags, num_characters) for each in sentences]

    sizes: dict[str, Any] = {
        "vocabulary_size": vocabulary_size,
        "num_tags": num_tags,
        "num_characters": num_characters,
    }
    return Workload(
        name="bilstm-tagger-char",
        description=(
            "A tagger of two bidirectional LSTM layers, with a bidirectional LSTM over"
            " the characters of rare words."
        ),
        reads=TAGGED_FORMATS,
        vocabulary_size=vocabulary_size,
        model=tag,
        init_params=partial(init_params, **sizes),
        read_text=read_tagged,
        words=lambda sentence: sentence.words,
        number=number,
        labels=(tags_of(num_tags),),
        sample=partial(sample_spelled_sentences, **sizes),
        min_count=min_count,
        zoo_data=("wikigold/wikigold.conll.txt",),
    )
