"""Sentences whose rare words are spelled out, and their sampler.

The index of a character is its Unicode code point, so it does not depend on the data.
Characters for which a model has no vector have index 0.
"""

from dataclasses import dataclass

import numpy as np

from edbatch.data.samplers import sample_sentences
from edbatch.data.sentences import Sentence
from edbatch.data.vocabulary import UNKNOWN_INDEX, Vocabulary, index_sentence
from edbatch.errors import DataError

UNKNOWN_CHARACTER = 0

# In WikiGold, WNUT-17 (training part) and UD English EWT, 0.29, 0.28 and 0.23 of the
# tokens are words that occur fewer than five times there. Half of these words have up
# to six or seven characters; 90% have three to eleven, twelve or twenty.
_RARE_SHARE = 0.25
_MEAN_LETTERS = 7
_LETTERS = tuple(range(ord("a"), ord("z") + 1))


@dataclass(frozen=True, slots=True)
class SpelledSentence(Sentence):
    """An indexed sentence with the characters of its rare words.

    Attributes:
        spellings: [L] For a rare word the indices of its characters, at least one; for
            a frequent word empty. Any iterable is accepted.

    Raises:
        DataError: The numbers of words, tags and spellings differ.

    Example:
        >>> sentence = SpelledSentence([1, 0], [2, 3], [(), (99, 97, 116)])
        >>> [bool(spelling) for spelling in sentence.spellings]
        [False, True]
    """

    spellings: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        Sentence.__post_init__(self)
        object.__setattr__(self, "spellings", tuple(map(tuple, self.spellings)))
        if len(self.spellings) != len(self.words):
            raise DataError(
                "a SpelledSentence must have one spelling per word; found "
                f"{len(self.words)} words and {len(self.spellings)} spellings; usually "
                "only the rare words were given one; give () for the others"
            )


def spell_sentence(
    sentence: Sentence, words: Vocabulary, tags: Vocabulary, num_characters: int = 256
) -> SpelledSentence:
    """Indexes a sentence and spells out the words that are not in the vocabulary.

    Args:
        sentence: A sentence of strings.
        words: The vocabulary of the frequent words.
        tags: The vocabulary of the tags.
        num_characters: Characters whose code point is not below this number become
            unknown, 0.

    Returns:
        The sentence of indices and spellings.

    Raises:
        DataError: A word or tag is not a string.

    Example:
        >>> sentence = Sentence(["the", "cat"], ["DET", "NOUN"])
        >>> spell_sentence(sentence, Vocabulary(["the"]), Vocabulary(["DET", "NOUN"]))
        SpelledSentence(words=(1, 0), tags=(1, 2), spellings=((), (99, 97, 116)))
    """
    indexed = index_sentence(sentence, words, tags)
    spellings = [
        _spelling(str(word), num_characters) if index == UNKNOWN_INDEX else ()
        for word, index in zip(sentence.words, indexed.words, strict=True)
    ]
    return SpelledSentence(indexed.words, indexed.tags, tuple(spellings))


def sample_spelled_sentences(
    rng: np.random.Generator,
    count: int,
    vocabulary_size: int = 10_000,
    num_tags: int = 17,
    num_characters: int = 256,
    *,
    length: int | None = None,
) -> list[SpelledSentence]:
    """Samples tagged sentences in which about a quarter of the words are rare.

    The sentences come from `sample_sentences`. A rare word has index 0 and random
    letters: at least one, 7 on average.

    Args:
        rng: The random generator.
        count: Number of sentences.
        vocabulary_size: Words are integers below this number.
        num_tags: Tags are integers below this number.
        num_characters: Characters are integers below this number.
        length: Number of words of each sentence; drawn by `sample_lengths` if None.

    Returns:
        The sentences.

    Raises:
        DataError: `rng` is not a generator, or a number is too small.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> [sentence] = sample_spelled_sentences(rng, 1, length=4)
        >>> [len(spelling) for spelling in sentence.spellings]
        [0, 11, 0, 8]
    """
    sentences = sample_sentences(rng, count, vocabulary_size, num_tags, length=length)
    return [_with_rare_words(rng, each, num_characters) for each in sentences]


def _with_rare_words(
    rng: np.random.Generator, sentence: Sentence, num_characters: int
) -> SpelledSentence:
    rare = rng.random(len(sentence)) < _RARE_SHARE
    lengths = np.where(rare, 1 + rng.poisson(_MEAN_LETTERS - 1, len(sentence)), 0)
    spellings = [
        tuple(
            letter if letter < num_characters else UNKNOWN_CHARACTER
            for letter in rng.choice(_LETTERS, each).tolist()
        )
        for each in lengths.tolist()
    ]
    words = np.where(rare, UNKNOWN_INDEX, np.array(sentence.words)).tolist()
    return SpelledSentence(tuple(words), sentence.tags, tuple(spellings))


def _spelling(word: str, num_characters: int) -> tuple[int, ...]:
    points = map(ord, word or "\0")  # a token may be empty in a column file
    return tuple(
        point if point < num_characters else UNKNOWN_CHARACTER for point in points
    )
