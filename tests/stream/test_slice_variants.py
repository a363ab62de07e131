"""Tests which operands are read as slices, and that results stay the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import interpret, make_params, sample_program
from quick_compile import quick_compile

import edbatch as eb
from edbatch.executor.arenas import compiled_copies
from edbatch.memory_planner import plan_layout
from edbatch.stream.slice_variants import GATHER, SliceVariants

HIDDEN = 6
PLAIN = eb.Planner(layout="schedule")


@eb.cell
def word(params, index):
    return params["table"][index]


@eb.cell
def step(params, state, x):
    return jnp.tanh(params["w"] @ state + x)


def chain(params, words):
    state = word(params, words[0])
    for each in words[1:]:
        state = step(params, state, word(params, each))
    return state


def chain_params():
    table, w = jax.random.normal(jax.random.key(0), (2, 10, HIDDEN))
    return {"table": table, "w": w[:HIDDEN]}


def sliced_chunks(plan):
    """Number of iterations of loops that read slices, and of other loops."""
    loops = plan.shape.program.loops
    turns = plan.trips[: plan.num_steps].sum(axis=0)
    sliced = np.array([bool(loop.sliced) for loop in loops])
    return int(turns[sliced].sum()), int(turns[~sliced].sum())


@pytest.fixture
def every_variant(monkeypatch):
    """Slices all operands that can be sliced, even if it does not pay."""
    monkeypatch.setattr("edbatch.stream.slice_variants._VARIANTS", 9)


def test_the_states_of_chains_are_sliced():
    batched = eb.batch(chain, "depth", params=chain_params(), planner=PLAIN)
    words = [[1, 2, 3, 4, 5]] * 4
    plan = batched.plan(words)
    # Words are in sentence order, so they are gathered, as is the first step's state.
    assert sliced_chunks(plan) == (3, 2)
    [variant] = {loop.sliced for loop in plan.shape.program.loops} - {GATHER}
    assert variant == (0,)
    eb.verify(batched, chain_params(), words)


def test_nothing_is_sliced_on_request():
    compiler = eb.Compiler(slices="never")
    batched = eb.batch(chain, "depth", params=chain_params(), compiler=compiler)
    assert sliced_chunks(batched.plan([[1, 2, 3, 4]] * 4))[0] == 0


@pytest.mark.parametrize(("layout", "seed"), [("schedule", 1), ("aligned", 2)])
def test_random_programs_with_every_slice(every_variant, layout, seed):
    rng = np.random.default_rng(seed)
    minibatch = [sample_program(rng, 25) for _ in range(5)]
    batched = eb.batch(
        interpret,
        params=make_params(),
        sizes=eb.Sizes(widths=(2, 5), max_waste=1e9),
        planner=eb.Planner(layout=layout),
        compiler=eb.Compiler(slices="always"),
    )
    assert sliced_chunks(batched.plan(minibatch))[0] > 5
    with quick_compile():
        eb.verify(batched, make_params(seed), minibatch)


def test_infinities_that_follow_a_slice_reach_no_gradient():
    @eb.cell
    def scale(params, x):
        return params["w"] * x

    def model(params, index):
        vector = word(params, index)
        return vector if index == 9 else scale(params, vector)

    params = {"table": jnp.ones((10, 3)).at[9].set(jnp.inf), "w": jnp.float32(2)}
    batched = eb.batch(model, params=params, sizes=eb.Sizes(widths=(4,)))
    plan = batched.plan([1, 2, 3, 9])
    assert sliced_chunks(plan)[0] == 1

    def loss(params):
        return batched.apply(params, plan)[:3].sum()

    assert jax.grad(loss)(params)["w"] == 9


def test_slices_copy_no_arena(every_variant):
    params = chain_params()
    batched = eb.batch(
        chain,
        "depth",
        params=params,
        planner=PLAIN,
        sizes=eb.Sizes(widths=(4, 8)),
        compiler=eb.Compiler(slices="always"),
    )
    plan = batched.plan([[1, 2, 3, 4, 5]] * 4)
    assert sliced_chunks(plan)[0] == 3
    compiled = jax.jit(batched.apply).lower(params, plan).compile()
    assert compiled_copies(compiled, plan.shape.program) == []

    def loss(params):
        return batched.apply(params, plan).sum()

    compiled = jax.jit(jax.grad(loss)).lower(params).compile()
    assert compiled_copies(compiled, plan.shape.program, entry=False) == []


def test_slices_at_the_end_of_an_arena_are_not_shifted():
    # The last slice of width 8 reads past the last written row.
    params = chain_params()
    sizes = eb.Sizes(widths=(8,), headroom=1.0)
    batched = eb.batch(chain, "depth", params=params, sizes=sizes, planner=PLAIN)
    for length in range(3, 12):
        words = [[k % 10 for k in range(length)]] * 3
        assert sliced_chunks(batched.plan(words))[0] == length - 2
        eb.verify(batched, params, words, gradients=False)


# ---- which variants there are ----


def layout_of(batched, instances):
    graph = batched.graph(instances)
    schedule = batched.policy.schedule(graph.structure)
    return graph, plan_layout(graph, schedule, batched.sizes)


def test_a_variant_that_does_not_pay_is_not_made():
    batched = eb.batch(chain, "depth", params=chain_params())
    graph, layout = layout_of(batched, [[1, 2, 3, 4]] * 4)
    slices = SliceVariants().choose(graph, layout)
    assert slices.variants == (GATHER, (0,))
    assert slices.chunk_variant.tolist() == [0, 0, 1, 1]
    assert slices.bytes == 2 * 4 * 4 * HIDDEN
    slices = SliceVariants(least_share=1.01).choose(graph, layout)
    assert slices.variants == (GATHER,) and not slices.chunk_variant.any()
    assert slices.bytes == 0 and not slices.rows


def test_variants_are_kept_for_later_minibatches():
    kept = SliceVariants()
    batched = eb.batch(chain, "depth", params=chain_params())
    kept.choose(*layout_of(batched, [[1, 2, 3, 4]] * 4))
    # On its own, this minibatch has too few slices.
    mixed = [[1], *([k, 1, 2] for k in range(3)), *([k] * 9 for k in range(5))]
    graph, layout = layout_of(batched, mixed)
    slices = kept.choose(graph, layout)
    assert slices.variants == (GATHER, (0,)) and slices.chunk_variant.any()


def test_padded_lists_are_gathered():
    @eb.cell(padded=("vectors",))
    def total(params, vectors, mask):
        return jnp.where(mask[:, None], vectors, 0).sum(0) * params["gain"]

    def model(params, words):
        return total(params, [word(params, each) for each in words])

    params = {"table": jnp.ones((10, 3)), "gain": jnp.float32(2)}
    batched = eb.batch(model, params=params)
    graph, layout = layout_of(batched, [[1, 2], [3, 4]])
    assert SliceVariants(least_share=0).choose(graph, layout).variants == (GATHER,)
    eb.verify(batched, params, [[1, 2], [3, 4, 5]])
