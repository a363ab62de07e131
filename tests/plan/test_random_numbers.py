"""Tests that random numbers in cells do not depend on how a minibatch is run."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noisy_programs import interpret_noisy, maybe_drop, sample_noisy
from programs import make_params
from quick_compile import quick_compile

import edbatch as eb

KEY = jax.random.key(7)


@pytest.fixture(autouse=True, scope="module")
def quick_compiles():
    """Compiles faster, since programs of twenty types take long to compile."""
    with quick_compile():
        yield


def sample_minibatch(seed, instances, length):
    rng = np.random.default_rng(seed)
    return [
        sample_noisy(rng, int(rng.integers(1, length + 1))) for _ in range(instances)
    ]


def assert_close(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@functools.cache
def batched_with_all_types():
    """A large minibatch meets all types first; its program runs all other ones."""
    batched = eb.batch(
        interpret_noisy,
        params=make_params(),
        sizes=eb.Sizes(widths=(3,), max_waste=1e9),
    )
    batched.plan(sample_minibatch(0, 16, 40))
    return batched


@settings(max_examples=10)
@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 12))
def test_outputs_on_random_programs(seed, instances, length):
    minibatch = sample_minibatch(seed, instances, length)
    eb.verify(
        batched_with_all_types(),
        make_params(seed % 3),
        minibatch,
        gradients=False,
        rng=jax.random.key(seed % 1000),
    )


def test_outputs_and_gradients_on_random_programs():
    for seed in (1, 2):
        minibatch = sample_minibatch(seed, 4, 25)
        found = eb.verify(
            batched_with_all_types(),
            make_params(seed),
            minibatch,
            rng=jax.random.key(seed),
        )
        assert found.max_gradient_error is not None
        assert found.outputs > 100


@pytest.mark.parametrize(
    ("policy", "widths", "options"),
    [
        ("depth", (2, 8), {}),
        ("agenda", (4,), {"compiler": eb.Compiler(packing="never")}),
        ("greedy", (1, 3), {"compiler": eb.Compiler(slices="never")}),
        ("greedy", (8,), {"planner": eb.Planner(layout="aligned")}),
        ("depth", (3,), {"planner": eb.Planner(reuse="always")}),
    ],
)
def test_the_result_does_not_depend_on_how_the_minibatch_is_run(
    policy, widths, options
):
    @eb.cell
    def step(params, state, word, rng):
        kept = jax.random.bernoulli(rng, 0.5, state.shape)
        return jnp.tanh(params["mix"]["a"] @ jnp.where(kept, state, 0) + word)

    def model(params, words):
        state = maybe_drop(np.ones(3, np.float32))
        for each in words:
            state = step(params, state, float(each))
        return maybe_drop(state)

    sentences = [[1, 2, 3], [1], [1, 2, 3], [2, 0, 2, 1, 1]]
    sizes = eb.Sizes(widths=widths)
    batched = eb.batch(model, policy, sizes=sizes, **options)
    found = batched(make_params(), sentences, rng=KEY)
    for k, sentence in enumerate(sentences):
        with eb.cell_keys(KEY, instance=k):
            assert_close(found[k], model(make_params(), sentence))
    assert not np.allclose(found[0], found[2])  # the same sentence, two draws


@eb.cell
def normal(size, rng):
    return size * jax.random.normal(rng, (2,))


def draws(params, sizes):
    return [normal(each) for each in sizes]


def test_each_call_and_each_instance_draws_its_own_numbers():
    batched = eb.batch(draws, params=())
    found = np.concatenate(batched((), [[1.0] * 5] * 4, rng=KEY).to_list())
    assert len(np.unique(found)) == 5 * 4 * 2


def test_recordings_draw_by_their_place_in_the_minibatch():
    batched = eb.batch(draws, params=())
    one, other = batched.record([1.0, 2.0]), batched.record([3.0, 1.0])
    minibatch = [[1.0, 2.0], [3.0, 1.0], [1.0, 2.0]]

    def draw(minibatch):
        return batched((), minibatch, rng=KEY).to_list()

    expected = draw(minibatch)
    assert_close(draw([one, other, one]), expected)
    assert_close(draw([one, [3.0, 1.0], one]), expected)
    assert_close(draw([one, other, one, other])[:3], expected)
    assert not np.allclose(expected[0], expected[2])


def test_draws_do_not_depend_on_the_other_instances():
    batched = eb.batch(draws, params=())
    long, short = [1.0] * 3, [1.0]
    first = batched((), [long, short], rng=KEY).to_list()
    second = batched((), [short, short], rng=KEY).to_list()
    assert_close(first[1], second[1])


def test_plans_of_the_cache_draw_anew():
    batched = eb.batch(draws, params=())
    plan = batched.plan([[1.0], [2.0]])
    again = batched.plan([[3.0], [4.0]])
    assert again.report.cached

    def draw(plan, key):
        return np.concatenate(batched.apply((), plan, rng=key).to_list())

    one, two = draw(plan, KEY), draw(again, KEY)
    assert_close(two / one, np.array([[3.0, 3.0], [2.0, 2.0]]))
    three = draw(again, jax.random.key(8))
    assert not np.isclose(two, three).any()


def test_typed_and_raw_keys_give_the_same_with_one_compilation():
    batched = eb.batch(draws, params=())
    plan = batched.plan([[1.0], [2.0]])
    typed = [batched.apply((), plan, rng=jax.random.key(k)) for k in range(3)]
    raw = [batched.apply((), plan, rng=jax.random.PRNGKey(k)) for k in range(3)]
    assert_close(typed, raw)
    assert_close(typed[2], batched.apply((), plan, rng=np.uint32([0, 2])))
    assert batched.compiles == 1


def test_the_key_may_be_traced():
    batched = eb.batch(draws, params=())
    plan = batched.plan([[1.0], [2.0]])
    compiled = jax.jit(batched.apply)
    for seed in range(3):
        key = jax.random.key(seed)
        expected = batched.apply((), plan, rng=key)
        assert_close(compiled((), plan, rng=key), expected)
    assert compiled._cache_size() == 1


def test_a_key_that_no_cell_takes_is_ignored():
    @eb.cell
    def double(x):
        return 2 * x

    batched = eb.batch(lambda params, x: double(x), params=())
    plan = batched.plan([1.0, 2.0])
    assert_close(batched.apply((), plan, rng=KEY), batched.apply((), plan))
    assert batched.compiles == 1


def test_a_cell_with_a_default_runs_with_and_without_keys():
    def model(params, x):
        return maybe_drop(x)

    minibatch = [np.ones(20, np.float32), np.ones(20, np.float32)]
    batched = eb.batch(model, params=())
    plan = batched.plan(minibatch)
    assert_close(batched.apply((), plan), jnp.ones((2, 20)))
    dropped = np.asarray(batched.apply((), plan, rng=KEY))
    np.testing.assert_allclose(np.unique(dropped), [0, 1 / 0.7], rtol=1e-6)
    eb.verify(batched, (), minibatch)
    eb.verify(batched, (), minibatch, rng=KEY)
    assert_close(model(None, minibatch[0]), minibatch[0])


@pytest.mark.parametrize("packing", [True, False])
def test_gradients_of_large_parameters_that_are_mixed_with_keys(packing):
    """Loops, branches and recomputed functions are single equations with keys."""

    @eb.cell
    def step(params, state, rng):
        def turn(carry, key):
            noise = jax.random.normal(key, carry.shape)
            return jnp.tanh(params["large"] @ carry + noise), noise

        state, noise = jax.lax.scan(turn, state, jax.random.split(rng, 3))
        again = jax.checkpoint(lambda w, x, key: w @ drop_by(x, key))
        state = again(params["large"], state, rng)
        return jax.lax.cond(
            noise[0, 0] > 0,
            lambda w, x, key: jnp.sin(w @ drop_by(x, key)),
            lambda w, x, key: x,
            *(params["large"], state, rng),
        )

    def drop_by(x, key):
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)

    def model(params, length):
        state = step(params, np.ones(8, np.float32))
        for _ in range(length):
            state = step(params, state)
        return state

    large = jax.random.normal(jax.random.key(0), (8, 8)) / 3
    compiler = eb.Compiler(packing="auto" if packing else "never")
    batched = eb.batch(model, sizes=eb.Sizes(widths=(2,)), compiler=compiler)
    eb.verify(batched, {"large": large}, [1, 0, 3], rng=KEY)


def test_a_gradient_with_respect_to_parameters_with_a_traced_key():
    @eb.cell
    def scale(params, x, rng):
        return params * x * jax.random.normal(rng)

    batched = eb.batch(scale_model := lambda params, x: scale(params, x), params=1.0)
    plan = batched.plan([1.0, 2.0])

    @jax.jit
    def gradient(params, plan, key):
        return jax.grad(lambda p: batched.apply(p, plan, rng=key).sum())(params)

    def reference(params, key):
        total = 0.0
        for k, x in enumerate([1.0, 2.0]):
            with eb.cell_keys(key, k):
                total += scale_model(params, x)
        return total

    for seed in (0, 1):
        key = jax.random.key(seed)
        expected = jax.grad(reference)(1.0, key)
        np.testing.assert_allclose(gradient(1.0, plan, key), expected, rtol=1e-6)


def test_a_cell_that_needs_a_key_but_gets_none():
    batched = eb.batch(draws, params=())
    with pytest.raises(
        eb.PlanError, match=r"cell 'normal' takes a key, 'rng', but the minibatch is"
    ):
        batched((), [[1.0]])


@pytest.mark.parametrize(
    ("rng", "named"),
    [
        (3, r"received int;"),
        (np.float32([1, 2]), r"received float32\[2\]"),
        (jax.random.split(KEY, 2), r"received key<fry>\[2\]"),
        (jax.random.key(0, impl="rbg"), r"received key<rbg>\[\]"),
    ],
)
def test_a_key_that_is_none(rng, named):
    batched = eb.batch(draws, params=())
    with pytest.raises(eb.CellError, match=r"rng takes one key of .*" + named):
        batched((), [[1.0]], rng=rng)


def test_a_cell_that_returns_other_shapes_without_its_key():
    @eb.cell
    def unsteady(x, rng=None):
        return x if rng is None else jnp.stack([x, x])

    batched = eb.batch(lambda params, x: unsteady(x), params=())
    with pytest.raises(eb.CellError, match="'unsteady' returns other shapes or dtypes"):
        batched((), [1.0])


def test_keys_may_be_given_where_another_generator_is_the_default():
    minibatch = [[1.0, 2.0], [3.0]]
    expected = eb.batch(draws)((), minibatch, rng=KEY)
    with jax.default_prng_impl("rbg"):
        assert_close(eb.batch(draws)((), minibatch, rng=KEY), expected)
        raw = jax.random.key_data(KEY)
        assert_close(eb.batch(draws)((), minibatch, rng=raw), expected)
