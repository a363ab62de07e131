"""The tree models against independent float64 NumPy versions of the papers."""

import numpy as np
import pytest
from equations import HIDDEN, assert_close, gate, sampled, sigmoid, wide

from edbatch.data import Tree
from edbatch.models.tree_lstm_2type import composition


def nary_tree_lstm(params, tree, compose=lambda params, tree: params["compose"]):
    """Equations 9 to 14 of Tai et al. 2015, recursively."""
    if tree.is_leaf:
        x, leaf = params["embedding"][tree.word], params["leaf"]
        i, o, u = (x @ leaf[name]["W"] + leaf[name]["b"] for name in "iou")
        c = sigmoid(i) * np.tanh(u)
        return sigmoid(o) * np.tanh(c), c
    children = [nary_tree_lstm(params, child, compose) for child in tree.children]
    own = compose(params, tree)

    def preactivation(gate):
        return gate["b"] + sum(h @ gate["U"][k] for k, (h, _) in enumerate(children))

    c = sigmoid(preactivation(own["i"])) * np.tanh(preactivation(own["u"]))
    for k, (_, child_c) in enumerate(children):
        c = c + sigmoid(preactivation(own["f"][k])) * child_c
    return sigmoid(preactivation(own["o"])) * np.tanh(c), c


def childsum_tree_lstm(params, tree):
    """Equations 2 to 8 of Tai et al. 2015, recursively."""
    x, own = params["embedding"][tree.word], params["gates"]
    children = [childsum_tree_lstm(params, child) for child in tree.children]
    h_sum = sum((h for h, _ in children), np.zeros(HIDDEN))

    i, o, u = (gate(own[name], x, h_sum) for name in "iou")
    c = sigmoid(i) * np.tanh(u)
    for h, child_c in children:
        c = c + sigmoid(gate(own["f"], x, h)) * child_c
    return sigmoid(o) * np.tanh(c), c


def two_compositions(params, tree):
    """The composition parameters that the rule of the two types selects."""
    category = (tree.label or "").lstrip("@").split("-")[0]
    even = sum(tree.words()) % 2 == 0
    nominal = even if category in ("", "3") else category == "NP"
    return params["nominal" if nominal else "other"]["compose"]


def tree_gru(params, tree):
    """The GRU over children, recursively."""
    if tree.is_leaf:
        x, leaf = params["embedding"][tree.word], params["leaf"]
        z, u = (x @ leaf[name]["W"] + leaf[name]["b"] for name in "zu")
        return sigmoid(z) * np.tanh(u)
    children = [tree_gru(params, child) for child in tree.children]
    own = params["compose"]

    def preactivation(gate):
        return gate["b"] + sum(h @ gate["U"][k] for k, h in enumerate(children))

    updates = [own["z"], *own["zs"][: len(children)]]
    shares = np.exp([preactivation(each) for each in updates])
    shares /= shares.sum(axis=0)
    new = own["u"]["b"]
    for k, h in enumerate(children):
        new = new + (sigmoid(preactivation(own["r"][k])) * h) @ own["u"]["U"][k]
    h = shares[0] * np.tanh(new)
    for share, child in zip(shares[1:], children, strict=True):
        h = h + share * child
    return h


def mv_rnn(params, tree):
    """Socher et al. 2012, recursively; vectors are columns, as in the paper."""
    if tree.is_leaf:
        own = {name: each[tree.word] for name, each in params["word_matrix"].items()}
        matrix = own["left"] @ own["right"] + np.diag(own["diagonal"])
        return params["embedding"][tree.word], matrix.T
    (a, A), (b, B) = (mv_rnn(params, child) for child in tree.children)
    W, W_M = params["vector"]["W"].T, params["matrix"]["W"].T
    p = np.tanh(W @ np.concatenate([B @ a, A @ b]) + params["vector"]["b"])
    return p, W_M @ np.concatenate([A, B])


def labelled(tree, labels):
    """The tree with its inner nodes labelled by cycling through `labels`."""
    count = iter(range(tree.num_nodes()))
    return tree.fold(
        lambda leaf: leaf,
        lambda node, children: Tree(
            labels[next(count) % len(labels)], None, tuple(children)
        ),
    )


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


def two_type_state(params, tree):
    return nary_tree_lstm(params, tree, two_compositions)[0]


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("tree-lstm", lambda params, tree: nary_tree_lstm(params, tree)[0]),
        ("tree-gru", tree_gru),
        ("mv-rnn", lambda params, tree: mv_rnn(params, tree)[0]),
        ("tree-lstm-2type", two_type_state),
    ],
)
def test_every_node_is_classified_in_postorder(name, state):
    model, params, trees = sampled(name, count=2, classify="nodes")
    output = wide(params)["classify"]
    for tree in trees:
        found = model(params, tree)
        states = [state(wide(params), node) for node in tree.postorder()]
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


@pytest.mark.parametrize("arity", [2, 3])
@pytest.mark.parametrize("labels", [[None], ["NP", "@NP-SBJ", "VP", "S-NOM", "3"]])
def test_tree_lstm_of_two_types_computes_the_equations(arity, labels):
    model, params, trees = sampled("tree-lstm-2type", arity=arity)
    output = wide(params)["classify"]
    trees = [labelled(tree, labels) for tree in trees]
    trees.append(Tree(word=7))
    for tree in trees:
        found = model(params, tree)
        h, _ = nary_tree_lstm(wide(params), tree, two_compositions)
        assert_close(found["state"], h)
        assert_close(found["logits"], h @ output["W"] + output["b"])


@pytest.mark.parametrize(
    ("label", "nominal"),
    [
        ("NP", True),
        ("@NP", True),
        ("NP-SBJ=2", True),
        ("@QP|<CD>", True),
        ("WHNP", True),
        ("VP", False),
        ("S-NOM", False),
        ("ADJP", False),
        ("", False),
    ],
)
def test_the_composition_goes_by_the_category(label, nominal):
    kinds = {composition(label, word_sum) for word_sum in (2, 3)}
    assert kinds == {"nominal" if nominal else "other"}


@pytest.mark.parametrize("label", [None, "0", "4"])
def test_without_a_category_the_words_decide(label):
    assert [composition(label, k) for k in (0, 1, 6)] == ["nominal", "other", "nominal"]


@pytest.mark.parametrize("arity", [2, 4])
def test_tree_gru_computes_the_equations(arity):
    model, params, trees = sampled("tree-gru", arity=arity)
    output = wide(params)["classify"]
    trees.append(Tree(word=7))
    for tree in trees:
        found = model(params, tree)
        h = tree_gru(wide(params), tree)
        assert_close(found["state"], h)
        assert_close(found["logits"], h @ output["W"] + output["b"])


def test_matrix_vector_network_computes_the_equations():
    model, params, trees = sampled("mv-rnn")
    output = wide(params)["classify"]
    trees.append(Tree(word=7))
    for tree in trees:
        found = model(params, tree)
        p, _ = mv_rnn(wide(params), tree)
        assert_close(found["state"], p)
        assert_close(found["logits"], p @ output["W"] + output["b"])
