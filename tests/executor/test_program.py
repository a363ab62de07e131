"""Tests the compiled program: no arena copies, few compilations, groups of loops."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trees import all_states, encode, make_params, sample_trees

import edbatch as eb
from edbatch.executor.arenas import compiled_copies
from edbatch.executor.loops import run_loops
from edbatch.models import get_workload
from edbatch.stream.format import record_formats

pytestmark = pytest.mark.default_flags

HIDDEN = 24


def compiled(batched, params, trees, tier="fine"):
    plan = batched.bind(params).plan(trees).in_tier(tier)
    return plan, jax.jit(batched.apply).lower(params, plan).compile()


def many_types(params, tree):
    """A tree model with a separate composition at each height, for many loops."""

    def visit(node):
        if isinstance(node, int):
            return leaf(params, node), 0
        parts = [visit(each) for each in node]
        height = 1 + max(each for _, each in parts)
        weights = params["levels"][min(height, 5)]
        return join(weights, *(each for each, _ in parts)), height

    return visit(tree)[0]


@eb.cell
def leaf(params, word):
    return params["table"][word]


@eb.cell
def join(weights, left, right):
    return jnp.tanh(weights @ left + right)


@pytest.mark.parametrize("gradient", [False, True])
def test_no_chunk_is_computed_outside_of_its_loop(gradient):
    """XLA would hoist a chunk whose reads are the same in each iteration."""
    workload = get_workload("tree-gru")
    params = workload.init_params(jax.random.key(0), 32)
    batched = eb.batch(workload.model, "greedy", params=params)
    trees = workload.sample(np.random.default_rng(0), 4)
    plan = batched.plan(trees)
    program = plan.shape.program
    forms = record_formats(program.types.types, program.loops)
    longest = max(range(len(forms)), key=lambda k: forms[k].length)
    # The smallest stream for these loops; the loop with the longest record does not
    # iterate.
    assert len(plan.stream) == forms[longest].least_stream
    assert not plan.trips[:, longest].any()

    def loss(params, plan):
        results = jax.tree.leaves(batched.apply(params, plan))
        return sum(jnp.square(each).sum() for each in results)

    run = jax.jit(jax.grad(loss) if gradient else loss)
    entry = run.lower(params, plan).compile().as_text().partition("ENTRY")[2]
    assert " while(" in entry
    assert "dot" not in entry


@eb.cell(padded=("values",))
def total(params, values, mask):
    return jnp.tanh(params["scale"] * jnp.sum(values, axis=0, where=mask[:, None]))


def bag(params, words):
    """The sum of a list of words."""
    return total(params, [leaf(params, each) for each in words])


@pytest.mark.parametrize("gradient", [False, True])
def test_a_list_is_read_at_once_however_long_it_is(gradient):
    params = {"table": jnp.ones((100, 3)), "scale": jnp.float32(0.5)}
    found = []
    for length in (4, 64):
        batched = eb.batch(bag, params=params)
        plan = batched.plan([[*range(length)]])

        def loss(params, plan, apply=batched.apply):
            return apply(params, plan).sum()

        run = jax.jit(jax.grad(loss) if gradient else loss)
        text = run.lower(params, plan).as_text()
        found.append(text.count("stablehlo.concatenate"))
    assert found[0] == found[1]


MODELS = {
    "two types": (encode, make_params(HIDDEN)),
    "all states": (all_states, make_params(HIDDEN)),
    "many types": (
        many_types,
        {
            "table": jnp.ones((10, HIDDEN)),
            "levels": list(jax.random.normal(jax.random.key(0), (6, HIDDEN, HIDDEN))),
        },
    ),
}


@pytest.mark.parametrize("tier", ["fine", "coarse"])
@pytest.mark.parametrize("name", MODELS)
def test_no_arena_is_copied(name, tier):
    model, params = MODELS[name]
    batched = eb.batch(model, sizes=eb.Sizes(widths=(4, 16, 64)))
    plan, program = compiled(batched, params, sample_trees(0, 16), tier)
    assert compiled_copies(program, plan.shape.program) == []
    arenas = {rows for _, rows in plan.shape.program.arena_rows}
    text = program.as_text()
    assert any(re.search(rf"f32\[{rows},{HIDDEN}\]", text) for rows in arenas)


@pytest.mark.parametrize("tier", ["fine", "coarse"])
@pytest.mark.parametrize("name", MODELS)
def test_no_arena_is_copied_in_the_loops_of_the_gradient(name, tier):
    model, params = MODELS[name]
    batched = eb.batch(model, params=params, sizes=eb.Sizes(widths=(4, 16)))
    plan = batched.plan(sample_trees(0, 16)).in_tier(tier)

    def loss(params):
        return sum(
            x.sum()
            for x in jax.tree.leaves(batched.apply(params, plan))
            if jnp.issubdtype(x.dtype, jnp.floating)
        )

    program = jax.jit(jax.grad(lambda p: loss(p) * 1.0)).lower(params).compile()
    assert compiled_copies(program, plan.shape.program, entry=False) == []


def test_the_search_for_copies_finds_one():
    model, params = MODELS["two types"]
    batched = eb.batch(model, sizes=eb.Sizes(widths=(4,)))
    plan = batched.bind(params).plan([(1, 2)])
    ((_, rows),) = plan.shape.program.arena_rows

    def copying(x):
        def body(_, pair):
            a, b = pair
            return b, a.at[0].add(b[1])

        return jax.lax.fori_loop(0, 3, body, (x, x * 2))

    program = jax.jit(copying).lower(jnp.ones((rows, HIDDEN))).compile()
    assert compiled_copies(program, plan.shape.program)
    assert compiled_copies(program, plan.shape.program, entry=False)


@pytest.mark.parametrize("loops", [1, 3, 8, 9, 10, 40])
@pytest.mark.parametrize("reverse", [False, True])
def test_loops_run_in_order_as_often_as_asked(loops, reverse):
    """A number's base-100 digits record which loops ran."""
    rng = np.random.default_rng(loops)
    trips = rng.integers(0, 3, loops) * (rng.random(loops) < 0.6)
    bodies = [
        lambda _, carry, p=p: (carry[0].at[carry[1]].set(p), carry[1] + 1)
        for p in range(loops)
    ]
    start = (jnp.full(200, -1), jnp.int32(0))
    order, count = jax.jit(
        lambda trips: run_loops(bodies, trips, start, ungrouped=8, reverse=reverse)
    )(jnp.asarray(trips, jnp.int32))
    expected = [p for p in range(loops) for _ in range(trips[p])]
    assert order[:count].tolist() == (expected[::-1] if reverse else expected)


def test_gradients_through_groups_of_loops():
    model, params = MODELS["many types"]
    batched = eb.batch(
        model,
        sizes=eb.Sizes(widths=(2, 8), max_loops=None),
        compiler=eb.Compiler(sharing="never"),
    )
    trees = sample_trees(1, 6)
    batched.bind(params).plan(trees)
    assert len(batched.plan(trees).shape.program.loops) > 8
    eb.verify(batched, params, trees)


def test_a_plan_is_a_pytree_of_int32_arrays():
    batched = eb.batch(encode, params=make_params())
    plan = batched.plan([(1, 2), 3])
    leaves, treedef = jax.tree.flatten(plan)
    assert all(each.dtype == np.int32 for each in leaves)
    again = jax.tree.unflatten(treedef, leaves)
    assert again.shape == plan.shape and hash(again.shape) == hash(plan.shape)
