"""Tests calls under JAX's contexts: x64, strict promotion, disable_jit, debug_nans."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trees import encode, make_params, sample_trees

import edbatch as eb

pytestmark = pytest.mark.usefixtures("quick_compiles")

SIZES = eb.Sizes(widths=(4,))
TIERS = pytest.mark.parametrize("tier", ["coarse", "fine"])


@eb.cell
def add(params, left, right):
    return left * right + params


@eb.cell
def leaf(params, x):
    return params * x


@eb.cell(padded=("states",))
def attend(params, states, mask):
    weights = jnp.where(mask, states @ params, -jnp.inf)
    return jax.nn.softmax(weights) @ states


def combine(params, tree):
    if isinstance(tree, float):
        return leaf(params, tree)
    return add(params, combine(params, tree[0]), combine(params, tree[1]))


def model(params, trees):
    states = [combine(params, each) for each in trees]
    return {"states": states, "mean": attend(params, states)}


INSTANCES = {
    # The operands of each type are consecutive rows.
    "one": [[(0.1, 0.2)]],
    "alike": [[(0.1, 0.2), (0.3, 0.4)]] * 3,
    "unlike": [[((0.1, 0.2), 0.3), 0.5], [0.4], [(0.5, (0.6, (0.7, 0.8))), 0.9, 0.1]],
}


def loss(batched, params, plan):
    result = batched.apply(params, plan)
    return sum((each**2).sum() for each in jax.tree.leaves(result) if each.ndim > 1)


@TIERS
@pytest.mark.parametrize("promotion", ["standard", "strict"])
@pytest.mark.parametrize("instances", INSTANCES.values(), ids=INSTANCES)
def test_x64_in_both_tiers(tier, promotion, instances):
    """Row numbers are int32, whatever dtype JAX gives Python's integers."""
    with jax.enable_x64(True), eb.use_tiers(tier):
        params = jnp.asarray(np.random.default_rng(0).normal(size=3))
        assert params.dtype == jnp.float64
        batched = eb.batch(model, params=params, sizes=SIZES)
        plan = batched.plan(instances, pad_to=4)
        step = eb.jit(jax.value_and_grad(lambda p, plan: loss(batched, p, plan)))
        with jax.numpy_dtype_promotion(promotion):
            value, gradient = step(params, plan)

        def alone(p):
            results = [model(p, each) for each in instances]
            found = [leaf for each in results for leaf in jax.tree.leaves(each)]
            return sum((each**2).sum() for each in found)

        expected, slope = jax.value_and_grad(alone)(params)
        np.testing.assert_allclose(value, expected, rtol=1e-9)
        np.testing.assert_allclose(gradient, slope, rtol=1e-9)


@TIERS
def test_strict_promotion(tier):
    with eb.use_tiers(tier), jax.numpy_dtype_promotion("strict"):
        params, trees = make_params(), sample_trees(0, 3)
        batched = eb.batch(encode, params=params, sizes=SIZES)
        eb.verify(batched, params, trees)
        plan = batched.plan(trees)
        step = eb.jit(jax.grad(lambda p: jnp.sum(batched.apply(p, plan)[0])))
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(step(params)))


def test_without_compilation():
    params, trees = make_params(), sample_trees(0, 2)
    batched = eb.batch(encode, params=params, sizes=SIZES)
    plan = batched.plan(trees)

    def total(p):
        return jnp.sum(batched.apply(p, plan)[0])

    expected = jax.value_and_grad(total)(params)
    with jax.disable_jit():
        found = jax.value_and_grad(total)(params)
        direct = batched(params, trees)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        (found, direct),
        (expected, batched(params, trees)),
    )


def growing(params, count):
    x = jnp.float32(1)
    while eb.value(x) < count:
        x = leaf(params, x)
    return x


def test_without_compilation_nothing_is_compiled():
    params, trees = make_params(), sample_trees(0, 2)
    batched = eb.batch(encode, params=params, sizes=SIZES)
    plan = batched.plan(trees)
    before = len(eb.compile_report())
    with jax.disable_jit(), eb.use_tiers("auto"):
        jax.grad(lambda p: jnp.sum(batched.apply(p, plan)[0]))(params)
        found = eb.batch(growing)(jnp.float32(2), [3, 30])
    assert found.tolist() == [4, 32]
    assert len(eb.compile_report()) == before


@pytest.mark.parametrize("call", ["apply", "direct", "jit", "grad"])
def test_alarms_for_nan(call):
    logarithm = eb.cell(lambda params, x: params * jnp.log(x), name="logarithm")
    params = jnp.float32(2)
    batched = eb.batch(logarithm, params=params, sizes=SIZES)

    def run(instances):
        if call == "direct":
            return batched(params, instances)
        plan = batched.plan(instances)
        if call == "grad":
            return jax.grad(lambda p: batched.apply(p, plan).sum())(params)
        apply = eb.jit(batched.apply) if call == "jit" else batched.apply
        return apply(params, plan)

    with jax.debug_nans(True):
        run([1.0, 3.0, 5.0])  # padding rows raise no error
        with pytest.raises(FloatingPointError, match="nan"):
            run([1.0, -3.0])


def test_arrays_of_the_other_byte_order():
    twice = eb.cell(lambda params, x: params * x, name="twice")
    batched = eb.batch(twice, params=jnp.float32(2), sizes=SIZES)
    instances = [np.arange(3, dtype=">f4"), np.ones(3, ">f4")]
    assert twice(jnp.float32(2), instances[0]).tolist() == [0, 2, 4]
    assert batched(jnp.float32(2), instances).tolist() == [[0, 2, 4], [2, 2, 2]]
    eb.verify(batched, jnp.float32(2), instances)


@eb.cell
def noise(params, x):
    return params * x + jax.random.normal(jax.random.key(3), (3,))


def test_numbers_of_another_generator():
    params = jnp.float32(2)
    batched = eb.batch(noise, params=params, sizes=SIZES)
    for generator in ("threefry2x32", "rbg", "threefry2x32"):
        with jax.default_prng_impl(generator):
            plan = batched.plan([1.0, 2.0])
            # For the same function `jax.jit` would reuse the first generator's program.
            found = jax.jit(lambda *own: batched.apply(*own))(params, plan)
            expected = np.stack([noise(params, x) for x in (1.0, 2.0)])
            np.testing.assert_allclose(found, expected, rtol=1e-5)


@eb.cell
def gumbel_noise(params, x, rng):
    return params * x + jax.random.gumbel(rng, (4,))


@eb.cell
def constant_noise(params, x):
    return params * x + jax.random.normal(jax.random.key(3), ())


@TIERS
@pytest.mark.parametrize("transform", [jax.jit, jax.vmap])
@pytest.mark.parametrize("first", ["traced", "direct"])
def test_another_generator_in_traces_and_outside(first, transform, tier):
    """JAX retraces the same function for neither of the generators."""
    params, instances = jnp.ones(1), [1.0, 2.0]
    batched = eb.batch(constant_noise, params=params[0], sizes=SIZES)
    plan = batched.plan(instances)

    def run(params):
        return batched.apply(jnp.squeeze(params), plan)

    calls = {
        # A new function each time, since `jax.jit` itself caches traces.
        "traced": lambda: np.ravel(transform(lambda p: run(p))(params)),
        "direct": lambda: np.asarray(run(params)),
    }
    second = "direct" if first == "traced" else "traced"
    with eb.use_tiers(tier):
        for call, generator in [
            (first, "rbg"),
            (second, "threefry2x32"),
            (first, "threefry2x32"),
            (second, "rbg"),
        ]:
            with jax.default_prng_impl(generator):
                expected = [constant_noise(params[0], x) for x in instances]
                np.testing.assert_allclose(calls[call](), expected, rtol=1e-5)


def test_another_way_to_draw():
    """A recording that ran before the setting changed is traced again."""
    params, key = jnp.float32(2), jax.random.key(0)
    batched = eb.batch(gumbel_noise, params=params, sizes=SIZES)
    before = jax.config.jax_high_dynamic_range_gumbel
    results = []
    try:
        for setting in (False, True, False):
            jax.config.update("jax_high_dynamic_range_gumbel", setting)
            found = batched(params, [1.0, 2.0], rng=key)
            for k, x in enumerate([1.0, 2.0]):
                with eb.cell_keys(key, instance=k):
                    expected = gumbel_noise(params, x)
                np.testing.assert_allclose(found[k], expected, rtol=1e-5)
            results.append(np.asarray(found))
    finally:
        jax.config.update("jax_high_dynamic_range_gumbel", before)
    assert np.abs(results[0] - results[1]).max() > 0.1
