import pickle

import pytest

from edbatch.data import (
    DataError,
    Sentence,
    Tree,
    Vocabulary,
    index_sentence,
    index_tree,
)


def test_frequent_tokens_come_first_and_equals_as_they_appear() -> None:
    vocabulary = Vocabulary(["c", "a", "b", "a", "b", "d"])
    assert vocabulary.tokens == ("<unk>", "a", "b", "c", "d")
    assert [vocabulary.index(token) for token in "abcdx"] == [1, 2, 3, 4, 0]
    assert len(vocabulary) == 5
    assert "a" in vocabulary and "x" not in vocabulary


@pytest.mark.parametrize(
    ("limits", "tokens"),
    [
        ({"min_count": 2}, ("<unk>", "a", "b")),
        ({"min_count": 3}, ("<unk>", "a")),
        ({"min_count": 4}, ("<unk>",)),
        ({"max_size": 3}, ("<unk>", "a", "b")),
        ({"max_size": 1}, ("<unk>",)),
        ({"max_size": 99}, ("<unk>", "a", "b", "c")),
        ({"min_count": 2, "max_size": 2}, ("<unk>", "a")),
    ],
)
def test_limits(limits: dict[str, int], tokens: tuple[str, ...]) -> None:
    assert Vocabulary(["c", "b", "a", "b", "a", "a"], **limits).tokens == tokens


def test_unk_among_the_tokens_stays_at_zero() -> None:
    vocabulary = Vocabulary(["<unk>", "<unk>", "a"])
    assert vocabulary.tokens == ("<unk>", "a")
    assert vocabulary.index("<unk>") == 0


def test_a_vocabulary_comes_back_from_its_tokens_and_from_a_pickle() -> None:
    vocabulary = Vocabulary(["c", "b", "a", "b", "a", "a"])
    for again in (
        Vocabulary(vocabulary.tokens),
        pickle.loads(pickle.dumps(vocabulary)),
    ):
        assert again == vocabulary and hash(again) == hash(vocabulary)
        assert again.index("b") == vocabulary.index("b")
    assert Vocabulary(["a"]) != vocabulary
    assert repr(vocabulary) == "<Vocabulary of 4 tokens>"


def test_index_tree_keeps_shape_and_labels() -> None:
    vocabulary = Vocabulary(["dog", "barks"])
    tree = Tree("root", "barks", [Tree("nsubj", "dog", [Tree("det", "the")])])
    assert index_tree(tree, vocabulary) == Tree(
        "root", 2, [Tree("nsubj", 1, [Tree("det", 0)])]
    )
    inner = Tree("NP", None, [Tree("DT", "the"), Tree("NN", "dog")])
    assert index_tree(inner, vocabulary) == Tree(
        "NP", None, [Tree("DT", 0), Tree("NN", 1)]
    )


def test_index_tree_does_not_recurse() -> None:
    tree = Tree("X", "dog")
    for _ in range(100_000):
        tree = Tree("X", "dog", [tree])
    assert set(index_tree(tree, Vocabulary(["dog"])).words()) == {1}


def test_index_sentence() -> None:
    words, tags = Vocabulary(["dogs"]), Vocabulary(["NOUN", "VERB"])
    indexed = index_sentence(Sentence(("dogs", "bark"), ("VERB", "X")), words, tags)
    assert indexed == Sentence((1, 0), (2, 0))


def test_indexing_twice_is_refused() -> None:
    vocabulary = Vocabulary(["dog"])
    tree = index_tree(Tree("NN", "dog"), vocabulary)
    message = (
        "a Vocabulary holds strings; found 1, a int; usually data that is indexed "
        "already, or sampled; index it once, or not at all"
    )
    with pytest.raises(DataError, match=message):
        index_tree(tree, vocabulary)
    with pytest.raises(DataError, match=message):
        Vocabulary(tree.words())


def test_no_token_at_all() -> None:
    with pytest.raises(
        DataError,
        match="at least one token; found none; usually an iterator that was used up "
        "before; pass a list",
    ):
        Vocabulary(iter([]))


@pytest.mark.parametrize("limit", ["min_count", "max_size"])
def test_limits_below_one(limit: str) -> None:
    with pytest.raises(
        DataError,
        match=f"{limit} must be 1 or more; found 0; usually 0 for no limit; leave the",
    ):
        Vocabulary(["a"], **{limit: 0})
