"""Greedy translation, and beam search against an exhaustive search."""

import itertools

import jax
import numpy as np
import pytest
from equations import assert_close, random_like

import edbatch as eb
from edbatch.data import SentencePair
from edbatch.models import get_workload
from edbatch.models.lstm_nmt import beam, greedy, translate
from edbatch.models.shared.beam_search import beam_search

WORKLOAD = get_workload("lstm-nmt", vocabulary_size=12)
START, END = 1, 2


@pytest.fixture(scope="module")
def params():
    """Random parameters that make the end a likely word."""
    return make_params(2.0)


def make_params(end):
    params = random_like(WORKLOAD.init_params(jax.random.key(0), 5), 1)
    params["attention"]["output"]["b"][END] += end
    return params


def sources(count, seed=0):
    pairs = WORKLOAD.sample(np.random.default_rng(seed), count)
    return [SentencePair(pair.source, (START, END)) for pair in pairs]


def along(params, pair, words):
    """Teacher-forced logits along a translation."""
    return translate(params, SentencePair(pair.source, (START, *words)))


def log_probability(params, pair, words):
    steps = [jax.nn.log_softmax(each) for each in along(params, pair, words)]
    return float(sum(step[word] for step, word in zip(steps, words, strict=True)))


@pytest.mark.parametrize("end", [0.0, 2.0])
def test_greedy_takes_the_likeliest_word(end):
    params, ended = make_params(end), 0
    for pair in sources(6):
        found = greedy(params, pair)
        expected = along(params, pair, found["words"])
        assert_close(found["logits"], expected)
        assert found["words"] == [int(np.argmax(each)) for each in expected]
        assert END not in found["words"][:-1]
        if found["words"][-1] != END:
            assert len(found["words"]) == 2 * len(pair.source) + 10
        ended += found["words"][-1] == END
    assert (ended > 0) == (end > 0)


@pytest.mark.parametrize("penalty", [0.0, 0.7])
def test_a_beam_of_one_is_greedy(params, penalty):
    for pair in sources(6, seed=1):
        own, other = beam(params, pair, 1, penalty), greedy(params, pair)
        assert own["words"] == other["words"]
        total = log_probability(params, pair, own["words"])
        assert_close(own["score"], total / len(own["words"]) ** penalty)


def test_wider_beams_find_better_translations():
    params, pairs = make_params(1.0), sources(12, seed=2)

    def mean_score(width):
        return np.mean([beam(params, pair, width, 0.0)["score"] for pair in pairs])

    narrow, wide = mean_score(1), mean_score(6)
    assert narrow + 0.1 < wide


def table_step(table):
    """A sequence model without parameters: looks up logits by the last two words."""

    def step(word, state):
        return table[state, word], word

    return step


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_beam_of_all_finds_the_best_of_all(seed, penalty):
    words, most, end = 4, 3, 2
    table = np.random.default_rng(seed).normal(0, 2, (words,) * 3).astype(np.float32)
    found, score = beam_search(
        table_step(table),
        0,
        1,
        end,
        width=words**most,
        max_length=most,
        length_penalty=penalty,
    )

    def score_of(sequence):
        total, state, word = 0.0, 0, 1
        for new in sequence:
            total += float(jax.nn.log_softmax(table[state, word])[new])
            state, word = word, new
        return total / len(sequence) ** penalty

    everything = [
        (*some, end)
        for length in range(most)
        for some in itertools.product(set(range(words)) - {end}, repeat=length)
    ]
    best = max(everything, key=score_of)
    assert tuple(found) == best
    assert float(score) == pytest.approx(score_of(best), rel=1e-5)


def test_hypotheses_that_end_leave_the_beam():
    # Word 0 is followed by the end, word 3 by itself: after two steps, one of each.
    table = np.full((4, 4, 4), -9.0, np.float32)
    table[:, 1] = [1.0, -9.0, -9.0, 1.0]
    table[:, 0] = [-9.0, -9.0, 9.0, -9.0]
    table[:, 3] = [-9.0, -9.0, -9.0, 9.0]
    sizes = []

    def step(word, state):
        sizes.append(word)
        return table[state, word], word

    found, _ = beam_search(step, 0, 1, 2, width=2, max_length=5)
    assert found == [0, 2]
    assert sizes == [1, 0, 3, 3, 3, 3]  # one at first, then two, then the open one


def test_what_does_not_end_is_cut():
    table = np.zeros((4, 4, 4), np.float32)
    table[:, :, 3] = 9.0
    found, score = beam_search(table_step(table), 0, 1, 2, width=1, max_length=5)
    assert found == [3] * 5
    assert float(score) == pytest.approx(float(jax.nn.log_softmax(table[0, 0])[3]))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_leave_no_word(bad):
    table = np.full((4, 4, 4), bad, np.float32)
    table[0, 1] = [0.0, 0.0, -9.0, 0.0]  # finite for the first word only
    with pytest.raises(
        eb.EdbatchError,
        match=r"needs words with a finite log-probability, but after 1 words no"
        r" hypothesis has any; usually .*; check that parameters",
    ):
        beam_search(table_step(table), 0, 1, 2, width=2, max_length=5)


def test_parameters_that_are_not_finite(params):
    broken = jax.tree.map(lambda array: array * np.nan, params)
    pairs = sources(2, seed=3)
    with pytest.raises(eb.EdbatchError, match=r"after 0 words no hypothesis has any"):
        eb.batch(beam)(broken, pairs)


def test_hypotheses_that_cannot_go_on_leave_those_that_ended():
    table = np.full((4, 4, 4), np.nan, np.float32)
    table[0, 1] = [1.0, -9.0, 2.0, -9.0]  # the end, or a word without a successor
    found, _ = beam_search(table_step(table), 0, 1, 2, width=2, max_length=5)
    assert found == [2]


def test_the_workload_decodes_by_beam_on_request(params):
    [pair] = sources(1, seed=3)
    workload = get_workload("lstm-nmt", vocabulary_size=12, beam_width=3)
    assert workload.decode is not None and WORKLOAD.decode is greedy
    found = workload.decode(params, pair)
    assert found["words"] == beam(params, pair, 3)["words"]
    assert_close(found["score"], beam(params, pair, 3)["score"])


def test_the_score_of_a_beam_has_a_gradient(params):
    [pair] = sources(1, seed=4)
    words = beam(params, pair, 3, 0.0)["words"]

    def along_words(some):
        steps = along(some, pair, words)
        return sum(
            jax.nn.log_softmax(each)[word]
            for each, word in zip(steps, words, strict=True)
        )

    own = jax.grad(lambda some: beam(some, pair, 3, 0.0)["score"])(params)
    expected = jax.grad(along_words)(params)
    for one, two in zip(*map(jax.tree.leaves, (own, expected)), strict=True):
        assert_close(one, two)
