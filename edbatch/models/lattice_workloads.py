"""The workloads over lattices."""

import os
from functools import partial
from types import ModuleType
from typing import Any

from edbatch.data import (
    CharacterLattice,
    SpeechLattice,
    Vocabulary,
    index_character_lattice,
    index_speech_lattice,
    read_plf,
    sample_character_lattices,
    sample_speech_lattices,
)
from edbatch.data.files import PathLike
from edbatch.models import dag_lstm, lattice_gru, lattice_lstm
from edbatch.models.errors import WorkloadError
from edbatch.models.lattice_text import read_lattices
from edbatch.models.workload import Workload


def lattice_lstm_workload(
    vocabulary_size: int = 10_000, num_tags: int = 18, words: PathLike | None = None
) -> Workload:
    """Makes the workload ``"lattice-lstm"``; options as for `get_workload`."""
    return _over_characters(
        "lattice-lstm", "LSTM", lattice_lstm, vocabulary_size, num_tags, words
    )


def lattice_gru_workload(
    vocabulary_size: int = 10_000, num_tags: int = 18, words: PathLike | None = None
) -> Workload:
    """Makes the workload ``"lattice-gru"``; options as for `get_workload`."""
    return _over_characters(
        "lattice-gru", "GRU", lattice_gru, vocabulary_size, num_tags, words
    )


def dag_lstm_workload(vocabulary_size: int = 10_000, num_labels: int = 5) -> Workload:
    """Makes the workload ``"dag-lstm"``; options as for `get_workload`."""
    return Workload(
        name="dag-lstm",
        description=(
            "A child-sum LSTM over speech lattices (Sperber et al. 2017), with a"
            " classifier at the last node."
        ),
        vocabulary_size=vocabulary_size,
        model=dag_lstm.encode,
        init_params=partial(
            dag_lstm.init_params,
            vocabulary_size=vocabulary_size,
            num_labels=num_labels,
        ),
        read_text=read_plf,
        words=lambda lattice: [arc.word for arc in lattice.arcs],
        number=_number_speech_lattices,
        sample=partial(sample_speech_lattices, vocabulary_size=vocabulary_size),
    )


def _over_characters(
    name: str,
    unit: str,
    network: ModuleType,
    vocabulary_size: int,
    num_tags: int,
    words: PathLike | None,
) -> Workload:
    if words is not None and not isinstance(words, str | os.PathLike):
        raise WorkloadError(
            f"option 'words' of {name!r} is the path of a word list but this is"
            f" {words!r}; leave it out where the list is among the files to read"
        )

    def number(
        lattices: list[CharacterLattice], vocabulary: Vocabulary
    ) -> list[CharacterLattice]:
        tags = Vocabulary(
            (tag for each in lattices for tag in each.tags), max_size=num_tags
        )
        return [index_character_lattice(each, vocabulary, tags) for each in lattices]

    return Workload(
        name=name,
        description=(
            f"A lattice {unit} (Zhang and Yang 2018) over characters and the words of a"
            " list among them, with a tag per character."
        ),
        vocabulary_size=vocabulary_size,
        model=network.tag,
        init_params=partial(
            network.init_params, vocabulary_size=vocabulary_size, num_tags=num_tags
        ),
        read_text=partial(read_lattices, words=words),
        words=_characters_and_words,
        number=number,
        sample=partial(
            sample_character_lattices,
            vocabulary_size=vocabulary_size,
            num_tags=num_tags,
        ),
    )


def _characters_and_words(lattice: CharacterLattice) -> list[Any]:
    return [*lattice.characters, *(each.word for each in lattice.words)]


def _number_speech_lattices(
    lattices: list[SpeechLattice], vocabulary: Vocabulary
) -> list[SpeechLattice]:
    return [index_speech_lattice(each, vocabulary) for each in lattices]
