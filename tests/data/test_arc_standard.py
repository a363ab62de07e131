"""Arc-standard transitions: the oracle derives its tree; legal ones end in a tree."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from edbatch.data import Configuration, DataError, oracle, read_parsed_sentences
from edbatch.data.arc_standard import (
    SHIFT,
    count_transitions,
    left_arc,
    right_arc,
)
from edbatch.data.dependencies import find_fault
from edbatch.data.parsed_sentences import crossing_arcs

RELATIONS = 3


def derive(length, transitions):
    """Applies transitions, all of which must be legal, until the parse is done."""
    parse = Configuration(length)
    for transition in transitions:
        assert not parse.done
        assert parse.legal(count_transitions(9))[transition]
        parse.apply(transition)
    assert parse.done
    return parse


def trees(length):
    """All trees over `length` words, as heads."""
    for heads in itertools.product(range(length + 1), repeat=length):
        if find_fault(heads) is None:
            yield heads


def cross(heads):
    """By definition: each of two arcs has one end strictly inside the other."""
    arcs = [tuple(sorted(arc)) for arc in enumerate(heads, start=1)]
    return any(a < c < b < d for a, b in arcs for c, d in arcs)


@pytest.mark.parametrize("length", range(1, 6))
def test_crossing_arcs_of_every_small_tree(length: int) -> None:
    for heads in trees(length):
        assert crossing_arcs(heads) == cross(heads)


@pytest.mark.parametrize("length", range(1, 6))
def test_the_oracle_derives_every_small_projective_tree(length: int) -> None:
    found = 0
    for heads in trees(length):
        if cross(heads):
            with pytest.raises(DataError, match="projective trees only; found cross"):
                oracle(heads, [1] * length)
            continue
        relations = [1 + k % 4 if head else 0 for k, head in enumerate(heads)]
        transitions = oracle(heads, relations)
        assert len(transitions) == 2 * length - 1
        parse = derive(length, transitions)
        assert (tuple(parse.heads), parse.relations) == (heads, relations)
        found += 1
    assert found == [1, 2, 7, 30, 143][length - 1]  # A006013, rooted projective trees


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_every_sequence_of_legal_transitions_ends_in_a_tree(length: int) -> None:
    open_parses: list[list[int]] = [[]]
    ended = set()
    while open_parses:
        taken = open_parses.pop()
        parse = Configuration(length)
        for transition in taken:
            parse.apply(transition)
        if parse.done:
            assert len(taken) == 2 * length - 1
            assert find_fault(parse.heads) is None
            assert [r == 0 for r in parse.relations] == [h == 0 for h in parse.heads]
            ended.add(tuple(parse.heads))
            continue
        legal = np.flatnonzero(parse.legal(count_transitions(2)))
        assert len(legal)
        open_parses += [[*taken, int(each)] for each in legal]
    assert ended == {heads for heads in trees(length) if not cross(heads)}


@pytest.mark.parametrize(
    ("before", "transition", "message"),
    [
        ([SHIFT, SHIFT], SHIFT, "found a shift where the buffer is empty; usually"),
        ([SHIFT], left_arc(1), "found an arc where the stack holds 1 of two"),
        ([SHIFT, SHIFT], right_arc(0), "found an arc where its relation is that of"),
    ],
)
def test_what_is_not_legal(before, transition, message) -> None:
    parse = Configuration(2)
    for each in before:
        parse.apply(each)
    assert not parse.legal(count_transitions(RELATIONS))[transition]
    with pytest.raises(DataError, match=message):
        parse.apply(transition)


def test_a_sentence_without_words() -> None:
    with pytest.raises(DataError, match="a parse needs at least one word"):
        Configuration(0)


def test_a_chain_of_100_000_words() -> None:
    heads = [*range(2, 100_001), 0]
    parse = Configuration(len(heads))
    for transition in oracle(heads, [1] * len(heads)):
        parse.apply(transition)
    assert parse.heads == heads


def test_ewt_is_derived_but_for_crossing_arcs(shared_data: Path) -> None:
    sentences = read_parsed_sentences(shared_data / "ud_english_ewt")
    projective = [each for each in sentences if each.is_projective]
    assert (len(sentences), len(projective)) == (4078, 4021)
    for each in projective:
        ones = [1 if head else 0 for head in each.heads]
        assert tuple(derive(len(each), oracle(each.heads, ones)).heads) == each.heads
