"""A tiny run of the tree autoencoder, and its scores."""

import numpy as np
import pytest
from conllu_text import conllu

from edbatch.data import Tree, decisions

SENTENCES = (
    "the/2/det dog/3/nsubj runs/0/root ./3/punct",
    "dogs/2/nsubj run/0/root",
    "he/2/nsubj runs/0/root fast/2/advmod",
    "run/0/root",
)


@pytest.fixture
def files(tmp_path):
    file = tmp_path / "parsed.conllu"
    file.write_text(conllu(SENTENCES * 6))
    return ["--data", str(file), "--test-data", str(file)]


def test_a_tiny_run(experiment, parse, files, few_widths, tmp_path):
    words = "--hidden 8 --batch-size 4 --epochs 12 --learning-rate 0.03 --min-count 1"
    history = experiment.main(
        parse([*files, *words.split(), "--out", str(tmp_path / "out")])
    )
    assert history.losses[-1] < 0.5 * history.losses[0]
    best = history.best("nodes")["test"]
    assert list(best) == ["nodes", "edges", "exact", "perplexity"]
    assert best["nodes"] > 0.8 and best["exact"] > 0.5 and best["perplexity"] < 2
    assert (tmp_path / "out" / "curve.png").exists()


def test_the_loss_of_a_node_by_hand(experiment, parse, files, few_widths):
    task = experiment.make_task(parse([*files, "--hidden", "3"]))
    tree = max(task.instances, key=Tree.num_nodes)
    logits = experiment.score_gold(task.params, tree)
    judged = task.batched.model(task.params, tree)
    for place, (gold, own, each) in enumerate(
        zip(decisions(tree), logits, judged, strict=True)
    ):
        scores = np.float64(own["label"])
        expected = np.log(np.exp(scores).sum()) - scores[int(gold.label)]
        follow = 1 / (1 + np.exp(-np.float64(own["follows"])))
        expected -= np.log(follow[0] if gold.down else 1 - follow[0])
        if place:  # whether the root has a sibling is no decision
            expected -= np.log(follow[1] if gold.on else 1 - follow[1])
        np.testing.assert_allclose(each["loss"], expected, rtol=1e-5)
    found = task.judge(task.params)["perplexity"]
    assert found > 60  # nearly uniform over that many relations, and what follows


def tree(text):
    """Parses bracketed labels: ``a(b c(d))``."""
    stack = [[]]
    for token in text.replace("(", " ( ").replace(")", " ) ").split():
        if token == "(":
            stack.append([])
        elif token == ")":
            children = stack.pop()
            stack[-1][-1] = Tree(stack[-1][-1].label, None, children)
        else:
            stack[-1].append(Tree(token))
    [[found]] = stack
    return found


def test_agreement_of_trees(experiment):
    gold = [tree("a(b c(d))"), tree("a")]
    assert experiment.agreement(gold, gold) == {"nodes": 1, "edges": 1, "exact": 1}
    #  a, b are where they were, c is not, d is missing; edges a-b and a-c are there
    found = experiment.agreement([tree("a(b b c)"), tree("a")], gold)
    assert found == pytest.approx(
        {"nodes": 2 * 3 / (5 + 5), "edges": 2 * 2 / (3 + 3), "exact": 0.5}
    )
    nothing = experiment.agreement([tree("x"), tree("x")], gold)
    assert nothing == {"nodes": 0, "edges": 0, "exact": 0}


def test_the_order_of_siblings_counts(experiment):
    found = experiment.agreement([tree("a(c b)")], [tree("a(b c)")])
    assert found == pytest.approx({"nodes": 1 / 3, "edges": 1, "exact": 0})


def test_a_minibatch_is_grown_in_order(experiment, parse, files, few_widths):
    task = experiment.make_task(parse([*files, "--hidden", "3"]))
    sources = list(task.instances[:5])
    together = experiment.grower(2)(task.params, sources)
    for one, source in zip(together, sources, strict=True):
        [alone] = experiment.grower(1)(task.params, [source])
        assert one == alone
        own = experiment.generate(task.params, source)
        assert len(own["label"]) == one.num_nodes()
