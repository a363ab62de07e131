"""Tests direct calls on packed parameters by programs that another process lowered.

A second function of the same model stands for the second process.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trees import assert_equal, encode, make_params, sample_trees

import edbatch as eb
from edbatch.stored_programs.folder import Folder

SIZES = eb.Sizes(widths=(8,))
TREES = sample_trees(0, 5)


def new_function(model=encode, params=None, **options):
    params = make_params() if params is None else params
    return eb.batch(model, params=params, sizes=SIZES, **options)


@pytest.mark.parametrize("seed", range(3))
def test_the_second_process_traces_no_program(folder, made, seed):
    params, trees = make_params(seed=seed), sample_trees(seed, 5)
    new_function()(make_params(seed=9), trees)
    assert made == ["execute_packed"]
    found = new_function()(params, trees)
    assert_equal(list(found[0]), [encode(params, each)[0] for each in trees])
    assert made == ["execute_packed"], "it is read"


@eb.cell
def expert(weights, x):
    return jnp.tanh(weights @ x)


def mixture(params, instance):
    k, x = instance
    return expert(params[k], x), x


def test_stacked_parameters_and_results_that_are_inputs(folder, made):
    rng = np.random.default_rng(0)
    params = [jnp.asarray(each) for each in rng.normal(size=(6, 4, 4)).astype("f4")]
    data = [(k % 6, rng.normal(size=4).astype("f4")) for k in range(20)]
    for _ in range(2):
        values, inputs = new_function(mixture, params)(params, data)
        expected = [np.tanh(params[k] @ x) for k, x in data]
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(inputs, [x for _, x in data])
    assert made == ["execute_packed"]


@eb.cell
def noisy(params, x, rng=None):
    return x if rng is None else x * params["w"] + jax.random.normal(rng, x.shape)


def test_random_numbers(folder, made, monkeypatch):
    params, found = {"w": jnp.float32(2)}, []
    for keep in (True, True, False):
        if not keep:
            monkeypatch.setattr(Folder, "path", None)
        batched, data = new_function(noisy, params), [jnp.ones(3), jnp.zeros(3)]
        found.append(
            [batched(params, data), batched(params, data, rng=jax.random.key(3))]
        )
    assert_equal(found[0], found[2])
    assert_equal(found[1], found[2])
    assert made == ["execute_packed"] * 2, "with keys and without"


def test_a_direct_call_and_a_compiled_one_have_programs_of_their_own(folder, made):
    batched = new_function()
    params, plan = make_params(), batched.plan(TREES)
    assert_equal(batched(params, TREES), jax.jit(batched.apply)(params, plan))
    assert made == ["execute_packed", "execute"]


def test_a_gradient_of_a_direct_call(folder):
    def loss(params, batched):
        return jnp.sin(batched(params, TREES)[0]).sum()

    def expected(params):
        return sum(jnp.sin(encode(params, each)[0]).sum() for each in TREES)

    params = make_params()
    slopes = jax.grad(expected)(params)
    for _ in range(2):
        found = jax.grad(loss)(params, new_function())
        for one, other in zip(*map(jax.tree.leaves, (found, slopes)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
