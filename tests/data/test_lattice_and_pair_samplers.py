"""The samplers of lattices and of sentence pairs."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edbatch.data import (
    DataError,
    SpeechLattice,
    read_character_lattices,
    read_plf,
    read_sentence_pairs,
    read_word_list,
    sample_character_lattices,
    sample_sentence_pairs,
    sample_speech_lattices,
)

SAMPLERS = [sample_character_lattices, sample_speech_lattices, sample_sentence_pairs]


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def longest_path(lattice: SpeechLattice) -> int:
    depths = [0] * lattice.num_nodes
    for target, arcs in enumerate(lattice.incoming()):
        depths[target] = max((1 + depths[arc.source] for arc in arcs), default=0)
    return depths[-1]


def assert_alike(real: Sequence[int], sampled: Sequence[int], tolerance: float) -> None:
    """Compares the means and the 95th percentiles."""
    assert np.mean(sampled) == pytest.approx(np.mean(real), rel=tolerance)
    large = [np.percentile(each, 95) for each in (real, sampled)]
    assert large[1] == pytest.approx(large[0], rel=tolerance)


@pytest.mark.parametrize("length", [1, 2, 3, 9, 60])
def test_character_lattices(length: int) -> None:
    for lattice in sample_character_lattices(generator(), 20, 9, 4, length=length):
        assert len(lattice) == length
        assert all(type(each) is int and 0 <= each < 3 for each in lattice.characters)
        assert all(type(each) is int and 0 <= each < 4 for each in lattice.tags)
        assert all(type(word) is int and 3 <= word < 9 for *_, word in lattice.words)
        spans = [each[:2] for each in lattice.words]
        assert spans == sorted(set(spans))


@pytest.mark.parametrize("length", [1, 2, 3, 9, 40])
def test_speech_lattices(length: int) -> None:
    lattices = sample_speech_lattices(generator(), 50, 7, length=length)
    for lattice in lattices:
        assert longest_path(lattice) >= length
        left = Counter[int]()
        for arc in lattice.arcs:
            assert type(arc.word) is int and 0 <= arc.word < 7
            assert type(arc.score) is float
            left[arc.source] += np.exp(arc.score)
        # Every node except the last has outgoing arcs, whose probabilities sum to 1.
        assert [*sorted(left)] == [*range(lattice.num_nodes - 1)]
        assert [*left.values()] == pytest.approx([1.0] * len(left))
    assert len({len(lattice.arcs) for lattice in lattices}) > 1


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_sentence_pairs(size: int) -> None:
    for pair in sample_sentence_pairs(generator(), 20, size, length=4):
        assert len(pair.source) == 4 and len(pair.target) >= 3
        assert pair.target[0] == min(1, size - 1)
        assert pair.target[-1] == min(2, size - 1)
        assert all(type(each) is int and 0 <= each < size for each in pair.source)
        assert all(type(each) is int and 0 <= each < size for each in pair.target)


def test_the_smallest_vocabulary() -> None:
    [lattice] = sample_character_lattices(generator(), 1, 1, 1, length=40)
    assert {*lattice.characters, *(word for *_, word in lattice.words)} == {0}


def test_character_lattices_resemble_weibo(shared_data: Path) -> None:
    words = read_word_list(shared_data / "jieba_dict" / "dict.txt.small")
    file = shared_data / "weibo_ner" / "weiboNER_2nd_conll.train"
    real = read_character_lattices(file, words)
    sampled = sample_character_lattices(generator(), 4000)
    assert_alike([*map(len, real)], [*map(len, sampled)], 0.1)
    shares = []
    for lattices in (real, sampled):
        ends = Counter(
            words
            for each in lattices
            for words in Counter(word.last for word in each.words).values()
        )
        characters = sum(map(len, lattices))
        shares.append([ends[1] / characters, ends[2] / characters])
    assert shares[1] == pytest.approx(shares[0], rel=0.15)


def test_speech_lattices_resemble_fisher(shared_data: Path) -> None:
    folder = shared_data / "fisher_callhome_lattices" / "plf"
    real = read_plf(folder / "fisher_dev.es")
    sampled = sample_speech_lattices(generator(), 6000)
    for measure in (
        lambda each: each.num_nodes,
        lambda each: len(each.arcs),
        longest_path,
    ):
        assert_alike([*map(measure, real)], [*map(measure, sampled)], 0.15)


def test_sentence_pairs_resemble_tatoeba(shared_data: Path) -> None:
    real = read_sentence_pairs(shared_data / "tatoeba_cmn_eng" / "cmn.txt")
    sampled = sample_sentence_pairs(generator(), 4000)
    for side in (lambda pair: len(pair.source), lambda pair: len(pair.target)):
        assert_alike([*map(side, real)], [*map(side, sampled)], 0.1)


@pytest.mark.parametrize("sample", SAMPLERS)
@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (
            (3, 5),
            {},
            "rng must be a numpy.random.Generator; found 3, a int; usually a ",
        ),
        ((generator(), -1), {}, "count must be 0 or more; found -1"),
        ((generator(), 1, 0), {}, "vocabulary_size must be 1 or more; found 0"),
        ((generator(), 1), {"length": 0}, "length must be 1 or more; found 0"),
    ],
)
def test_requests_that_cannot_be_met(
    sample: Callable[..., list[Any]],
    arguments: tuple[Any, ...],
    options: dict[str, int],
    message: str,
) -> None:
    with pytest.raises(DataError, match=message):
        sample(*arguments, **options)


def test_tags_are_counted() -> None:
    with pytest.raises(DataError, match="num_tags must be 1 or more; found 0"):
        sample_character_lattices(generator(), 1, 5, 0)
