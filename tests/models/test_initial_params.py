"""The scale of sampled parameters."""

import collections
import re

import jax
import numpy as np
import pytest

from edbatch.models import WORKLOADS, get_workload, mv_rnn

pytestmark = pytest.mark.usefixtures("quick_compiles")


def summed_with(name):
    """Path of the gate that a matrix of an input, a state or a child belongs to."""
    return re.sub(r"\['[WU]'\](\[\d+\])?$", "", name)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in WORKLOADS),
        ("tree-lstm", {"arity": 3}),
        ("tree-gru", {"arity": 3}),
    ],
)
def test_sampled_parameters_are_well_scaled(name, options):
    hidden = 64
    workload = get_workload(name, vocabulary_size=100, **options)
    params = workload.init_params(jax.random.key(0), hidden)
    other = workload.init_params(jax.random.key(1), hidden)
    matrices = {}
    fan_in = collections.Counter()  # per gate, over all products that are summed
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        assert leaf.dtype == np.float32
        if leaf.ndim == 2:
            name = jax.tree_util.keystr(path)
            matrices[name] = leaf
            fan_in[summed_with(name)] += len(leaf)
    matrices.pop("['word_matrix']['diagonal']", None)  # ones
    for name, leaf in matrices.items():
        rows = 1 if "embedding" in name else fan_in[summed_with(name)]
        assert np.std(leaf) * rows**0.5 == pytest.approx(1, abs=0.1), name
    assert len({float(leaf[0, 0]) for leaf in matrices.values()}) == len(matrices)
    for one, two in zip(jax.tree.leaves(params), jax.tree.leaves(other), strict=True):
        assert one.ndim < 2 or np.all(one == 1) or not np.array_equal(one, two)


def test_the_matrices_of_words_are_near_the_identity():
    own = mv_rnn.init_params(jax.random.key(0), 64, 100)["word_matrix"]
    rest = np.asarray(own["left"] @ own["right"])
    assert np.all(own["diagonal"] == 1)
    vector = np.random.default_rng(0).normal(size=64)
    assert np.std(vector @ rest) == pytest.approx(0.1, abs=0.02)
