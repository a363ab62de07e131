import dataclasses

import pytest

from edbatch.data import DataError, Sentence


def test_any_sequences_become_tuples() -> None:
    sentence = Sentence(["dogs", "bark"], iter(["NOUN", "VERB"]))  # type: ignore[arg-type]
    assert sentence == Sentence(("dogs", "bark"), ("NOUN", "VERB"))
    assert len(sentence) == 2 and hash(sentence) == hash(dataclasses.replace(sentence))


def test_a_sentence_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Sentence((1,), (2,)).words = ()  # type: ignore[misc]


def test_there_is_one_tag_per_word() -> None:
    with pytest.raises(
        DataError,
        match=r"one tag per word; found 2 words and 1 tags; usually .*; give two seq",
    ):
        Sentence(("dogs", "bark"), ("NOUN",))
