from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edbatch.data import (
    DataError,
    Tree,
    binarize,
    read_dependency_trees,
    read_trees,
    sample_character_lattices,
    sample_dependency_trees,
    sample_lengths,
    sample_sentence_pairs,
    sample_sentences,
    sample_speech_lattices,
    sample_tree,
    sample_trees,
)
from edbatch.data.split_rules import SPLIT_RULES

SAMPLERS = [
    *(sample_trees, sample_dependency_trees, sample_sentences),
    *(sample_character_lattices, sample_speech_lattices, sample_sentence_pairs),
]
SHAPES = list(SPLIT_RULES)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def mean_height(trees: list[Tree]) -> float:
    return float(np.mean([tree.height() for tree in trees]))


@pytest.mark.parametrize("sample", SAMPLERS)
def test_one_seed_gives_one_sample(sample: Callable[..., list[Any]]) -> None:
    assert sample(generator(1), 5) == sample(generator(1), 5)
    assert sample(generator(1), 5) != sample(generator(2), 5)
    rng = generator(1)
    assert sample(rng, 5) != sample(rng, 5)
    assert sample(generator(1), 0) == []


def test_a_sample_is_pinned() -> None:
    [tree] = sample_trees(generator(7), 1, 50, length=6)
    assert str(tree) == "( 12 ( ( 34 ( 21 ( 1 2))) 31))"
    [tree] = sample_dependency_trees(generator(7), 1, 50, length=6)
    assert str(tree) == "(12 (34 (21 2 31) 1))"


def test_lengths_are_those_of_sentences() -> None:
    lengths = np.array(sample_lengths(generator(), 20_000))
    assert 21 < lengths.mean() < 22
    assert np.median(lengths) == 19
    assert 46 < np.percentile(lengths, 95) < 51
    assert lengths.min() == 1 and 100 < lengths.max() <= 130


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 33])
def test_binary_trees(shape: str, length: int) -> None:
    for tree in sample_trees(generator(), 20, 7, length=length, shape=shape):
        words = tree.words()
        assert len(words) == length and tree.num_nodes() == 2 * length - 1
        assert all(type(word) is int and 0 <= word < 7 for word in words)
        for node in tree.postorder():
            assert len(node.children) in (0, 2)
            assert node.is_leaf == (node.word is not None)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 8, 33])
def test_dependency_trees(length: int) -> None:
    for tree in sample_dependency_trees(generator(), 20, 7, length=length):
        assert tree.num_nodes() == length == len(tree.words())
        assert all(type(word) is int and 0 <= word < 7 for word in tree.words())


@pytest.mark.parametrize("length", [1, 5, None])
def test_sentences(length: int | None) -> None:
    for sentence in sample_sentences(generator(), 20, 7, 3, length=length):
        assert length is None or len(sentence) == length
        assert all(type(word) is int and 0 <= word < 7 for word in sentence.words)
        assert all(type(tag) is int and 0 <= tag < 3 for tag in sentence.tags)


def test_most_tags_follow_from_the_word() -> None:
    follows = [
        tag == int(word) % 17
        for sentence in sample_sentences(generator(), 500)
        for word, tag in zip(sentence.words, sentence.tags, strict=True)
    ]
    assert 0.89 < np.mean(follows) < 0.93


def test_words_follow_zipf() -> None:
    sentences = sample_sentences(generator(), 1000, 1000, 2, length=100)
    counts = Counter(word for sentence in sentences for word in sentence.words)
    assert 1.4 < counts[0] / counts[1] < 1.6  # shares are as 1 / (rank + 1)
    assert 4.5 < counts[0] / counts[9] < 6.5
    assert len(counts) == 1000


def test_shapes_have_their_heights() -> None:
    for length in (2, 3, 7, 8, 9, 64):
        balanced = sample_tree(generator(), length=length, shape="balanced")
        assert balanced.height() == int(np.ceil(np.log2(length)))
        chain = sample_tree(generator(), length=length, shape="chain")
        assert chain.height() == length - 1 and chain.left.is_leaf
    uniform = mean_height(sample_trees(generator(), 200, length=25, shape="uniform"))
    assert uniform < mean_height(sample_trees(generator(), 200, length=25)) - 3


@pytest.mark.parametrize(
    ("num_words", "reached"),
    [(2, {1}), (3, {1, 2}), (4, {1, 2, 3}), (9, {*range(1, 9)})],
)
@pytest.mark.parametrize("rule", ["parsed", "uniform"])
def test_split_rules_reach_every_place_and_no_other(
    rule: str, num_words: int, reached: set[int]
) -> None:
    ends = [0.0, *generator().random(300).tolist(), np.nextafter(1.0, 0.0)]
    split = SPLIT_RULES[rule]  # type: ignore[index]
    assert {split(num_words, a, b) for a in ends for b in ends} == reached


def test_a_tree_100_000_deep_is_sampled() -> None:
    tree = sample_tree(generator(), length=100_001, shape="chain")
    assert tree.height() == 100_000
    [tree] = sample_dependency_trees(generator(), 1, length=100_000)
    assert tree.num_nodes() == 100_000


def test_heights_resemble_those_of_binarized_gum(shared_data: Path) -> None:
    folder = shared_data / "gum_const" / "const"
    if not folder.is_dir():
        pytest.skip("no gum_const in the folder of public data sets")
    real = [binarize(tree) for tree in read_trees(folder)]
    sampled = sample_trees(generator(), len(real))
    assert abs(mean_height(real) - mean_height(sampled)) < 0.5
    for low, high in [(5, 10), (10, 20), (20, 30), (30, 50)]:
        heights = [
            mean_height([tree for tree in trees if low <= len(tree.words()) < high])
            for trees in (real, sampled)
        ]
        assert abs(heights[0] - heights[1]) < 0.6, (low, high, heights)


def test_arities_and_heights_resemble_those_of_ewt(shared_data: Path) -> None:
    folder = shared_data / "ud_english_ewt"
    if not folder.is_dir():
        pytest.skip("no ud_english_ewt in the folder of public data sets")
    real = read_dependency_trees(folder)
    rng = generator()
    sampled = [
        tree
        for each in real
        for tree in sample_dependency_trees(rng, 1, length=each.num_nodes())
    ]
    assert abs(mean_height(real) - mean_height(sampled)) < 0.2
    shares = []
    for trees in (real, sampled):
        arities = [len(node.children) for tree in trees for node in tree.postorder()]
        shares.append(np.bincount(arities, minlength=30) / len(arities))
    assert np.abs(shares[0] - shares[1]).max() < 0.04


@pytest.mark.parametrize("sample", [*SAMPLERS, sample_lengths])
def test_a_seed_is_not_a_generator(sample: Callable[..., Any]) -> None:
    with pytest.raises(
        DataError,
        match=r"rng must be a numpy\.random\.Generator; found 3, a int; usually a seed"
        r"; pass numpy\.random\.default_rng\(seed\)",
    ):
        sample(3, 5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda rng: sample_trees(rng, -1),
            "count must be 0 or more; found -1; usually",
        ),
        (lambda rng: sample_lengths(rng, -1), "count must be 0 or more; found -1"),
        (lambda rng: sample_tree(rng, 0), "vocabulary_size must be 1 or more; found 0"),
        (
            lambda rng: sample_tree(rng, length=0),
            "length must be 1 or more; found 0; us",
        ),
        (
            lambda rng: sample_sentences(rng, 1, 5, 0),
            "num_tags must be 1 or .* found 0",
        ),
        (
            lambda rng: sample_tree(rng, shape="ballanced"),
            "a shape must be one of 'parsed', 'uniform', 'balanced', 'chain'; found "
            "'ballanced'; usually a misspelling; did you mean 'balanced'?",
        ),
    ],
)
def test_requests_that_cannot_be_met(
    call: Callable[[np.random.Generator], Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        call(generator())
