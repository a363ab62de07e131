"""Samplers of synthetic instances that resemble real text in size and shape.

All samplers take a `numpy.random.Generator` and return the same instances for the same
state of it. Words are integers from 0, the most frequent word, and follow Zipf's law.
The samples were compared with GUM (4,063 constituency trees, 87,215 tokens) and with
the development and test parts of UD English EWT:

    words per sentence     mean    5 %   median   95 %    max
    GUM                    21.5      2       19     47    101
    20,000 sampled         21.4      4       19     49    104

    share of the tokens that are among the 1, 10, 100, 1000 most frequent words
    GUM                    0.05   0.27     0.48   0.71
    sampled, 12,656 words  0.05   0.22     0.47   0.72
"""

import math
from collections.abc import Iterator

import numpy as np

from edbatch.data.dependencies import build_tree
from edbatch.data.sentences import Sentence
from edbatch.data.split_rules import SPLIT_RULES, Shape, SplitRule
from edbatch.data.trees import Tree
from edbatch.data.zipf import check_request, zipf_words
from edbatch.errors import DataError, nearest

MAX_LENGTH = 130

# A Weibull distribution, fitted to the lengths of GUM's sentences.
_LENGTH_SHAPE, _LENGTH_SCALE = 1.5, 23.3
# In UD English EWT the mean arity is 1 + 1.22 ln(words below the node), and the sizes
# of a node's subtrees vary about as much as uniform numbers to the power of 0.25.
_ARITY_GROWTH, _SUBTREE_POWER = 1.22, 0.25
_TAG_FOLLOWS_WORD = 0.9


def sample_lengths(rng: np.random.Generator, count: int) -> list[int]:
    """Samples sentence lengths: from 1 to 130 words, mean 21.5, median 19.

    Args:
        rng: The random generator.
        count: Number of lengths.

    Returns:
        The lengths.

    Raises:
        DataError: `rng` is not a generator, or the count is negative.

    Example:
        >>> len(sample_lengths(np.random.default_rng(0), 3))
        3
    """
    check_request(rng, count=(count, 0))
    drawn = np.ceil(rng.weibull(_LENGTH_SHAPE, count) * _LENGTH_SCALE)
    return [int(length) for length in drawn.clip(1, MAX_LENGTH)]


def sample_tree(
    rng: np.random.Generator,
    vocabulary_size: int = 10_000,
    *,
    length: int | None = None,
    shape: Shape = "parsed",
) -> Tree:
    """Samples one binary tree with words at its leaves; see `sample_trees`.

    Args:
        rng: The random generator.
        vocabulary_size: Words are integers below this number.
        length: Number of words; drawn by `sample_lengths` if None.
        shape: As for `sample_trees`.

    Returns:
        The tree.

    Raises:
        DataError: As for `sample_trees`.

    Example:
        >>> tree = sample_tree(np.random.default_rng(0), length=8, shape="balanced")
        >>> len(tree.words()), tree.height()
        (8, 3)
    """
    [tree] = sample_trees(rng, 1, vocabulary_size, length=length, shape=shape)
    return tree


def sample_trees(
    rng: np.random.Generator,
    count: int,
    vocabulary_size: int = 10_000,
    *,
    length: int | None = None,
    shape: Shape = "parsed",
) -> list[Tree]:
    """Samples binary trees with words at their leaves, without labels.

    Shape `"parsed"` resembles binarized parses. `"uniform"` splits at any position and
    gives much flatter trees. `"balanced"` trees are as flat as possible, `"chain"`
    trees as deep as possible. Heights, with GUM's sentence lengths in all rows:

        height                  mean   median   95 %   max   at 20-29 words
        GUM, binarized right    11.2       11     21    47   13.2
        GUM, binarized left      9.9       10     18    45   11.6
        "parsed"                11.3       11     21    38   13.4
        "uniform"                7.0        7     11    17    8.3
        "balanced"               4.4        5      6     7    5.0
        "chain"                 20.5       18     46   100   23.2

    Args:
        rng: The random generator.
        count: Number of trees.
        vocabulary_size: Words are integers below this number.
        length: Number of words of each tree; drawn by `sample_lengths` if None.
        shape: `"parsed"`, `"uniform"`, `"balanced"` or `"chain"`.

    Returns:
        The trees.

    Raises:
        DataError: `rng` is not a generator, a number is too small, or the shape is
            unknown.

    Example:
        >>> for tree in sample_trees(np.random.default_rng(0), 2, 100, length=3):
        ...     print(tree.height())
        2
        2
    """
    if shape not in SPLIT_RULES:
        raise DataError(
            f"a shape must be one of {', '.join(map(repr, SPLIT_RULES))}; found "
            f"{shape!r}; usually a misspelling; {nearest(str(shape), SPLIT_RULES)}"
        )
    return [
        _binary_tree(words, rng.random((len(words), 2)).tolist(), SPLIT_RULES[shape])
        for words in _sampled_words(rng, count, vocabulary_size, length)
    ]


def sample_dependency_trees(
    rng: np.random.Generator,
    count: int,
    vocabulary_size: int = 10_000,
    *,
    length: int | None = None,
) -> list[Tree]:
    """Samples trees with a word at every node, any number of children and no labels.

    Comparison with UD English EWT, at its sentence lengths:

        nodes with 0, 1, 2, 3, 4, 5 children     most    height: mean   95 %   max
        EWT      0.65 0.11 0.09 0.06 0.04 0.03     12             2.9      6    12
        sampled  0.62 0.14 0.09 0.06 0.04 0.02     13             2.9      6    10

    Args:
        rng: The random generator.
        count: Number of trees.
        vocabulary_size: Words are integers below this number.
        length: Number of words of each tree; drawn by `sample_lengths` if None.

    Returns:
        The trees.

    Raises:
        DataError: `rng` is not a generator, or a number is too small.

    Example:
        >>> [tree] = sample_dependency_trees(np.random.default_rng(0), 1, length=12)
        >>> len(tree.words()), tree.num_nodes()
        (12, 12)
    """
    return [
        build_tree(words, _heads(rng, len(words)), [None] * len(words))
        for words in _sampled_words(rng, count, vocabulary_size, length)
    ]


def sample_sentences(
    rng: np.random.Generator,
    count: int,
    vocabulary_size: int = 10_000,
    num_tags: int = 17,
    *,
    length: int | None = None,
) -> list[Sentence]:
    """Samples tagged sentences whose tags can be learned only partly.

    Nine of ten tags are `word % num_tags`; the others are uniformly random.

    Args:
        rng: The random generator.
        count: Number of sentences.
        vocabulary_size: Words are integers below this number.
        num_tags: Tags are integers below this number.
        length: Number of words of each sentence; drawn by `sample_lengths` if None.

    Returns:
        The sentences.

    Raises:
        DataError: `rng` is not a generator, or a number is too small.

    Example:
        >>> [sentence] = sample_sentences(np.random.default_rng(0), 1, 50, 5, length=4)
        >>> len(sentence), all(0 <= tag < 5 for tag in sentence.tags)
        (4, True)
    """
    check_request(rng, num_tags=(num_tags, 1))
    sentences: list[Sentence] = []
    for words in _sampled_words(rng, count, vocabulary_size, length):
        follows = rng.random(len(words)) < _TAG_FOLLOWS_WORD
        noise = rng.integers(num_tags, size=len(words))
        tags = np.where(follows, np.array(words) % num_tags, noise)
        sentences.append(Sentence(tuple(words), tuple(tags.tolist())))
    return sentences


def _sampled_words(
    rng: np.random.Generator, count: int, vocabulary_size: int, length: int | None
) -> Iterator[list[int]]:
    """Checks the arguments, then yields the words of each instance."""
    check_request(rng, count=(count, 0), vocabulary_size=(vocabulary_size, 1))
    if length is not None:
        check_request(rng, length=(length, 1))
    lengths = sample_lengths(rng, count) if length is None else [length] * count
    for each in lengths:
        yield zipf_words(rng, each, vocabulary_size)


def _binary_tree(
    words: list[int], uniforms: list[list[float]], split: SplitRule
) -> Tree:
    sizes: list[int] = []  # the number of words below each node, in preorder
    stack = [len(words)]
    inner = 0
    while stack:
        size = stack.pop()
        sizes.append(size)
        if size > 1:
            left = split(size, *uniforms[inner])
            inner += 1
            stack += (size - left, left)
    built: list[Tree] = []
    rest = list(words)
    for size in reversed(sizes):  # right to left, children before their parent
        if size == 1:
            built.append(Tree(None, rest.pop()))
        else:
            built.append(Tree(None, None, (built.pop(), built.pop())))
    return built[0]


def _heads(rng: np.random.Generator, length: int) -> list[int]:
    """Samples the heads of a tree, as for `tree_from_heads`, top-down."""
    heads = [0]
    stack = [(1, length - 1)]  # a word and the number of words below it
    while stack:
        head, below = stack.pop()
        if not below:
            continue
        arity = 1
        if below > 1:
            chance = min(1.0, _ARITY_GROWTH * math.log(below) / (below - 1))
            arity += int(rng.binomial(below - 1, chance))
        spare = below - arity  # words below `head` that are not its children
        for share in rng.random(arity - 1).tolist():
            taken = round(spare * share**_SUBTREE_POWER)
            heads.append(head)
            stack.append((len(heads), taken))
            spare -= taken
        heads.append(head)
        stack.append((len(heads), spare))
    return heads
