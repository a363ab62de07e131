from itertools import product

import pytest

from edbatch.data import DataError, Tree, tree_from_heads
from edbatch.data.dependencies import find_fault


def is_tree(heads: tuple[int, ...]) -> bool:
    """Whether following heads leads from every word to the single root."""
    if heads.count(0) != 1 or not all(0 <= head <= len(heads) for head in heads):
        return False
    for word in range(1, len(heads) + 1):
        here = word
        for _ in heads:
            here = heads[here - 1] if here else 0
        if here:
            return False
    return True


@pytest.mark.parametrize("count", range(6))
def test_every_small_set_of_heads(count: int) -> None:
    for heads in product(range(-1, count + 2), repeat=count):
        assert (find_fault(heads) is None) == is_tree(heads), heads


@pytest.mark.parametrize("count", range(1, 6))
def test_every_small_tree_is_built(count: int) -> None:
    def naive(heads: tuple[int, ...], word: int) -> Tree:
        below = [i for i, head in enumerate(heads, start=1) if head == word]
        return Tree(f"r{word}", word, [naive(heads, child) for child in below])

    for heads in product(range(count + 1), repeat=count):
        if is_tree(heads):
            words = range(1, count + 1)
            tree = tree_from_heads(words, heads, [f"r{word}" for word in words])
            assert tree == naive(heads, heads.index(0) + 1)


def test_a_chain_of_100_000_words() -> None:
    count = 100_000
    tree = tree_from_heads(range(count), range(count))
    assert tree.words() == tuple(range(count))
    backwards = tree_from_heads(range(count), [*range(2, count + 1), 0])
    assert backwards.words() == tuple(reversed(range(count)))


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        (
            [0, 4, 1],
            "a head must be 0 or a word of the sentence, 1 to 3; found 4 at wo",
        ),
        ([0, -1], "found -1 at word 2; usually a sentence cut in two, or .*; fix the"),
        (
            [2, 1],
            "exactly one word must have the head 0, the root; found none among 2 w",
        ),
        ([], "found none among 0 words; usually a sentence cut in two, or heads co"),
        ([0, 1, 0], "found the words 1, 3; usually two sentences without a blank line"),
        ([0] * 20, "found the words 1, 2, 3, 4, 5, 6, 7, 8, ...; usually"),
        (
            [0, 3, 4, 2],
            "must lead to the root; found the words 2, 3, 4 in a cycle; usu",
        ),
        ([0, 2], "found the words 2 in a cycle; usually a mistake of annotation; fix"),
        ([3, 0, 4, 3], "found the words 3, 4 in a cycle"),
    ],
)
def test_faults_are_named(heads: list[int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        tree_from_heads(["w"] * len(heads), heads)


def test_lengths_must_agree() -> None:
    with pytest.raises(
        DataError,
        match="one head and one label per word; found 2 words, 1 heads and 3 labels; "
        "usually lines of different sentences; give sequences of one length",
    ):
        tree_from_heads(["a", "b"], [0], ["x", "y", "z"])


def test_labels_may_be_left_out() -> None:
    assert tree_from_heads(["a"], [0]) == Tree(None, "a")
