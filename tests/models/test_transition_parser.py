"""The parser against float64 NumPy whose LSTMs reread everything every time."""

from pathlib import Path

import jax
import numpy as np
import pytest
from equations import assert_close, gate, random_like, sigmoid, wide

from edbatch.data import DataError, ParsedSentence, oracle
from edbatch.data.arc_standard import SHIFT, left_arc, right_arc
from edbatch.data.dependencies import find_fault
from edbatch.models import get_workload
from edbatch.models.transition_parser import parse, score_oracle

WORKLOAD = get_workload("transition-parser", vocabulary_size=20, num_relations=4)
CONLLU = "1 Dogs dog NOUN NNS _ 2 nsubj _ _\n2 bark bark VERB VB _ 0 root _ _\n"
CROSSING = "".join(
    f"{k}\tw\tw\tX\tX\t_\t{head}\tdep\t_\t_\n" for k, head in enumerate([3, 4, 0, 3], 1)
)


@pytest.fixture(scope="module")
def params():
    return random_like(WORKLOAD.init_params(jax.random.key(0), 5), 1)


def sample(count, seed=0):
    return WORKLOAD.sample(np.random.default_rng(seed), count)


def read_all(own, start, vectors):
    """The LSTM's h after it has read all `vectors`."""
    h, c = start["h"], start["c"]
    for x in vectors:
        i, f, o, u = (gate(own[name], x, h) for name in "ifou")
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(u)
        h = sigmoid(o) * np.tanh(c)
    return h


def affine(own, *inputs):
    return np.concatenate(inputs) @ own["W"] + own["b"]


def logits_along(params, sentence, transitions):
    """Logits before each transition, from stack, buffer and history at that point."""
    buffer = [
        np.tanh(
            affine(
                params["token"],
                params["word_embedding"][word],
                params["tag_embedding"][tag],
            )
        )
        for word, tag in zip(sentence.words, sentence.tags, strict=True)
    ]
    stack, history, found = [], [], []
    for transition in transitions:
        contents = {"stack": stack, "buffer": buffer[::-1], "history": history}
        states = [
            read_all(params[name], params["start"][name], contents[name])
            for name in contents
        ]
        hidden = np.maximum(affine(params["summary"], *states), 0)
        found.append(affine(params["output"], hidden))
        vector = params["transition_embedding"][transition]
        history = [*history, vector]
        if transition == SHIFT:
            stack = [*stack, buffer[0]]
            buffer = buffer[1:]
        else:
            *stack, below, top = stack
            arc = (top, below) if transition % 2 else (below, top)
            stack = [*stack, np.tanh(affine(params["compose"], *arc, vector))]
    return found


def test_scores_along_the_oracle(params):
    for sentence in [*sample(4), ParsedSentence([3], [1], [0], [0])]:
        transitions = oracle(sentence.heads, sentence.relations)
        expected = logits_along(wide(params), sentence, transitions)
        assert_close(score_oracle(params, sentence), expected)


def test_a_parse_follows_its_own_best_legal_transitions(params):
    for sentence in [*sample(4, seed=1), ParsedSentence([3], [1], [0], [0])]:
        found = parse(params, sentence)
        expected = logits_along(wide(params), sentence, found["transitions"])
        assert_close(found["logits"], expected)
        assert len(found["transitions"]) == 2 * len(sentence) - 1
        stack, left = 0, len(sentence)
        for transition, logits in zip(found["transitions"], expected, strict=True):
            legal = [SHIFT] * (left > 0)
            if stack > 1:
                arcs = (left_arc, right_arc)
                legal += [arc(relation) for relation in (1, 2, 3) for arc in arcs]
            assert transition == max(legal, key=lambda each: logits[each])
            is_shift = transition == SHIFT
            stack, left = stack + (1 if is_shift else -1), left - is_shift


def test_parses_are_trees_that_their_transitions_derive(params):
    for sentence in sample(12, seed=2):
        found = parse(params, sentence)
        assert find_fault(found["heads"]) is None
        own = ParsedSentence(
            sentence.words, sentence.tags, found["heads"], found["relations"]
        )
        assert own.is_projective
        assert [r == 0 for r in own.relations] == [head == 0 for head in own.heads]
        # The oracle may attach earlier, but makes the same arcs.
        arcs = [t for t in found["transitions"] if t != SHIFT]
        assert sorted(arcs) == sorted(
            t for t in oracle(own.heads, own.relations) if t != SHIFT
        )


def test_a_parse_reads_words_and_tags_alone(params):
    [sentence] = sample(1, seed=3)
    length = len(sentence)
    other = ParsedSentence(
        sentence.words,
        sentence.tags,
        [0] + [1] * (length - 1),
        [0] + [1] * (length - 1),
    )
    assert other.heads != sentence.heads
    own, same = parse(params, sentence), parse(params, other)
    assert own["transitions"] == same["transitions"]


def test_crossing_arcs_are_refused_in_training_only(params):
    sentence = ParsedSentence([1] * 4, [1] * 4, [3, 4, 0, 3], [1, 1, 0, 1])
    assert len(parse(params, sentence)["heads"]) == 4
    with pytest.raises(DataError, match="found crossing arcs among the heads"):
        score_oracle(params, sentence)


def test_sentences_with_crossing_arcs_are_not_read(tmp_path: Path) -> None:
    file = tmp_path / "a.conllu"
    file.write_text(CONLLU.replace(" ", "\t") + "\n" + CROSSING)
    workload = get_workload("transition-parser")
    assert workload.read(file) == [ParsedSentence((1, 2), (1, 2), (2, 0), (2, 0))]


def test_data_of_crossing_arcs_alone(tmp_path: Path) -> None:
    file = tmp_path / "a.conllu"
    file.write_text(CROSSING + "\n" + CROSSING)
    with pytest.raises(
        DataError,
        match=r"reads sentences without crossing arcs, but arcs cross in all 2 of the"
        r" data; usually .*; read more$",
    ):
        get_workload("transition-parser").read(file)


def test_relations_that_are_too_many_are_one():
    sentence = ParsedSentence("abcd", "XXXX", [2, 0, 2, 2], ["d", "root", "e", "d"])
    workload = get_workload("transition-parser", num_tags=2, num_relations=3)
    [found] = workload.number([sentence], workload.vocabulary([sentence]))
    assert found.relations == (2, 0, 1, 2)
    assert found.tags == (1, 1, 1, 1)


def test_ewt_is_read(shared_data: Path) -> None:
    workload = get_workload("transition-parser")
    sentences = workload.read(shared_data / "ud_english_ewt")
    assert len(sentences) == 4021
    assert max(max(each.relations) for each in sentences) < 60
