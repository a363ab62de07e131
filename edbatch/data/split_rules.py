"""Split rules: how sampled binary trees divide their words between two subtrees.

A rule is applied from the root down. It maps a number of words, 2 or more, and two
uniform random numbers in [0, 1) to the number of words in the left subtree.
"""

from collections.abc import Callable, Mapping
from typing import Literal

SplitRule = Callable[[int, float, float], int]
Shape = Literal["parsed", "uniform", "balanced", "chain"]

# Fitted to the shares of one-word left and right subtrees in the right-branching
# binarized trees of GUM (4,063 trees of its genres academic, bio, interview, news and
# voyage). There, the probability of k words in the other left subtrees is about
# proportional to 1/k.
_ONE_WORD_LEFT = 1.1
_ONE_WORD_LEFT_DECAY = 0.22
_ONE_WORD_RIGHT = 0.08


def parsed(num_words: int, which: float, where: float) -> int:
    """Splits as in binarized English parses: mostly one word to the left.

    Args:
        num_words: Number of words to split.
        which: Uniform random number; decides between one word on the left, one word on
            the right, and neither.
        where: Uniform random number; decides the size of the left side if neither.

    Returns:
        The number of words on the left, 1 to `num_words - 1`.

    Example:
        >>> parsed(20, 0.1, 0.5), parsed(20, 0.6, 0.5), parsed(20, 0.9, 0.5)
        (1, 19, 6)
    """
    one_left = _ONE_WORD_LEFT * num_words**-_ONE_WORD_LEFT_DECAY
    if num_words == 2 or which < one_left:
        return 1
    if which < one_left + _ONE_WORD_RIGHT:
        return num_words - 1
    # For k from 2 to num_words - 2, P(k) is proportional to log((k + 1) / k), which
    # is about 1/k.
    return int(2 * ((num_words - 1) / 2) ** where)


def uniform(num_words: int, which: float, where: float) -> int:
    """Splits at any position with equal probability; arguments as for `parsed`.

    Example:
        >>> uniform(4, 0.0, 0.5), uniform(4, 0.99, 0.5)
        (1, 3)
    """
    del where
    return 1 + int(which * (num_words - 1))


def balanced(num_words: int, which: float, where: float) -> int:
    """Splits in the middle; arguments as for `parsed`.

    Example:
        >>> balanced(7, 0.0, 0.0)
        3
    """
    del which, where
    return num_words // 2


def chain(num_words: int, which: float, where: float) -> int:
    """Splits off one word on the left: the deepest tree; arguments as for `parsed`.

    Example:
        >>> chain(7, 0.0, 0.0)
        1
    """
    del num_words, which, where
    return 1


SPLIT_RULES: Mapping[Shape, SplitRule] = {
    "parsed": parsed,
    "uniform": uniform,
    "balanced": balanced,
    "chain": chain,
}
