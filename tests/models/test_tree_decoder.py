"""The tree decoder against a float64 NumPy version that recurses into branches."""

from pathlib import Path

import jax
import numpy as np
import pytest
from equations import assert_close, gate, random_like, sigmoid, wide

from edbatch.data import Tree, decisions, tree_from_decisions
from edbatch.models import get_workload
from edbatch.models.tree_decoder import generate, score_gold

WORKLOAD = get_workload("tree-decoder", vocabulary_size=20, num_labels=4)


@pytest.fixture(scope="module")
def params():
    return random_like(WORKLOAD.init_params(jax.random.key(0), 5), 1)


def sample(count, seed=0):
    return WORKLOAD.sample(np.random.default_rng(seed), count)


def encode(params, tree):
    """Equations 2 to 8 of Tai et al. 2015."""
    own, x = params["gates"], params["embedding"][tree.word]
    states = [encode(params, child) for child in tree.children]
    total = sum((h for h, _ in states), np.zeros(len(x)))
    i, o, u = (gate(own[name], x, total) for name in "iou")
    c = sigmoid(i) * np.tanh(u)
    c = c + sum(sigmoid(gate(own["f"], x, h)) * c_k for h, c_k in states)
    return sigmoid(o) * np.tanh(c), c


def lstm(own, x, state):
    h, c = state
    i, f, o, u = (gate(own[name], x, h) for name in "ifou")
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(u)
    return sigmoid(o) * np.tanh(c), c


def logits_by_node(params, source, tree):
    """Label and follow-up logits of every node of ``tree``, in preorder."""
    first = params["first"]["h"], params["first"]["c"]
    found = []

    def visit(node, ancestral, fraternal):
        both = np.concatenate([ancestral[0], fraternal[0]])
        h = np.tanh(both @ params["predict"]["W"] + params["predict"]["b"])
        for name in ("label", "follows"):
            found.append(h @ params[name]["W"] + params[name]["b"])
        own = params["label_embedding"][int(node.label)]
        down, before = lstm(params["ancestral"], own, ancestral), first
        for child in node.children:
            visit(child, down, before)
            vector = params["label_embedding"][int(child.label)]
            before = lstm(params["fraternal"], vector, before)

    visit(tree, encode(params["encoder"], source), first)
    return list(zip(found[::2], found[1::2], strict=True))


def preorder(tree):
    """For each node in preorder, its index among the decisions."""
    places = iter(range(tree.num_nodes()))
    labels = tree_from_decisions(
        [(str(next(places)), down, on) for _, down, on in decisions(tree)]
    )
    found, stack = [], [labels]
    while stack:
        node = stack.pop()
        found.append(int(node.label))
        stack += node.children[::-1]
    return found


def assert_logits(params, source, tree, logits):
    expected = logits_by_node(wide(params), source, tree)
    for place, (label, follows) in zip(preorder(tree), expected, strict=True):
        assert_close(logits[place]["label"], label)
        assert_close(logits[place]["follows"], follows)


def test_scores_of_the_gold_tree(params):
    for tree in [*sample(4), Tree("2", 3)]:
        logits = score_gold(params, tree)
        assert len(logits) == tree.num_nodes()
        assert_logits(params, tree, tree, logits)


def grown(found):
    rows = zip(found["label"], found["down"], found["on"], strict=True)
    return tree_from_decisions((str(label), down, on) for label, down, on in rows)


def lively(params, bias):
    """Parameters whose `follows` bias favours more or fewer nodes."""
    return params | {"follows": params["follows"] | {"b": np.float32(bias)}}


@pytest.mark.parametrize("bias", [(-0.2, -0.2), (0.3, 0.0), (0.0, 0.5), (9, 9)])
def test_a_tree_follows_its_own_decisions(params, bias):
    params, arities = lively(params, bias), set()
    for source in sample(5, seed=1):
        found = generate(params, source)
        tree = grown(found)
        assert_logits(params, source, tree, found["logits"])
        most = 4 * source.num_nodes()
        assert tree.num_nodes() <= most
        arities |= {len(node.children) for node in tree.postorder()}
        for k, (logits, label) in enumerate(
            zip(found["logits"], found["label"], strict=True)
        ):
            assert label == np.argmax(logits["label"])
            wanted = (np.asarray(logits["follows"]) > 0).tolist()
            taken = [bool(found["down"][k]), bool(found["on"][k])]
            if tree.num_nodes() < most:
                assert taken == [wanted[0], wanted[1] and k > 0]
    if bias == (9, 9):
        assert tree.num_nodes() == most
    elif bias == (0.0, 0.5):
        assert len(arities) > 2


def test_labels_of_the_source_are_not_read(params):
    [tree] = sample(1, seed=2)
    other = tree.fold(
        lambda leaf: Tree("0", leaf.word),
        lambda node, children: Tree("0", node.word, tuple(children)),
    )
    assert other != tree
    assert grown(generate(params, other)) == grown(generate(params, tree))


def test_labels_are_numbered(tmp_path: Path) -> None:
    lines = [
        "1\tDogs\t_\t_\t_\t_\t2\tnsubj\t_\t_",
        "2\tbark\t_\t_\t_\t_\t0\troot\t_\t_",
    ]
    file = tmp_path / "a.conllu"
    file.write_text("\n".join(lines) + "\n")
    workload = get_workload("tree-decoder")
    assert list(map(str, workload.read(file))) == ["(2 1 (1 2))"]
    [rare] = get_workload("tree-decoder", num_labels=2).read(file)
    assert {node.label for node in rare.postorder()} == {"0", "1"}
