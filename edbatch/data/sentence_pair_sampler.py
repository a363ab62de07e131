"""Sampler of sentence pairs that resemble real ones in size.

Comparison with the 26,388 English-Chinese sentence pairs of Tatoeba, in English words
and Chinese characters. The correlation of the two lengths is 0.77 in Tatoeba and 0.78
in the samples:

    source                   mean    5 %   median   95 %    max
    Tatoeba                   6.2      3        6     10     32
    20,000 sampled            6.2      3        6     10     20

    target                   mean    5 %   median   95 %    max
    Tatoeba                   9.8      5        9     16     44
    sampled                   9.8      5       10     16     27
"""

import numpy as np

from edbatch.data.sentence_pairs import SentencePair
from edbatch.data.zipf import check_request, zipf_words

START_INDEX, END_INDEX = 1, 2  # if the vocabulary is large enough
MAX_SOURCE, MAX_TARGET = 32, 44

# Source lengths have a gamma distribution. Target lengths are a linear function of
# source lengths plus normal noise.
_SOURCE_SHAPE, _SOURCE_MEAN = 7.5, 6.2
_TARGET_PER_SOURCE, _TARGET_OFFSET, _TARGET_SPREAD = 1.17, 2.56, 2.1


def sample_sentence_pairs(
    rng: np.random.Generator,
    count: int,
    vocabulary_size: int = 10_000,
    *,
    length: int | None = None,
) -> list[SentencePair]:
    """Samples sentence pairs.

    Args:
        rng: The random generator.
        count: Number of pairs.
        vocabulary_size: Words of both languages are integers below this number. Targets
            begin with word 1 and end with word 2 if the vocabulary is large enough.
        length: Number of words of each source; sampled if None.

    Returns:
        The pairs.

    Raises:
        DataError: `rng` is not a generator, or a number is too small.

    Example:
        >>> [pair] = sample_sentence_pairs(np.random.default_rng(0), 1, 50, length=3)
        >>> len(pair.source), pair.target[0], pair.target[-1]
        (3, 1, 2)
    """
    check_request(rng, count=(count, 0), vocabulary_size=(vocabulary_size, 1))
    if length is None:
        drawn = rng.gamma(_SOURCE_SHAPE, _SOURCE_MEAN / _SOURCE_SHAPE, count)
        sources = np.rint(drawn).clip(1, MAX_SOURCE)
    else:
        check_request(rng, length=(length, 1))
        sources = np.full(count, length)
    drawn = rng.normal(_TARGET_PER_SOURCE * sources + _TARGET_OFFSET, _TARGET_SPREAD)
    targets = np.rint(drawn).clip(1, MAX_TARGET)
    last = vocabulary_size - 1
    return [
        SentencePair(
            tuple(zipf_words(rng, int(source), vocabulary_size)),
            (
                min(START_INDEX, last),
                *zipf_words(rng, int(target), vocabulary_size),
                min(END_INDEX, last),
            ),
        )
        for source, target in zip(sources, targets, strict=True)
    ]
