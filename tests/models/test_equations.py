"""The models against NumPy, float64, written from the papers once more."""

import jax
import numpy as np
import pytest

from edbatch.data import Sentence, Tree, sample_sentences
from edbatch.models import bilstm_tagger, get_workload, tree_lstm, tree_lstm_childsum

HIDDEN = 5


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def random_like(params, seed):
    """Parameters of these shapes, without the zeros that could hide a mistake."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda p: rng.normal(0, 0.5, p.shape).astype(np.float32), params
    )


def wide(params):
    return jax.tree.map(lambda p: np.asarray(p, np.float64), params)


def gate(affine, k, rows=slice(None)):
    """Weights and bias of the k-th gate of several that stand side by side."""
    columns = slice(k * HIDDEN, (k + 1) * HIDDEN)
    return affine["W"][rows, columns], affine["b"][columns]


def nary_tree_lstm(params, tree):
    """Equations 9 to 14 of Tai et al. 2015, recursively; i, o, u, f_1, f_2, ..."""
    if tree.is_leaf:
        x = params["embedding"][tree.word]
        i, o, u = (x @ W + b for W, b in (gate(params["leaf"], k) for k in range(3)))
        c = sigmoid(i) * np.tanh(u)
        return sigmoid(o) * np.tanh(c), c
    children = [nary_tree_lstm(params, child) for child in tree.children]

    def preactivation(k):
        total = gate(params["compose"], k)[1]
        for place, (h, _) in enumerate(children):
            rows = slice(place * HIDDEN, (place + 1) * HIDDEN)
            total = total + h @ gate(params["compose"], k, rows)[0]
        return total

    c = sigmoid(preactivation(0)) * np.tanh(preactivation(2))
    for place, (_, child_c) in enumerate(children):
        c = c + sigmoid(preactivation(3 + place)) * child_c
    return sigmoid(preactivation(1)) * np.tanh(c), c


def childsum_tree_lstm(params, tree):
    """Equations 2 to 8 of Tai et al. 2015, recursively; i, o, u, f."""
    x = params["embedding"][tree.word]
    children = [childsum_tree_lstm(params, child) for child in tree.children]
    h_sum = sum((h for h, _ in children), np.zeros(HIDDEN))

    def from_word(k):
        W, b = gate(params["word"], k)
        return x @ W + b

    def from_sum(k):
        return h_sum @ params["sum"]["W"][:, k * HIDDEN : (k + 1) * HIDDEN]

    i, o, u = (from_word(k) + from_sum(k) for k in range(3))
    c = sigmoid(i) * np.tanh(u)
    for h, child_c in children:
        c = c + sigmoid(from_word(3) + h @ params["forget"]["W"]) * child_c
    return sigmoid(o) * np.tanh(c), c


def lstm_states(params, inputs):
    """The h at each step; gates i, f, o, u."""
    h, c = params["h"], params["c"]
    found = []
    for x in inputs:
        joined = np.concatenate([x, h])
        i, f, o, u = (joined @ W + b for W, b in (gate(params, k) for k in range(4)))
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(u)
        h = sigmoid(o) * np.tanh(c)
        found.append(h)
    return found


def bilstm(params, words):
    states = [params["embedding"][word] for word in words]
    for layer in params["layers"]:
        forward = lstm_states(layer["forward"], states)
        backward = lstm_states(layer["backward"], states[::-1])[::-1]
        states = [np.concatenate(pair) for pair in zip(forward, backward, strict=True)]
    return [s @ params["classify"]["W"] + params["classify"]["b"] for s in states]


def assert_close(found, expected):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-5)


def sampled(name, count=5, **options):
    workload = get_workload(name, vocabulary_size=20, **options)
    instances = workload.sample(np.random.default_rng(3), count)
    params = workload.init_params(jax.random.key(0), HIDDEN)
    return workload.model, random_like(params, 1), instances


@pytest.mark.parametrize("arity", [2, 4])
def test_nary_tree_lstm_computes_the_equations(arity):
    model, params, trees = sampled("tree-lstm", arity=arity)
    output = wide(params)["classify"]
    trees.append(Tree(word=7))
    for tree in trees:
        found = model(params, tree)
        h, _ = nary_tree_lstm(wide(params), tree)
        assert_close(found["state"], h)
        assert_close(found["logits"], h @ output["W"] + output["b"])


def test_every_node_is_classified_in_postorder():
    model, params, trees = sampled("tree-lstm", count=2, classify="nodes")
    output = wide(params)["classify"]
    for tree in trees:
        found = model(params, tree)
        states = [nary_tree_lstm(wide(params), node)[0] for node in tree.postorder()]
        assert_close(found["state"], states[-1])
        assert_close(found["logits"], states @ output["W"] + output["b"])


def test_childsum_tree_lstm_computes_the_equations():
    model, params, trees = sampled("tree-lstm-childsum")
    output = wide(params)["classify"]
    trees.append(Tree(word=7))
    assert {len(n.children) for t in trees for n in t.postorder()} >= {0, 1, 2, 3, 4}
    for tree in trees:
        found = model(params, tree)
        h, _ = childsum_tree_lstm(wide(params), tree)
        assert_close(found["state"], h)
        assert_close(found["logits"], h @ output["W"] + output["b"])


def test_bilstm_tagger_computes_the_equations():
    model, params, _ = sampled("bilstm-tagger")
    sentences = sample_sentences(np.random.default_rng(2), 3, 20, length=6)
    sentences.append(Sentence([4], [0]))
    for sentence in sentences:
        found = model(params, sentence)
        assert_close(found, bilstm(wide(params), sentence.words))


@pytest.mark.parametrize(
    ("init_params", "options"),
    [
        (tree_lstm.init_params, {"arity": 3}),
        (tree_lstm_childsum.init_params, {}),
        (bilstm_tagger.init_params, {}),
    ],
)
def test_sampled_parameters_are_well_scaled(init_params, options):
    hidden = 64
    params = init_params(jax.random.key(0), hidden, 100, **options)
    other = init_params(jax.random.key(1), hidden, 100, **options)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = jax.tree_util.keystr(path)
        assert leaf.dtype == np.float32
        if leaf.ndim == 2:
            fan_in = 1 if "embedding" in name else leaf.shape[0]
            assert np.std(leaf) * fan_in**0.5 == pytest.approx(1, abs=0.1), name
    assert not np.array_equal(params["embedding"], other["embedding"])
    matrices = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim == 2]
    assert len({float(leaf[0, 0]) for leaf in matrices}) == len(matrices)
