"""The encoder-decoder against an independent float64 NumPy version of the paper."""

import numpy as np
from equations import assert_close, gate, sampled, sigmoid, wide

from edbatch.data import SentencePair


def lstm(side, words, state):
    """States after each word."""
    h, c = state
    found = []
    for word in words:
        x = side["embedding"][word]
        i, f, o, u = (gate(side[name], x, h) for name in "ifou")
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(u)
        h = sigmoid(o) * np.tanh(c)
        found.append((h, c))
    return found


def translate(params, pair):
    """Equations 5 to 8 of Luong et al. 2015 with the score "general"."""
    encoder, decoder, attention = (
        params[name] for name in ("encoder", "decoder", "attention")
    )
    start = encoder["start"]["h"], encoder["start"]["c"]
    states = lstm(encoder, pair.source, start)
    memory = [h for h, _ in states]
    logits = []
    for h, _ in lstm(decoder, pair.target[:-1], states[-1]):
        scores = np.array([h @ attention["score"]["W"] @ each for each in memory])
        weights = np.exp(scores) / np.exp(scores).sum()
        context = sum(w * each for w, each in zip(weights, memory, strict=True))
        combine, output = attention["combine"], attention["output"]
        h_tilde = np.tanh(np.concatenate([context, h]) @ combine["W"] + combine["b"])
        logits.append(h_tilde @ output["W"] + output["b"])
    return logits


def test_lstm_nmt_computes_the_equations():
    model, params, pairs = sampled("lstm-nmt", count=4)
    pairs.append(SentencePair([7], [1, 2]))
    for pair in pairs:
        found = model(params, pair)
        assert len(found) == len(pair.target) - 1
        assert_close(found, translate(wide(params), pair))


def test_a_prediction_depends_on_the_words_before_it_alone():
    model, params, _ = sampled("lstm-nmt")
    one = model(params, SentencePair([3, 4], [1, 5, 6, 7, 2]))
    two = model(params, SentencePair([3, 4], [1, 5, 8, 9, 2]))
    same = [bool((a == b).all()) for a, b in zip(one, two, strict=True)]
    assert same == [True, True, False, False]
