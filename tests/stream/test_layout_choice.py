"""Tests that `Planner(layout="auto")` aligns the types for which it pays."""

import copy
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import interpret, make_params, sample_program
from quick_compile import quick_compile

import edbatch as eb
from edbatch import planning
from edbatch.target import CPU

HIDDEN = 4


@eb.cell
def word(params, index):
    return params["table"][index], params["table"][index]


@eb.cell
def step(params, h, c, x):
    return jnp.tanh(params["w"] @ h + x), c + x


@eb.cell
def pair(params, left, right):
    return jnp.tanh(left + params["w"] @ right)


def chain(params, words):
    h, c = word(params, words[0])
    for each in words[1:]:
        h, c = step(params, h, c, word(params, each)[0])
    return h


def tree(params, node):
    """A tree model whose leaves are words that all trees share."""
    if isinstance(node, int):
        return word(params, node)[0]
    return pair(params, tree(params, node[0]), tree(params, node[1]))


def either(params, instance):
    kind, own = instance
    return chain(params, own) if kind == "chain" else tree(params, own)


PARAMS = {
    "table": jax.random.normal(jax.random.key(0), (10, HIDDEN)),
    "w": jax.random.normal(jax.random.key(1), (HIDDEN, HIDDEN)),
}


def sample_chains(count, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(10, size=rng.integers(4, 12)).tolist() for _ in range(count)]


def sample_tree(rng, leaves):
    if leaves == 1:
        return int(rng.integers(10))
    left = int(rng.integers(1, leaves))
    return sample_tree(rng, left), sample_tree(rng, leaves - left)


def sample_trees(count, seed=0):
    rng = np.random.default_rng(seed)
    return [sample_tree(rng, int(rng.integers(5, 20))) for _ in range(count)]


def aligned(batched):
    return {key.cell for key in batched.decisions.aligned}


def test_chains_are_aligned_and_trees_are_not():
    chains = eb.batch(chain, params=PARAMS)
    slices = [
        eb.batch(chain, params=PARAMS, planner=eb.Planner(layout=layout))
        .plan(sample_chains(32))
        .report.sliced_bytes
        for layout in ("schedule", "aligned", "auto")
    ]
    assert slices[0] < slices[1] == slices[2]
    chains.plan(sample_chains(32))
    assert aligned(chains) == {"step"}
    trees = eb.batch(tree, params=PARAMS)
    trees.plan(sample_trees(32))
    assert aligned(trees) == set()


def test_chains_in_wide_chunks_are_not_aligned():
    batched = eb.batch(chain, params=PARAMS)
    batched.plan(sample_chains(300))
    assert aligned(batched) == set()


def test_each_type_is_decided_by_the_first_minibatch_that_has_it():
    batched = eb.batch(either, params=PARAMS)
    batched.plan([("tree", each) for each in sample_trees(16)])
    assert aligned(batched) == set()
    batched.plan([("chain", each) for each in sample_chains(16)])
    assert aligned(batched) == {"step"}
    batched.plan([("chain", [1]), ("tree", (1, 2))])
    assert aligned(batched) == {"step"}


def test_a_sample_decides_for_good():
    batched = eb.batch(either, params=PARAMS)
    batched.fit([("tree", each) for each in sample_trees(16)])
    batched.plan([("chain", each) for each in sample_chains(16)])
    assert aligned(batched) == set()
    batched.fit([("chain", each) for each in sample_chains(16)])
    assert aligned(batched) == {"step"}
    assert aligned(copy.deepcopy(batched)) == {"step"}


def test_types_that_are_not_aligned_are_not_looked_at(monkeypatch):
    looked_at = []
    plan_layout = planning.plan_layout

    def noted(*args, aligned, **options):
        if aligned is not None:
            looked_at.append(int(aligned.sum()))
        return plan_layout(*args, aligned=aligned, **options)

    monkeypatch.setattr(planning, "plan_layout", noted)
    batched = eb.batch(tree, params=PARAMS)
    for seed in range(3):
        batched.plan(sample_trees(8, seed))
    assert looked_at == [2]  # only when it was decided
    batched = eb.batch(chain, params=PARAMS)
    for seed in range(3):
        batched.plan(sample_chains(32, seed))
    assert looked_at == [2, 2, 1, 1, 1]


@pytest.mark.parametrize("align_node_ns", [0.0, 30.0])
def test_random_programs_with_some_types_aligned(monkeypatch, align_node_ns):
    cheap = replace(CPU, align_node_ns=align_node_ns)
    monkeypatch.setattr("edbatch.target._cpu", lambda: cheap)
    rng = np.random.default_rng(1)
    batched = eb.batch(
        interpret,
        params=make_params(),
        sizes=eb.Sizes(widths=(2, 5), max_waste=1e9),
        compiler=eb.Compiler(slices="always"),
    )
    with quick_compile():
        minibatch = [sample_program(rng, 25) for _ in range(5)]
        eb.verify(batched, make_params(1), minibatch)
    assert aligned(batched)
