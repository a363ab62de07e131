import dataclasses

import numpy as np
import pytest

from edbatch.data import (
    DataError,
    Sentence,
    SpelledSentence,
    Vocabulary,
    sample_spelled_sentences,
    spell_sentence,
)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_any_sequences_become_tuples() -> None:
    sentence = SpelledSentence([1, 0], [2, 2], [[], iter([97, 98])])  # type: ignore[arg-type]
    assert sentence == SpelledSentence((1, 0), (2, 2), ((), (97, 98)))
    assert sentence != Sentence((1, 0), (2, 2)) and len(sentence) == 2
    assert hash(sentence) == hash(dataclasses.replace(sentence))


def test_there_is_one_tag_and_one_spelling_per_word() -> None:
    with pytest.raises(DataError, match="one tag per word; found 1 words and 2 tags"):
        SpelledSentence((1,), (2, 2), ((),))
    with pytest.raises(
        DataError,
        match=r"one spelling per word; found 2 words and 1 spellings; usually only the"
        r" rare words were given one; give \(\) for the others",
    ):
        SpelledSentence((1, 0), (2, 2), ((97,),))


def test_only_unknown_words_are_spelled() -> None:
    sentence = Sentence(["the", "naïve", "№1", ""], ["D", "A", "N", "X"])
    words, tags = Vocabulary(["the"]), Vocabulary(["D", "A", "N"])
    spelled = spell_sentence(sentence, words, tags)
    assert spelled.words == (1, 0, 0, 0) and spelled.tags == (1, 2, 3, 0)
    assert spelled.spellings == (
        (),
        (110, 97, 239, 118, 101),
        (0, 49),  # the sign is beyond the 256 characters
        (0,),  # an empty word has one unknown character
    )
    spelled = spell_sentence(sentence, words, tags, num_characters=98)
    assert spelled.spellings[1] == (0, 97, 0, 0, 0)


def test_words_that_are_indexed_already_are_refused() -> None:
    with pytest.raises(DataError, match="a Vocabulary holds strings; found 3, a int"):
        spell_sentence(Sentence([3], ["D"]), Vocabulary(["a"]), Vocabulary(["D"]))


def test_one_seed_gives_one_sample() -> None:
    first, again, other = (
        sample_spelled_sentences(generator(seed), 5) for seed in (1, 1, 2)
    )
    assert first == again != other
    assert sample_spelled_sentences(generator(), 0) == []


def test_a_quarter_of_the_words_is_rare() -> None:
    sentences = sample_spelled_sentences(generator(), 500, 50, 3, 110)
    spellings = [each for sentence in sentences for each in sentence.spellings]
    lengths = np.array([len(each) for each in spellings if each])
    assert 0.24 < len(lengths) / len(spellings) < 0.26
    assert 6.8 < lengths.mean() < 7.2
    assert {letter for each in spellings for letter in each} == {0, *range(97, 110)}
    for sentence in sentences:
        for word, spelling in zip(sentence.words, sentence.spellings, strict=True):
            assert 0 <= int(word) < 50 and (not spelling or word == 0)


def test_requests_that_cannot_be_met() -> None:
    with pytest.raises(DataError, match=r"rng must be a numpy\.random\.Generator"):
        sample_spelled_sentences(3, 1)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="length must be 1 or more; found 0"):
        sample_spelled_sentences(generator(), 1, length=0)
