"""The workloads over tagged sentences."""

from functools import partial

from edbatch.data import (
    Sentence,
    SpelledSentence,
    Vocabulary,
    index_sentence,
    sample_sentences,
    sample_spelled_sentences,
    spell_sentence,
)
from edbatch.models import bilstm_tagger, bilstm_tagger_char
from edbatch.models.tagged_text import read_tagged
from edbatch.models.workload import Workload


def bilstm_tagger_workload(
    vocabulary_size: int = 10_000, num_tags: int = 18
) -> Workload:
    """Builds ``"bilstm-tagger"``; options as for `get_workload`."""

    def number(sentences: list[Sentence], vocabulary: Vocabulary) -> list[Sentence]:
        tags = _tags(sentences, num_tags)
        return [index_sentence(each, vocabulary, tags) for each in sentences]

    return Workload(
        name="bilstm-tagger",
        description="A tagger of two bidirectional LSTM layers, with a tag per word.",
        vocabulary_size=vocabulary_size,
        model=bilstm_tagger.tag,
        init_params=partial(
            bilstm_tagger.init_params,
            vocabulary_size=vocabulary_size,
            num_tags=num_tags,
        ),
        read_text=read_tagged,
        words=lambda sentence: sentence.words,
        number=number,
        sample=partial(
            sample_sentences, vocabulary_size=vocabulary_size, num_tags=num_tags
        ),
    )


def bilstm_tagger_char_workload(
    min_count: int = 5,
    vocabulary_size: int = 10_000,
    num_tags: int = 18,
    num_characters: int = 256,
) -> Workload:
    """Builds ``"bilstm-tagger-char"``; options as for `get_workload`."""

    def number(
        sentences: list[Sentence], vocabulary: Vocabulary
    ) -> list[SpelledSentence]:
        tags = _tags(sentences, num_tags)
        return [
            spell_sentence(each, vocabulary, tags, num_characters) for each in sentences
        ]

    return Workload(
        name="bilstm-tagger-char",
        description=(
            "A tagger of two bidirectional LSTM layers, with a bidirectional LSTM over"
            " the characters of rare words."
        ),
        vocabulary_size=vocabulary_size,
        model=bilstm_tagger_char.tag,
        init_params=partial(
            bilstm_tagger_char.init_params,
            vocabulary_size=vocabulary_size,
            num_tags=num_tags,
            num_characters=num_characters,
        ),
        read_text=read_tagged,
        words=lambda sentence: sentence.words,
        number=number,
        sample=partial(
            sample_spelled_sentences,
            vocabulary_size=vocabulary_size,
            num_tags=num_tags,
            num_characters=num_characters,
        ),
        min_count=min_count,
    )


def _tags(sentences: list[Sentence], num_tags: int) -> Vocabulary:
    return Vocabulary(
        (tag for each in sentences for tag in each.tags), max_size=num_tags
    )
