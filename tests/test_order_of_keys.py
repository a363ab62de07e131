"""Tests models that iterate over a dict of the parameters, whose keys JAX sorts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb

pytestmark = pytest.mark.usefixtures("quick_compiles")


@eb.cell
def layer(weights, state):
    return jnp.tanh(weights @ state)


def all_layers(params, state):
    for weights in params["layers"].values():
        state = layer(weights, state)
    return state


def make_params(names):
    rng = np.random.default_rng(0)
    layers = {each: jnp.asarray(rng.normal(size=(3, 3)), jnp.float32) for each in names}
    return {"layers": layers}


VECTORS = list(np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32))


def sharded(model, **options):
    return eb.batch(model, **options).sharded()


@pytest.fixture(params=[eb.batch, sharded])
def batch(request):
    return request.param


def test_a_plan_for_keys_in_another_order_is_refused(batch):
    """Otherwise training would run the layers in another order than the model does."""
    params = make_params(["second", "first"])
    batched = batch(all_layers, params=params)
    plan = batched.plan(VECTORS)
    found = batched.apply(params, plan)
    expected = np.stack([all_layers(params, each) for each in VECTORS])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)

    def loss(params):
        return batched.apply(params, plan).sum()

    as_jax_does = jax.tree.map(lambda leaf: leaf, params)
    for function in (loss, jax.jit(loss), jax.grad(loss)):
        given = as_jax_does if function is loss else params
        with pytest.raises(eb.PlanError, match=r"keys of params\['layers'\].*sorted"):
            function(given)


def test_a_training_of_sorted_parameters_is_that_of_the_model(batch):
    params = jax.tree.map(lambda leaf: leaf, make_params(["second", "first"]))
    batched = batch(all_layers, params=params)
    plan = batched.plan(VECTORS)

    def of_plan(params):
        return (batched.apply(params, plan) ** 2).sum()

    def of_model(params):
        return sum((all_layers(params, each) ** 2).sum() for each in VECTORS)

    one = other = params
    for _ in range(5):
        one, other = (
            jax.tree.map(lambda p, g: p - 0.1 * g, own, jax.grad(loss)(own))
            for own, loss in ((one, of_plan), (other, of_model))
        )
    np.testing.assert_allclose(of_plan(one), of_model(one), rtol=1e-5)
    np.testing.assert_allclose(of_plan(one), of_model(other), rtol=1e-4)


def test_verify_sorts_the_keys(batch):
    eb.verify(batch(all_layers), make_params(["second", "first"]), VECTORS)
    bound = make_params(["second", "first"])
    eb.verify(batch(all_layers, params=bound), bound, VECTORS)


def test_other_keys_are_another_structure():
    batched = eb.batch(all_layers)
    plan = batched.plan(VECTORS, params=make_params(["a", "b"]))
    with pytest.raises(eb.PlanError, match="another structure"):
        batched.apply(make_params(["a", "c"]), plan)
