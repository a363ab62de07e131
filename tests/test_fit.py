"""Tests `fit`: a sample makes the decisions, whatever ran before."""

import pickle
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trees import encode, make_params, sample_trees

import edbatch as eb


@eb.cell
def start(params):
    return params["start"]


@eb.cell
def step(params, state, word):
    return jnp.tanh(params["W"] @ params["table"][word] + params["U"] @ state)


def chain(params, words):
    state = start(params)
    for word in words:
        state = step(params, state, word)
    return state


LONG, SHORT = [[*range(40)]] * 4, [[1, 2, 3]] * 4


def chain_params(size=256):
    draw = np.random.default_rng(0).normal
    return {
        "W": draw(size=(size, size)).astype(np.float32) / size,
        "U": draw(size=(size, size)).astype(np.float32) / size,
        "table": draw(size=(40, size)).astype(np.float32),
        "start": np.ones(size, np.float32),
    }


def shapes(plan):
    """Everything of a plan except times: loops, rows and the contents of its arrays."""
    program = plan.shape.program
    names = tuple(str(program.types.types[each.type_id].key) for each in program.loops)
    loops = tuple((each.width, each.sliced) for each in program.loops)
    rows = program.arena_rows, program.type_rows
    return names, loops, rows, [each.tolist() for each in jax.tree.leaves(plan)]


def test_the_order_of_minibatches_changes_no_plan_of_a_fitted_function():
    found = []
    for order in ((0, 1, 2), (2, 1, 0)):
        batched = eb.batch(chain, params=chain_params()).fit(LONG)
        batched.plan(LONG)  # the bucket has its final size from here on
        minibatches = [SHORT, LONG, [*LONG, *SHORT]]
        plans = {k: batched.plan(minibatches[k]) for k in order}
        found.append([shapes(plans[k]) for k in range(3)])
        assert [plans[k].report.hoisted for k in range(3)] == [12, 160, 172]
    assert found[0] == found[1]


@pytest.mark.parametrize("sharded", [False, True])
def test_a_sample_counts_and_not_what_ran_before(sharded):
    params = chain_params()
    batched = eb.batch(chain, params=params)
    batched = batched.sharded() if sharded else batched
    early = batched.plan(SHORT)
    expected = np.asarray(batched.apply(params, early))
    assert batched.decisions.sample is None and not batched.decisions.hoisted
    assert batched.fit(LONG) is batched
    [hoisted] = batched.decisions.hoisted
    assert hoisted.cell.endswith("step") and batched.decisions.sample == len(LONG)
    late = batched.plan(SHORT)
    assert late.report.hoisted == 12 if not sharded else True
    for plan in (late, early, late):
        np.testing.assert_allclose(batched.apply(params, plan), expected, atol=1e-6)
    batched.fit(SHORT)
    assert not batched.decisions.hoisted
    assert batched.plan(LONG) is not None and not batched.decisions.hoisted


@pytest.mark.parametrize("sharded", [False, True])
def test_an_explanation_decides_nothing(sharded):
    params = chain_params(64)
    always = eb.Compiler(hoisting="always", slices="always")
    found = []
    for first in (False, True):
        batched = eb.batch(chain, params=params, compiler=always)
        batched = batched.sharded() if sharded else batched
        before = batched.decisions
        if first:
            batched.explain(SHORT)
        assert batched.decisions == before
        plan = batched.plan(LONG)
        found.append(shapes(plan.shards if sharded else plan))
    assert found[0] == found[1]


def test_an_explanation_is_planned_by_what_is_decided():
    batched = eb.batch(chain, params=chain_params()).fit(LONG)
    known = batched.decisions
    assert batched.explain(SHORT).plan.hoisted == 12 and batched.decisions == known


def test_a_sharded_minibatch_decides_before_it_is_divided(monkeypatch):
    sizes = []
    lay_out = eb.planning.lay_out

    def watched(graph, *rest):
        sizes.append(graph.num_instances)
        return lay_out(graph, *rest)

    monkeypatch.setattr("edbatch.planning.lay_out", watched)
    sharded = eb.batch(chain, params=chain_params(8)).sharded()
    sharded.plan([*LONG, *SHORT])
    assert sizes[0] == 8  # the whole minibatch
    sizes.clear()
    sharded.plan([*SHORT, *SHORT])
    assert sum(sizes) == 8  # types are known, so only the parts are laid out


def test_types_that_the_sample_lacks_are_whole_and_gathered():
    everything = eb.Compiler(hoisting="always", slices="always")
    batched = eb.batch(chain, params=chain_params(8), compiler=everything)
    batched.fit([[]])  # has only `start`
    plan = batched.plan(LONG)
    assert plan.report.hoisted == 0
    assert not any(loop.sliced for loop in plan.shape.program.loops)
    assert not batched.decisions.hoisted and not batched.decisions.sliced
    assert batched.fit(LONG).plan(LONG).report.hoisted == 160


def test_slices_follow_the_sample():
    params = make_params()
    trees = sample_trees(0, 8)
    batched = eb.batch(encode, params=params, compiler=eb.Compiler(slices="always"))
    batched.fit(trees)
    known = batched.decisions.sliced
    assert known and all(variants for variants in known.values())
    batched.plan(trees[:1])
    batched.plan(sample_trees(5, 3))
    assert batched.decisions.sliced == known
    eb.verify(batched, params, sample_trees(7, 5))


def test_decisions_travel_with_pickles():
    batched = eb.batch(encode, params=make_params())
    batched.fit(sample_trees(0, 8))
    copied = pickle.loads(pickle.dumps(batched))
    assert copied.decisions == batched.decisions
    assert copied.decisions.sample == 8
    trees = sample_trees(3, 4)
    own, other = batched.plan(trees), copied.plan(trees)
    clear = replace(own.report, plan_ms=0.0, cached=False)
    assert replace(other.report, plan_ms=0.0, cached=False) == clear
    assert own.shape.program.loops == other.shape.program.loops


def test_an_empty_sample_has_a_sentence():
    with pytest.raises(eb.PlanError, match="at least one instance"):
        eb.batch(encode, params=make_params()).fit([])
