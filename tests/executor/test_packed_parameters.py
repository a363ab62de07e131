"""Tests the cache of packed parameters: it never returns those of other parameters."""

import gc
import threading
import weakref
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.errors import PlanError
from edbatch.executor.packed_parameters import PackedParameters

H = 4


@eb.cell
def leaf(params, word):
    return jnp.tanh(params["leaf"][word])


@eb.cell
def join(params, left, right):
    gate = jax.nn.sigmoid(left @ params["U"] + right @ params["V"])
    return gate * jnp.tanh(left @ params["W"] + right @ params["W"])


@eb.cell
def noisy(params, x, rng=None):
    if rng is None:
        return x @ params["W"]
    return x @ params["W"] + jax.random.normal(rng, x.shape)


def encode(params, tree):
    if isinstance(tree, int):
        return leaf(params, tree)
    return join(params, *(encode(params, child) for child in tree))


def encode_noisily(params, tree):
    return noisy(params, encode(params, tree))


TREES = [((0, 1), 2), (1, 1), ((2, 0), (1, (0, 0))), 2]


def new_params(seed=0):
    keys = jax.random.split(jax.random.key(seed), 4)
    return {
        name: jax.random.normal(key, (H, H))
        for name, key in zip(("leaf", "U", "V", "W"), keys, strict=True)
    }


def one_by_one(params, model=encode):
    return jnp.stack([model(params, tree) for tree in TREES])


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.fixture
def packed():
    return PackedParameters()


@pytest.fixture(scope="module")
def program():
    batched = eb.batch(encode, params=new_params())
    return batched.plan(TREES).shape.program


def test_the_same_parameters_are_packed_once(packed, program):
    params = new_params()
    first = packed.of(params, program)
    again = packed.of({**params}, program)
    assert len(jax.tree.leaves(first)) > 1
    assert all(map(lambda a, b: a is b, *map(jax.tree.leaves, (first, again))))


def test_they_are_what_the_program_makes_of_them(packed, program):
    params = new_params()
    found, expected = packed.of(params, program), program.pack(params)
    assert found.keys() == expected.keys()
    for own, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_array_equal(own, other)


def test_they_go_with_the_parameters(packed, program):
    params = new_params()
    merged = max(jax.tree.leaves(packed.of(params, program)), key=lambda x: x.size)
    assert all(merged is not each for each in params.values())
    alive = weakref.ref(merged)
    del merged
    gc.collect()
    assert alive() is not None
    del params
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    "change",
    [
        lambda params: jax.tree.map(np.asarray, params),
        lambda params: params | {"U": np.asarray(params["U"])},
    ],
)
def test_arrays_that_can_change_are_not_kept(packed, program, change):
    assert packed.of(new_params(), program) is not None
    assert packed.of(change(new_params()), program) is None


def test_parameters_that_change_in_place():
    batched = eb.batch(encode)
    params = jax.tree.map(np.array, new_params())
    assert_close(batched(params, TREES), one_by_one(params))
    params["U"] *= -2
    assert_close(batched(params, TREES), one_by_one(params))


def test_other_parameters_give_other_results():
    batched = eb.batch(encode)
    one, other = new_params(1), new_params(2)
    for params in (one, other, one, one | {"U": other["U"]}, one):
        assert_close(batched(params, TREES), one_by_one(params))


def test_an_array_in_the_place_of_one_that_was_dropped():
    batched = eb.batch(encode)
    for seed in range(20):
        params = new_params(seed)
        assert_close(batched(params, TREES), one_by_one(params))
        del params


def test_the_same_arrays_under_other_names():
    batched = eb.batch(encode)
    params = new_params()
    swapped = params | {"U": params["V"], "V": params["U"]}
    for each in (params, swapped, params):
        assert_close(batched(each, TREES), one_by_one(each))


def test_deleted_parameters_are_refused():
    batched = eb.batch(encode)
    params = new_params()
    plan = batched.bind(params).plan(TREES)
    batched.apply(params, plan)
    params["U"].delete()
    with pytest.raises(RuntimeError, match="deleted"):
        batched.apply(params, plan)


def test_parameters_of_other_shapes_are_refused():
    batched = eb.batch(encode)
    plan = batched.bind(new_params()).plan(TREES)
    wide = jax.tree.map(lambda x: jnp.tile(x, 2), new_params())
    for _ in range(2):
        with pytest.raises(PlanError, match="plan was made for float32"):
            batched.apply(wide, plan)


def test_traced_parameters_have_gradients_as_ever():
    batched = eb.batch(encode)
    params = new_params()
    plan = batched.bind(params).plan(TREES)
    batched.apply(params, plan)
    found = jax.grad(lambda p: batched.apply(p, plan).sum())(params)
    expected = jax.grad(lambda p: one_by_one(p).sum())(params)
    for name in params:
        assert_close(found[name], expected[name])
    assert_close(jax.jit(batched.apply)(params, plan), batched.apply(params, plan))


def test_constant_parameters_inside_a_traced_function():
    batched = eb.batch(encode)
    params = new_params()
    plan = batched.bind(params).plan(TREES)
    expected = one_by_one(params)
    assert_close(jax.jit(lambda: batched.apply(params, plan))(), expected)
    assert_close(batched.apply(params, plan), expected)  # no tracer leaked
    assert_close(jax.jit(lambda: batched.apply(params, plan))(), expected)
    assert_close(jax.jit(lambda each: batched.apply(params, each))(plan), expected)


@eb.cell
def scale(params, x):
    return jnp.tanh(x @ params["W"])


def test_gradients_of_inputs_beside_constant_parameters():
    batched = eb.batch(scale)
    params = new_params()
    inputs = [jnp.arange(H) / (k + 1.0) for k in range(3)]
    plan = batched.bind(params).plan(inputs)
    batched.apply(params, plan)  # caches the packed parameters

    def loss(pools):
        return batched.apply(params, replace(plan, pools=pools)).sum()

    floats = {kind: jnp.asarray(pool) for kind, pool in plan.pools.items()}
    [found] = jax.grad(loss)(floats).values()
    expected = jax.grad(lambda xs: sum(scale(params, x).sum() for x in xs))(inputs)
    assert_close(found[1:4], jnp.stack(expected))


def test_one_program_serves_all_parameters():
    batched = eb.batch(encode)
    for seed in range(3):
        batched(new_params(seed), TREES)
    assert batched.compiles == 1


@pytest.mark.parametrize("key", [None, jax.random.key(3)])
def test_cells_with_and_without_their_keys(key):
    batched = eb.batch(encode_noisily)
    params = new_params()
    plan = batched.bind(params).plan(TREES)
    for rng in (key, None, key):
        expected = jax.jit(batched.apply)(params, plan, rng=rng)
        assert_close(batched.apply(params, plan, rng=rng), expected)
    assert_close(batched.apply(params, plan), one_by_one(params, encode_noisily))


def test_threads_with_parameters_of_their_own():
    batched = eb.batch(encode, params=new_params())
    plan = batched.plan(TREES)
    batched.apply(new_params(), plan)
    wrong = []

    def run(seed):
        params = new_params(seed)
        expected = one_by_one(params)
        for _ in range(50):
            if not np.allclose(batched.apply(params, plan), expected, atol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_packing_is_reported_and_can_be_refused():
    batched = eb.batch(encode)
    params = new_params()
    with eb.use_tiers("fine"):
        batched(params, TREES)
        names = [each.function for each in eb.compile_report()][-2:]
        assert sorted(names) == ["encode", "packed parameters"]
        wider = {name: jnp.tile(each, (2, 2)) for name, each in params.items()}
        with (
            eb.set_stance("fail_on_compile"),
            pytest.raises(eb.CompilationError, match="call of packed parameters"),
        ):
            batched(wider, TREES)
        batched.warm_up(TREES, params=wider)
        with eb.set_stance("fail_on_compile"):
            batched(wider, TREES)
