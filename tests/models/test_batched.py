"""Every model, batched, against its unbatched form."""

from pathlib import Path

import jax
import numpy as np
import pytest

import edbatch as eb
from edbatch.data import Program, SpelledSentence, sample_tree
from edbatch.data.programs import FUNCTIONS, pseudo_features
from edbatch.executor.coarse import type_loops
from edbatch.models import WORKLOADS, get_workload

# Compilation dominates these tests, not the number of rows.
pytestmark = pytest.mark.usefixtures("quick_compiles")
SIZES = eb.Sizes(widths=(16,))
PARTS = eb.Sizes(widths=(2, 6, 16))  # coarse programs run these in loops of width 2

LSTMS = [
    f"{place}.{direction}"
    for place in ("characters", "layers.0", "layers.1")
    for direction in ("forward", "backward")
]
CASES = [
    *((name, {}) for name in WORKLOADS),
    ("tree-lstm", {"classify": "nodes"}),
    ("tree-lstm", {"arity": 3}),
    ("tree-gru", {"arity": 3}),
    ("mv-rnn", {"classify": "nodes"}),
]


def random_params(workload, hidden):
    params = workload.init_params(jax.random.key(0), hidden)
    rng = np.random.default_rng(0)

    def not_zero(p):  # biases and initial states; other parameters keep their scale
        return p + rng.normal(0, 0.3, p.shape).astype(np.float32) * (p.ndim == 1)

    return jax.tree.map(not_zero, params)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_batched_equals_unbatched(name, options):
    workload = get_workload(name, vocabulary_size=30, **options)
    instances = workload.sample(np.random.default_rng(1), 12)
    # Short instances, so that fewer types are compiled.
    instances = sorted(instances, key=lambda each: len([*workload.words(each)]))[1:4]
    params = random_params(workload, 7)
    fine = eb.batch(workload.model, sizes=SIZES)
    coarse = eb.batch(workload.model, sizes=PARTS, params=params)
    loops = coarse.plan(instances).in_tier("coarse").shape.program.loops
    assert any(last - first > 1 for first, last, _ in type_loops(loops))
    # In one test, so that the unbatched model is compiled once for both.
    for batched, tier in ((fine, "fine"), (coarse, "coarse")):
        found = eb.verify(batched, params, instances, tier=tier)
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
        ("tree-gru", {"arity": 3}, {"leaf/0", "compose/2", "compose/3", "classify/1"}),
        ("mv-rnn", {}, {"leaf/0", "compose/4", "classify/1"}),
        (
            "tree-lstm-2type",
            {},
            {"leaf/0", "compose@nominal/4", "compose@other/4", "classify/1"},
        ),
        (
            "tree-lstm-childsum",
            {},
            {"leaf/0", "head/8", "classify/1"},
        ),
        (
            "bilstm-tagger-char",
            {},
            {"embed/0", "embed@characters/0", "spell@characters/2", "classify/2"}
            | {f"start@{path}/0" for path in LSTMS}
            | {f"lstm@{path}/3" for path in LSTMS[:4]}
            | {f"lstm@{path}/4" for path in LSTMS[4:]},
        ),
        (
            "neural-module-network",
            {},
            {f"{name}/{len(FUNCTIONS[name].inputs)}" for name in FUNCTIONS}
            | {"classify/1"},
        ),
    ],
)
def test_node_types(name, options, types):
    workload = get_workload(name, vocabulary_size=30, **options)
    params = workload.init_params(jax.random.key(0), 2)
    batched = eb.batch(workload.model, params=params)
    graph = batched.graph(workload.sample(np.random.default_rng(0), 80))
    found = {str(key) for key in graph.structure.type_keys}
    if name == "tree-lstm-childsum":  # some heads have more children than four
        found -= {"head/32", "head/128"}
    assert found == types


@pytest.mark.parametrize("name", ["tree-lstm", "tree-gru", "mv-rnn", "tree-lstm-2type"])
@pytest.mark.parametrize("classify", ["root", "nodes"])
def test_a_very_deep_tree_can_be_recorded(name, classify):
    depth = 100_000
    tree = sample_tree(np.random.default_rng(0), 30, length=depth + 1, shape="chain")
    graph = recorded(name, tree, classify=classify)
    classified = 1 if classify == "root" else 2 * depth + 1
    assert graph.num_nodes == 2 * depth + 1 + classified
    assert graph.structure.depth.max() == depth + 1


def test_a_very_deep_program_can_be_recorded():
    depth = 100_000
    program = Program(
        ["scene"] + ["filter_size"] * depth,
        [(), *((k,) for k in range(depth))],
        [None] + [1] * depth,
        features=pseudo_features(0),
    )
    graph = recorded("neural-module-network", program)
    assert graph.structure.depth.max() == depth + 1


def test_a_very_long_word_can_be_recorded():
    length = 100_000
    sentence = SpelledSentence([0], [0], [(97,) * length])
    graph = recorded("bilstm-tagger-char", sentence)
    assert graph.num_nodes == 3 * length + 12


def recorded(name, instance, **options):
    workload = get_workload(name, vocabulary_size=30, **options)
    params = workload.init_params(jax.random.key(0), 2)
    return eb.batch(workload.model, params=params).record(instance)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("tree-lstm", "gum_const/const/GUM_academic_art.ptb"),
        ("tree-lstm-childsum", "ud_english_ewt/en_ewt-ud-dev.conllu"),
        ("bilstm-tagger", "ud_english_ewt/en_ewt-ud-test.conllu"),
        ("bilstm-tagger", "wikigold/wikigold.conll.txt"),
        ("tree-gru", "gum_const/const/GUM_academic_art.ptb"),
        ("mv-rnn", "gum_const/const/GUM_academic_art.ptb"),
        ("tree-lstm-2type", "gum_const/const/GUM_academic_art.ptb"),
        ("bilstm-tagger-char", "wikigold/wikigold.conll.txt"),
        ("bilstm-tagger-char", "wnut17/emerging.dev.conll"),
        (
            "neural-module-network",
            "clevr_questions_generated/CLEVR_val_questions.json",
        ),
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
