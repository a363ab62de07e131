"""The models, batched, against themselves."""

from pathlib import Path

import jax
import numpy as np
import pytest

import edbatch as eb
from edbatch.data import sample_tree
from edbatch.models import get_workload

# Few widths: these tests pay for compiles, not for rows.
SIZES = eb.Sizes(widths=(16,))

CASES = [
    ("tree-lstm", {}),
    ("tree-lstm", {"classify": "nodes"}),
    ("tree-lstm", {"arity": 3}),
    ("tree-lstm-childsum", {}),
    ("bilstm-tagger", {}),
]


def random_params(workload, hidden):
    params = workload.init_params(jax.random.key(0), hidden)
    rng = np.random.default_rng(0)  # biases and initial states that are not zero
    return jax.tree.map(
        lambda p: p + rng.normal(0, 0.3, p.shape).astype(np.float32), params
    )


@pytest.mark.parametrize(("name", "options"), CASES)
def test_batched_equals_unbatched(name, options):
    workload = get_workload(name, vocabulary_size=30, **options)
    instances = workload.sample(np.random.default_rng(1), 12)
    # Short ones, for fewer types to compile.
    instances = sorted(instances, key=lambda each: len([*workload.words(each)]))[1:4]
    batched = eb.batch(workload.model, sizes=SIZES)
    found = eb.verify(batched, random_params(workload, 7), instances)
    assert found.instances == 3
    assert found.max_output_error < 1e-5
    assert found.max_gradient_error is not None
    assert found.max_gradient_error < 1e-5


def test_the_tagger_returns_a_ragged_list_of_logits():
    workload = get_workload("bilstm-tagger", vocabulary_size=30, num_tags=3)
    sentences = workload.sample(np.random.default_rng(1), 3)
    batched = eb.batch(workload.model, sizes=SIZES)
    logits = batched(random_params(workload, 4), sentences)
    assert isinstance(logits, eb.Ragged)
    assert [each.shape for each in logits.to_list()] == [
        (len(sentence), 3) for sentence in sentences
    ]


@pytest.mark.parametrize(
    ("name", "options", "types"),
    [
        ("tree-lstm", {}, {"leaf/0", "compose/4", "classify/1"}),
        (
            "tree-lstm",
            {"arity": 3},
            {"leaf/0", "compose/4", "compose/6", "classify/1"},
        ),
        (
            "tree-lstm-childsum",
            {},
            {"leaf/0", "head/2", "head/4", "head/8", "classify/1"},
        ),
    ],
)
def test_node_types(name, options, types):
    workload = get_workload(name, vocabulary_size=30, **options)
    params = workload.init_params(jax.random.key(0), 2)
    batched = eb.batch(workload.model, params=params)
    graph = batched.graph(workload.sample(np.random.default_rng(0), 5))
    assert {str(key) for key in graph.structure.type_keys} >= types
    if name == "tree-lstm":
        assert {str(key) for key in graph.structure.type_keys} == types


@pytest.mark.parametrize("classify", ["root", "nodes"])
def test_a_very_deep_tree_can_be_recorded(classify):
    depth = 100_000
    workload = get_workload("tree-lstm", vocabulary_size=30, classify=classify)
    params = workload.init_params(jax.random.key(0), 2)
    batched = eb.batch(workload.model, params=params)
    tree = sample_tree(np.random.default_rng(0), 30, length=depth + 1, shape="chain")
    graph = batched.record(tree)
    classified = 1 if classify == "root" else 2 * depth + 1
    assert graph.num_nodes == 2 * depth + 1 + classified
    assert graph.structure.depth.max() == depth + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("tree-lstm", "gum_const/const/GUM_academic_art.ptb"),
        ("tree-lstm-childsum", "ud_english_ewt/en_ewt-ud-dev.conllu"),
        ("bilstm-tagger", "ud_english_ewt/en_ewt-ud-test.conllu"),
        ("bilstm-tagger", "wikigold/wikigold.conll.txt"),
    ],
)
def test_batched_equals_unbatched_on_real_data(
    shared_data: Path, name: str, path: str
) -> None:
    workload = get_workload(name)
    instances = workload.read(shared_data / path)[:16]
    params = random_params(workload, 32)
    found = eb.verify(eb.batch(workload.model, sizes=SIZES), params, instances)
    assert found.instances == 16
    assert found.max_output_error < 1e-5
