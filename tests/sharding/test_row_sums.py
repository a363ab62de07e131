"""Dense gradients of large tables, summed over devices as rows."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.errors import PlanError
from edbatch.sharding import collectives
from edbatch.sharding.row_sums import summed_as_rows

pytestmark = pytest.mark.devices

WORDS = 9999


@eb.cell
def leaf(params, word, mark):
    both = jnp.concatenate([params["word"][word], params["mark"][word % 2000]])
    return jnp.tanh(params["W"] @ both) + mark


@eb.cell
def pair(params, words, left):
    return left + params["word"][words].sum(0)[:5].astype(left.dtype)


@eb.cell
def join(params, left, right):
    return jnp.tanh(left - params["W"][:, :5] @ right)


def encode(params, tree):
    if isinstance(tree, int):
        state = leaf(params, np.int32(tree), np.float32(tree / WORDS))
        return pair(params, np.array([tree, -1 - tree], np.int32), state)
    return join(params, *(encode(params, child) for child in tree))


def random_tree(rng, depth):
    if depth == 0 or rng.random() < 0.2:
        return int(rng.integers(30))
    return random_tree(rng, depth - 1), random_tree(rng, depth - 1)


@pytest.fixture(autouse=True)
def small_limit(monkeypatch):
    monkeypatch.setattr(collectives, "MOST_BYTES", 2000)


def make_params(rng, dtype=np.float32):
    def array(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    word = array(WORDS, 6).astype(dtype)
    return {
        "word": word,
        "mark": array(2000, 3),
        "W": array(5, 9),
        "unread": array(700),
    }


def loss(params, plan, function):
    return (function.apply(params, plan) ** 2).sum()


def added_up(step, *arguments):
    """The number of array elements that the devices all-reduce."""
    text = jax.jit(step).lower(*arguments).compile().as_text()
    lines = [each for each in text.splitlines() if " all-reduce(" in each]
    shapes = [re.findall(r"[a-z]+\d+\[([\d,]*)\]", x.split("(%")[0]) for x in lines]
    return sum(
        math.prod(int(n) for n in shape.split(",") if n)
        for own in shapes
        for shape in own
    )


def close(found, expected, tolerance=2e-5):
    for own, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        assert own.dtype == other.dtype
        own, other = np.float32(own), np.float32(other)
        scale = max(1.0, float(np.abs(other).max()))
        np.testing.assert_allclose(own, other, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("count", [1, 2, 13])
def test_the_gradient_is_that_of_one_device(count):
    rng = np.random.default_rng(count)
    params = make_params(rng)
    batched = eb.batch(encode, params=params)
    sharded = batched.sharded()
    trees = [random_tree(rng, 3) for _ in range(count)]
    plan, whole = sharded.plan(trees), batched.plan(trees)
    names = [params[k] for k in sorted(params)]
    tables = [names[each.leaf].shape[0] for each in summed_as_rows(params, plan)]
    assert WORDS in tables
    step = jax.jit(jax.value_and_grad(lambda *own: loss(*own, sharded)))
    value, found = step(sharded.replicate(params), plan)
    expected = jax.value_and_grad(lambda *own: loss(*own, batched))(params, whole)
    np.testing.assert_allclose(value, expected[0], rtol=1e-5)
    close(found, expected[1])
    assert np.abs(found["word"]).max() > 0.1


def test_devices_do_not_add_up_arrays_of_the_size_of_the_table():
    params = make_params(np.random.default_rng(0))
    sharded = eb.batch(encode, params=params).sharded()
    plan = sharded.plan([((1, 2), 3), 4, (5, 6)])
    step = jax.grad(lambda *own: loss(*own, sharded))
    small = params["W"].size + params["unread"].size
    assert added_up(step, params, plan) <= small + 2


def test_many_lookups_are_added_up_as_an_array():
    rng = np.random.default_rng(0)
    params = make_params(rng)
    sharded = eb.batch(encode, params=params).sharded()
    plan = sharded.plan([int(k) for k in rng.integers(WORDS, size=9000)])
    assert summed_as_rows(params, plan) == ()
    step = jax.grad(lambda *own: loss(*own, sharded))
    assert added_up(step, params, plan) >= params["word"].size


def test_a_table_that_is_read_otherwise_too_is_added_up_as_an_array():
    @eb.cell
    def column(params, state):
        return state + params["word"][:, 0].sum()

    def model(params, tree):
        return column(params, encode(params, tree))

    rng = np.random.default_rng(0)
    params = make_params(rng)
    batched = eb.batch(model, params=params)
    sharded = batched.sharded()
    trees = [random_tree(rng, 3) for _ in range(5)]
    plan = sharded.plan(trees)
    leaves = jax.tree.leaves(params)
    shapes = [leaves[each.leaf].shape for each in summed_as_rows(params, plan)]
    assert (WORDS, 6) not in shapes
    found = jax.jit(jax.grad(lambda *own: loss(*own, sharded)))(params, plan)
    whole = batched.plan(trees)
    close(found, jax.grad(lambda *own: loss(*own, batched))(params, whole))


def test_derivatives_by_some_parameters_only():
    rng = np.random.default_rng(1)
    params = make_params(rng)
    batched = eb.batch(encode, params=params)
    sharded = batched.sharded()
    trees = [random_tree(rng, 3) for _ in range(6)]
    plan, whole = sharded.plan(trees), batched.plan(trees)
    for names in (["W"], ["word"], ["mark", "W"]):
        own = {name: params[name] for name in names}

        def part(own, function, plan):
            return loss(params | own, plan, function)

        found = jax.jit(lambda own, plan: jax.grad(part)(own, sharded, plan))(own, plan)
        close(found, jax.grad(part)(own, batched, whole))


def test_two_calls_in_one_loss_and_other_uses_of_the_table():
    rng = np.random.default_rng(2)
    params = make_params(rng)
    batched = eb.batch(encode, params=params)
    sharded = batched.sharded()
    trees = [[random_tree(rng, 3) for _ in range(n)] for n in (4, 7)]

    def both(params, plans, function):
        values = [loss(params, plan, function) for plan in plans]
        return values[0] * values[1] + (params["word"][:3] ** 2).sum()

    def gradient(function):
        plans = [function.plan(own) for own in trees]
        step = jax.jit(lambda *own: jax.grad(both)(*own, function))
        return step(params, plans)

    close(gradient(sharded), gradient(batched), 1e-4)


def test_a_table_in_half_precision():
    rng = np.random.default_rng(3)
    params = make_params(rng, jnp.bfloat16)
    batched = eb.batch(encode, params=params)
    sharded = batched.sharded()
    trees = [random_tree(rng, 3) for _ in range(6)]
    plan, whole = sharded.plan(trees), batched.plan(trees)
    found = jax.jit(jax.grad(lambda *own: loss(*own, sharded)))(params, plan)
    close(found, jax.grad(lambda *own: loss(*own, batched))(params, whole), 3e-2)


def test_direct_calls_outside_of_jit():
    rng = np.random.default_rng(4)
    params = make_params(rng)
    batched = eb.batch(encode, params=params)
    sharded = batched.sharded()
    trees = [random_tree(rng, 3) for _ in range(5)]

    def total(params, function):
        return (function(params, trees) ** 2).sum()

    close(jax.grad(total)(params, sharded), jax.grad(total)(params, batched))
    np.testing.assert_allclose(
        sharded(params, trees), batched(params, trees), rtol=1e-5, atol=1e-6
    )


def test_derivatives_by_inputs_of_the_model():
    rng = np.random.default_rng(5)
    params = make_params(rng)
    sharded = eb.batch(encode, params=params).sharded()
    trees = [random_tree(rng, 3) for _ in range(5)]
    plan = sharded.plan(trees)

    def scaled(scale, params):
        def scale_floats(each):
            floating = jnp.issubdtype(each.dtype, jnp.floating)
            return each * scale if floating else each

        moved = jax.tree.map(scale_floats, plan)
        return loss(params, moved, sharded)

    value = jax.jit(scaled)
    both = jax.jit(jax.grad(scaled, argnums=(0, 1)))(1.0, params)
    numeric = (value(1.1, params) - value(0.9, params)) / 0.2
    np.testing.assert_allclose(both[0], numeric, rtol=0.02)
    close(both[1], jax.jit(jax.grad(lambda own: loss(own, plan, sharded)))(params))


def test_a_second_derivative_is_refused():
    params = make_params(np.random.default_rng(6))
    sharded = eb.batch(encode, params=params).sharded()
    plan = sharded.plan([(1, 2), 3])

    def gradient_norm(params):
        found = jax.grad(loss)(params, plan, sharded)
        return (found["word"] ** 2).sum()

    with pytest.raises(PlanError, match="derivative of its gradient"):
        jax.jit(jax.grad(gradient_norm))(params)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_a_sum_of_many_terms_goes_on_in_half_precision(dtype):
    """Adding 1 to 256 in bfloat16, or to 2,048 in float16, would change nothing."""

    @eb.cell
    def look_up(params, word):
        return params["word"][word].astype(jnp.float32)

    params = {"word": jnp.zeros((WORDS, 4), dtype)}
    sharded = eb.batch(look_up, params=params).sharded()
    plan = sharded.plan([5] * 3000)
    assert len(summed_as_rows(params, plan)) == 1
    grad = jax.grad(lambda own: sharded.apply(own, plan).sum())(params)["word"]
    expected = np.zeros((WORDS, 4))
    expected[5] = jnp.asarray(3000, dtype)
    np.testing.assert_array_equal(grad.astype(jnp.float32), expected)
