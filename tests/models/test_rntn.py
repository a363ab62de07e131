"""The recursive neural tensor network against NumPy, and batched vs unbatched."""

from pathlib import Path

import jax
import numpy as np
import pytest
from equations import HIDDEN, assert_close, random_like, sampled, wide

import edbatch as eb
from edbatch.models import get_workload
from edbatch.models.rntn import compose
from edbatch.schedule import lower_bound

pytestmark = pytest.mark.usefixtures("quick_compiles")


def vectors(params, tree):
    """Vectors of all nodes in postorder, component by component, recursively."""
    if tree.is_leaf:
        return [params["embedding"][tree.word]]
    left, right = (vectors(params, child) for child in tree.children)
    x = np.concatenate([left[-1], right[-1]])
    own = params["compose"]
    parent = [
        np.tanh(x @ own["V"][:, :, k] @ x + x @ own["W"][:, k] + own["b"][k])
        for k in range(HIDDEN)
    ]
    return [*left, *right, np.array(parent)]


@pytest.mark.parametrize("classify", ["root", "nodes"])
def test_it_computes_the_equation(classify):
    model, params, trees = sampled("rntn", classify=classify)
    own = wide(params)
    for tree in trees:
        found = model(params, tree)
        h = vectors(own, tree)
        assert_close(found["state"], h[-1])
        logits = np.array(h if classify == "nodes" else h[-1:])
        logits = logits @ own["classify"]["W"] + own["classify"]["b"]
        assert_close(np.reshape(found["logits"], logits.shape), logits)


def test_the_order_of_the_children_matters():
    _, params, _ = sampled("rntn", count=1)
    one, two = np.eye(HIDDEN, dtype=np.float32)[:2]

    assert not np.allclose(compose(params, one, two), compose(params, two, one))


@pytest.mark.parametrize("classify", ["root", "nodes"])
def test_batched_equals_unbatched_with_gradients(classify):
    workload = get_workload("rntn", vocabulary_size=20, classify=classify)
    trees = workload.sample(np.random.default_rng(3), 5)
    trees = sorted(trees, key=lambda tree: len(tree.words()))[:3]
    params = workload.init_params(jax.random.key(0), 7)
    batched = eb.batch(workload.model, sizes=eb.Sizes(widths=(16,)))
    found = eb.verify(batched, params, trees)
    assert found.instances == 3
    assert found.max_output_error < 1e-5
    assert found.max_gradient_error is not None
    assert found.max_gradient_error < 1e-5


def test_greedy_meets_the_lower_bound():
    workload = get_workload("rntn", vocabulary_size=20)
    trees = workload.sample(np.random.default_rng(0), 8)
    params = workload.init_params(jax.random.key(0), 4)
    batched = eb.batch(workload.model, "greedy", params=params)
    report = batched.plan(trees).report
    assert report.batches == lower_bound(batched.graph(trees).structure)
    assert report.nodes == 8 + sum(2 * len(tree.words()) - 1 for tree in trees)


def test_the_bilinear_term_is_small_at_first():
    own = get_workload("rntn", vocabulary_size=9).init_params(jax.random.key(0), 32)
    x = np.random.default_rng(0).normal(size=(200, 64))
    terms = np.einsum("bi,ijk,bj->bk", x, own["compose"]["V"], x)
    assert np.std(terms) == pytest.approx(0.1, abs=0.02)


def test_sentiment_trees_are_read(tmp_path: Path):
    file = tmp_path / "train.txt"
    file.write_text("(3 (2 It) (4 (2 's) (4 good)))\n")
    workload = get_workload("rntn")
    [tree] = workload.read(file)
    assert str(tree) == "(3 (2 1) (4 (2 2) (4 3)))"
    params = random_like(workload.init_params(jax.random.key(0), 2), 0)
    assert workload.model(params, tree)["logits"].shape == (5,)
