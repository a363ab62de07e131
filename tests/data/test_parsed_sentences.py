"""Parsed sentences: the reader, the indices and the sampler."""

from pathlib import Path

import numpy as np
import pytest

from edbatch.data import (
    DataError,
    ParsedSentence,
    Vocabulary,
    index_parsed_sentence,
    read_dependency_trees,
    read_parsed_sentences,
    read_sentences,
    sample_parsed_sentences,
    tree_from_heads,
)

CONLLU = """\
# text = The dogs don't
1\tThe\tthe\tDET\tDT\t_\t2\tdet\t_\t_
2\tdogs\tdog\tNOUN\tNNS\t_\t3\tnsubj\t_\t_
3-4\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
3\tdo\tdo\tVERB\tVBP\t_\t0\troot\t_\t_
4\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
"""


def test_a_sentence_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.conllu"
    file.write_text(CONLLU)
    assert read_parsed_sentences(file) == [
        ParsedSentence(
            words=("The", "dogs", "do", "n't"),
            tags=("DET", "NOUN", "VERB", "PART"),
            heads=(2, 3, 0, 3),
            relations=("det", "nsubj", "root", "advmod"),
        )
    ]
    [lemmas] = read_parsed_sentences(file, words="lemma", tags="xpos", labels="upos")
    assert lemmas.words[1:] == ("dog", "do", "not")
    assert lemmas.tags[0] == "DT" and lemmas.relations[0] == "DET"


def test_heads_that_are_no_tree(tmp_path: Path) -> None:
    file = tmp_path / "a.conllu"
    file.write_text(CONLLU.replace("\t0\troot", "\t1\troot"))
    with pytest.raises(DataError, match=r"a\.conllu, line 2, column 20: exactly"):
        read_parsed_sentences(file)


def test_relations_are_numbered_from_two_and_the_root_has_none() -> None:
    sentence = ParsedSentence("abc", "XYX", [2, 0, 2], ["det", "root", "dep"])
    words, tags = Vocabulary("ab"), Vocabulary("X")
    found = index_parsed_sentence(sentence, words, tags, Vocabulary(["dep"]))
    assert found == ParsedSentence((1, 2, 0), (1, 0, 1), (2, 0, 2), (1, 0, 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ab", "X", [2, 0], "dr"), r"found 2 words and \[1, 2, 2\] of these"),
        (("ab", "XX", [2, 1], "dr"), "exactly one word must have the head 0"),
    ],
)
def test_what_is_no_parsed_sentence(arguments, message) -> None:
    with pytest.raises(DataError, match=message):
        ParsedSentence(*arguments)


def test_samples_are_projective_and_their_relations_can_be_learned() -> None:
    sentences = sample_parsed_sentences(
        np.random.default_rng(0), 400, num_tags=5, num_relations=12
    )
    to_the_left = []
    relation_of: dict[tuple[int, bool], int] = {}
    for each in sentences:
        assert each.is_projective
        columns = zip(each.words, each.tags, each.heads, each.relations, strict=True)
        for k, (word, tag, head, relation) in enumerate(columns, start=1):
            assert tag == word % 5
            assert (relation == 0) == (head == 0)
            if head:
                assert relation_of.setdefault((tag, head > k), relation) == relation
                to_the_left.append(head > k)
    assert min(relation_of.values()) > 0 and max(relation_of.values()) < 12
    assert len(relation_of) == 10
    assert 0.58 < np.mean(to_the_left) < 0.64


def test_a_long_sample() -> None:
    rng = np.random.default_rng(0)
    [sentence] = sample_parsed_sentences(rng, 1, length=20_000)
    assert len(sentence) == 20_000 and sentence.is_projective


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"num_relations": 1}, "num_relations must be 2 or more; found 1"),
        ({"num_tags": 0}, "num_tags must be 1 or more; found 0"),
        ({"length": 0}, "length must be 1 or more; found 0"),
    ],
)
def test_requests_that_cannot_be_met(request_, message) -> None:
    with pytest.raises(DataError, match=message):
        sample_parsed_sentences(np.random.default_rng(0), 1, **request_)


def test_ewt_agrees_with_the_other_readers(shared_data: Path) -> None:
    path = shared_data / "ud_english_ewt" / "en_ewt-ud-dev.conllu"
    found = read_parsed_sentences(path)
    assert [(e.words, e.tags) for e in found] == [
        (e.words, e.tags) for e in read_sentences(path)
    ]
    trees = read_dependency_trees(path)
    assert [tree_from_heads(e.words, e.heads, e.relations) for e in found] == trees
    lefts = [h > k for e in found for k, h in enumerate(e.heads, start=1) if h]
    assert np.mean(lefts) == pytest.approx(0.61, abs=0.01)
