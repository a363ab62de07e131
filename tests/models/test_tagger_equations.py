"""The taggers against independent float64 NumPy versions of the papers."""

import numpy as np
from equations import assert_close, lstm_states, sampled, wide

from edbatch.data import (
    Sentence,
    SpelledSentence,
    sample_sentences,
    sample_spelled_sentences,
)


def bilstm(params, states):
    for layer in params["layers"]:
        forward = lstm_states(layer["forward"], states)
        backward = lstm_states(layer["backward"], states[::-1])[::-1]
        states = [np.concatenate(pair) for pair in zip(forward, backward, strict=True)]
    return [s @ params["classify"]["W"] + params["classify"]["b"] for s in states]


def spelled(params, spelling):
    """Equation 2 of Ling et al. 2015."""
    inputs = [params["embedding"][character] for character in spelling]
    forward = lstm_states(params["forward"], inputs)[-1]
    backward = lstm_states(params["backward"], inputs[::-1])[-1]
    W_forward, W_backward = np.split(params["spell"]["W"], 2)
    return forward @ W_forward + backward @ W_backward + params["spell"]["b"]


def test_bilstm_tagger_computes_the_equations():
    model, params, _ = sampled("bilstm-tagger")
    sentences = sample_sentences(np.random.default_rng(2), 3, 20, length=6)
    sentences.append(Sentence([4], [0]))
    for sentence in sentences:
        found = model(params, sentence)
        vectors = [wide(params)["embedding"][word] for word in sentence.words]
        assert_close(found, bilstm(wide(params), vectors))


def test_bilstm_tagger_with_characters_computes_the_equations():
    model, params, _ = sampled("bilstm-tagger-char")
    rng = np.random.default_rng(2)
    sentences = sample_spelled_sentences(rng, 3, 20, length=6)
    sentences.append(SpelledSentence([0], [0], [(200, 3)]))
    sentences.append(SpelledSentence([4, 0], [0, 0], [(), ()]))
    assert any(any(sentence.spellings) for sentence in sentences[:3])
    exact = wide(params)
    for sentence in sentences:
        vectors = [
            spelled(exact["characters"], spelling)
            if spelling
            else exact["embedding"][word]
            for word, spelling in zip(sentence.words, sentence.spellings, strict=True)
        ]
        assert_close(model(params, sentence), bilstm(exact, vectors))
