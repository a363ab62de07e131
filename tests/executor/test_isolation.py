"""Tests that a poisoned instance changes no output or gradient of another one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from poisoned import (
    POISONS,
    Differentiated,
    assert_isolated,
    chain,
    make_params,
    model,
    poison,
    sample_chains,
    sample_minibatch,
)

import edbatch as eb

LENGTHS = (3, 5, 2, 4, 1, 3, 6)

ALIGNED = eb.Planner(layout="aligned")
OPTIONS = {
    "default": (eb.Planner(), eb.Compiler()),
    "aligned": (ALIGNED, eb.Compiler()),
    "aligned, gathered": (ALIGNED, eb.Compiler(slices="never")),
    "aligned, remat": (ALIGNED, eb.Compiler(remat="always")),
    "unpacked": (ALIGNED, eb.Compiler(packing="never")),
    "unpacked, remat": (ALIGNED, eb.Compiler(packing="never", remat="always")),
    "hoisted": (ALIGNED, eb.Compiler(hoisting="always")),
    "not hoisted": (ALIGNED, eb.Compiler(hoisting="never")),
}


def assert_all_isolated(batched, sample, positions):
    differentiated = Differentiated(batched, jax.random.key(0))
    for at in positions:
        clean = sample(at)
        before = differentiated(clean)
        for value in POISONS.values():
            assert_isolated(differentiated, before, clean, at, value)


def has_slices(batched, minibatch):
    plan = batched.plan(minibatch)
    turns = plan.trips[: plan.num_steps].sum(axis=0)
    loops = plan.shape.program.loops
    return any(turn and loop.sliced for turn, loop in zip(turns, loops, strict=True))


@pytest.mark.parametrize(
    ("options", "widths"),
    [*((each, (4,)) for each in OPTIONS), ("default", (1, 3, 8))],
)
def test_chains(options, widths, quick_compiles):
    """Slices of chains have rows of other instances after them."""
    batched = eb.batch(
        chain,
        params=make_params(),
        planner=OPTIONS[options][0],
        compiler=OPTIONS[options][1],
        sizes=eb.Sizes(widths=widths),
    )

    def sample(at):
        return sample_chains(1, LENGTHS, at)

    assert_all_isolated(batched, sample, range(len(LENGTHS)))
    assert has_slices(batched, sample(0)) == (OPTIONS[options][1].slices != "never")


@pytest.mark.parametrize("policy", ["depth", "agenda", "greedy"])
def test_trees(policy, quick_compiles):
    """Trees with padded lists, random numbers, and inputs of hoisted products."""
    batched = eb.batch(
        model,
        policy,
        params=make_params(),
        compiler=eb.Compiler(hoisting="always"),
        sizes=eb.Sizes(widths=(4,)),
    )
    assert_all_isolated(batched, lambda at: sample_minibatch(1, 9, at), (4,))


def test_recordings_in_another_order(quick_compiles):
    batched = eb.batch(chain, params=make_params(), sizes=eb.Sizes(widths=(4,)))
    differentiated = Differentiated(batched)
    clean = sample_chains(1, LENGTHS, 3)
    for order in ([3, 0, 1, 2, 6, 5, 4], [6, 5, 4, 2, 1, 0, 3]):
        minibatch = [clean[k] for k in order]
        before = differentiated(minibatch)
        for value in POISONS.values():
            assert_isolated(differentiated, before, minibatch, order.index(3), value)


@pytest.mark.parametrize("value", POISONS.values(), ids=POISONS)
def test_rows_that_are_used_again(value, quick_compiles):
    """Forward only, since there is no gradient if values are overwritten."""
    batched = eb.batch(
        chain,
        params=make_params(),
        planner=eb.Planner(reuse="always"),
        sizes=eb.Sizes(widths=(4,)),
    )
    clean = sample_chains(1, LENGTHS, 3)
    dirty = [poison(each, value) if k == 3 else each for k, each in enumerate(clean)]
    before, after = (batched(make_params(), each) for each in (clean, dirty))
    others = np.arange(len(clean)) != 3
    np.testing.assert_array_equal(after[others], before[others])
    assert np.isfinite(before).all()


def test_sequences_with_all_defaults():
    """A batch of 130 nodes runs as chunks of 128 and 4 rows, two of them padding."""

    @eb.cell
    def start(w, x):
        return x @ w

    @eb.cell
    def step(w, h, x):
        return jnp.tanh(h @ w + x @ w)

    def model(w, xs):
        h = start(w, xs[0])
        for x in xs[1:]:
            h = step(w, h, x)
        return h

    rng = np.random.default_rng(3)
    clean = [
        [rng.normal(size=3).astype(np.float32) for _ in range(length)]
        for length in [2] * 2 + [4] * 130
    ]
    w = jnp.asarray(rng.normal(size=(3, 3)) / 2, jnp.float32)
    differentiated = Differentiated(eb.batch(model, params=w), params=w)
    before = differentiated(clean)
    assert_isolated(differentiated, before, clean, len(clean) - 1, np.nan)


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("wrapped", ["jit", "scan"])
def test_tapes_have_rows_without_a_lane(wrapped, packing, quick_compiles):
    """Unused tape rows are zero, where a norm has no derivative."""

    def unit(w, x):
        return w @ (x / jnp.linalg.norm(x))

    def scan(w, x):
        return jax.lax.scan(lambda x, _: (unit(w, x), None), x, None, length=2)[0]

    inner = {"jit": jax.jit(unit), "scan": scan}[wrapped]

    @eb.cell
    def first(params, x):
        return inner(params["w"], x)

    @eb.cell
    def following(params, state, x):
        return state + inner(params["w"], x + state)

    def model(params, xs):
        state = first(params, xs[0])
        for x in xs[1:]:
            state = following(params, state, x)
        return state

    rng = np.random.default_rng(1)
    params = {"w": jnp.asarray(rng.normal(size=(8, 8)), jnp.float32)}
    instances = [
        [rng.normal(size=8).astype(np.float32) for _ in range(n)] for n in (3, 1, 2)
    ]
    batched = eb.batch(
        model,
        params=params,
        compiler=eb.Compiler(packing="auto" if packing else "never"),
        sizes=eb.Sizes(widths=(4,)),
    )
    eb.verify(batched, params, instances)


@eb.cell
def raw(vector):
    return vector * 1.0


@eb.cell
def gain_of_product(own, state):
    """The gain's cotangent depends on the product's value and on the state."""
    return jnp.tanh(own["weights"] @ state) * own["gain"] + jnp.sin(own["gain"] * state)


def layers_of_its_own(params, instance):
    layer, vector = instance
    state = raw(vector)
    for _ in range(2):
        state = gain_of_product(params[layer], state)
    return state


@pytest.mark.parametrize("tier", ["fine", "coarse"])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_padding_that_reads_what_other_instances_hold(count, tier, quick_compiles):
    """Rows of a slice beyond its nodes are NaN, and so are products of them."""
    rng = np.random.default_rng(count)

    def draw(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    params = [{"weights": draw(5, 5), "gain": draw(5)} for _ in range(2)]
    clean = [(0, rng.normal(size=5).astype(np.float32)) for _ in range(count)]
    nan = (1, np.full(5, np.nan, np.float32))
    batched = eb.batch(layers_of_its_own, sizes=eb.Sizes(widths=(4,)))
    plan = batched.plan([*clean, *[nan] * 3], params=params)
    assert any(loop.sliced for loop in plan.shape.program.loops)

    def loss(params, plan):
        return jnp.sin(batched.apply(params, plan)).sum()

    found = jax.grad(loss)(params, plan.in_tier(tier))[0]
    alone = jax.grad(loss)(params, batched.plan(clean, params=params))[0]
    for one, other in zip(*map(jax.tree.leaves, (found, alone)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
