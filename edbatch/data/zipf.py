"""Sampling of words by Zipf's law, and the check of a sampler's arguments."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from edbatch.errors import DataError


def zipf_words(rng: np.random.Generator, count: int, vocabulary_size: int) -> list[int]:
    """Samples words with frequencies proportional to ``1 / (word + 2)``.

    Args:
        rng: The random generator.
        count: Number of words.
        vocabulary_size: Words are integers below this number; 0 is the most frequent.

    Returns:
        The words.

    Example:
        >>> zipf_words(np.random.default_rng(0), 5, 1)
        [0, 0, 0, 0, 0]
    """
    cumulative = _cumulative(vocabulary_size)
    found: list[int] = np.searchsorted(
        cumulative, rng.random(count), side="right"
    ).tolist()
    return found


def check_request(rng: object, **numbers: tuple[int, int]) -> None:
    """Checks the arguments of a sampler.

    Args:
        rng: The argument that should be a random generator.
        **numbers: For each argument its value and its minimum.

    Raises:
        DataError: ``rng`` is not a generator, or a number is too small.
    """
    if not isinstance(rng, np.random.Generator):
        raise DataError(
            f"rng must be a numpy.random.Generator; found {rng!r}, a "
            f"{type(rng).__name__}; usually a seed; pass numpy.random.default_rng(seed)"
        )
    for name, (value, minimum) in numbers.items():
        if value < minimum:
            raise DataError(
                f"{name} must be {minimum} or more; found {value}; usually a computed "
                f"number that went wrong; pass {minimum} or more"
            )


@lru_cache(maxsize=8)
def _cumulative(vocabulary_size: int) -> NDArray[np.float64]:
    """Returns the cumulative frequencies of the words."""
    cumulative = np.cumsum(1.0 / np.arange(2, vocabulary_size + 2))
    cumulative /= cumulative[-1]
    return cumulative
