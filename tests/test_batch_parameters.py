"""Tests gradients of batched functions, and the kinds of parameters they accept."""

from collections import OrderedDict
from dataclasses import replace

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from trees import (
    assert_equal,
    encode,
    make_params,
    sample_trees,
)

import edbatch as eb

pytestmark = pytest.mark.default_flags

SIZES = eb.Sizes(widths=(4, 16))


def test_gradients_under_jit():
    params, trees = make_params(), sample_trees(4, 3)
    batched = eb.batch(encode, sizes=SIZES)

    def loss(params, plan):
        hidden, cell = batched.apply(params, plan)
        return (hidden**2).sum() + cell.sum()

    plan = batched.bind(params).plan(trees)
    value, grads = jax.jit(jax.value_and_grad(loss))(params, plan)

    def reference(params):
        states = [encode(params, each) for each in trees]
        return sum((h**2).sum() + c.sum() for h, c in states)

    assert_equal((value, grads), jax.value_and_grad(reference)(params))


def test_gradients_with_respect_to_external_inputs():
    @eb.cell
    def scale(params, x):
        return params * x

    def model(params, x):
        return scale(params, x)

    batched = eb.batch(model, params=jnp.float32(2.0))
    plan = batched.plan([np.float32([1, 2]), np.float32([3, 4])])
    grads = jax.grad(
        lambda plan: batched.apply(jnp.float32(2.0), plan).sum(), allow_int=True
    )(plan)
    (pool,) = grads.pools.values()
    assert pool[1:3].tolist() == [[2, 2], [2, 2]]


def test_integer_external_inputs_have_no_gradient():
    batched = eb.batch(encode, params=make_params(), sizes=SIZES)
    plan = batched.plan([(1, 2)])

    def total(pools):
        return batched.apply(make_params(), replace(plan, pools=pools))[0].sum()

    with pytest.raises(TypeError, match="requires real- or complex-valued inputs"):
        jax.grad(total)(plan.pools)


def test_parameters_may_be_an_nnx_module():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.table = nnx.Embed(10, 3, rngs=rngs)
            self.layers = nnx.List([nnx.Linear(3, 3, rngs=rngs) for _ in range(2)])
            self.depth = 2

    @eb.cell
    def look(table, word):
        return table(word)

    @eb.cell
    def dense(layer, x):
        return jnp.tanh(layer(x))

    def model(params, words):
        states = [look(params.table, word) for word in words]
        for k in range(params.depth):
            states = [dense(params.layers[k], each) for each in states]
        return states

    module = Model(nnx.Rngs(0))
    batched = eb.batch(model, sizes=SIZES)
    found = eb.verify(batched, module, [[1, 2, 3], [4]])
    assert found.outputs == 12 and found.max_gradient_error is not None
    assert [str(each.key) for each in batched.types.types] == [
        "look@table/0",
        "dense@layers.0/1",
        "dense@layers.1/1",
    ]


def test_parameters_may_be_linen_variables():
    module = nn.Dense(3)

    @eb.cell
    def dense(variables, x):
        return jnp.tanh(module.apply(variables, x))

    def model(variables, count):
        x = source(variables)
        for _ in range(count):
            x = dense(variables, x)
        return x

    @eb.cell
    def source(variables):
        return variables["params"]["bias"] + 1

    variables = module.init(jax.random.key(0), jnp.ones(3))
    eb.verify(eb.batch(model, sizes=SIZES), variables, [1, 2, 5])


def test_parameters_may_be_any_pytree_class():
    @jax.tree_util.register_pytree_node_class
    class Scale:
        def __init__(self, gain):
            self.gain = gain

        def tree_flatten(self):
            return (self.gain,), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

    @eb.cell
    def scale(module, x):
        return module.gain * x

    def model(module, x):
        return scale(module, scale(module, x))

    eb.verify(eb.batch(model, sizes=SIZES), Scale(jnp.float32(3)), [1.0, 2.0])


def test_parameters_of_other_shapes_get_their_own_program():
    batched = eb.batch(encode, sizes=SIZES)
    trees = sample_trees(5, 3)
    for hidden in (3, 5, 3):
        eb.verify(batched, make_params(hidden), trees, gradients=False)
    assert batched.compiles == 2


def test_python_numbers_are_strong_arrays_in_both_ways_of_running():
    @eb.cell
    def scale(params, x):
        return params["half"] * x

    def model(params, x):
        return scale(params, x)

    params = {"half": jnp.bfloat16(0.5)}
    assert model(params, 3.0).dtype == jnp.float32
    assert eb.batch(model, sizes=SIZES)(params, [3.0]).dtype == jnp.float32


@pytest.mark.parametrize(
    "other",
    [
        lambda params: {"layers": tuple(params["layers"]), "none": {}},
        lambda params: OrderedDict(params),
        lambda params: {**params, "more": ()},
        lambda params: flax.core.freeze(params),
    ],
)
def test_containers_of_another_type_run_the_same_plan(other):
    @eb.cell
    def scale(layer, x):
        return layer * x

    def model(params, x):
        return scale(params["layers"][0], x)

    params = {"layers": [jnp.float32(2)], "none": None}
    batched = eb.batch(model, params=params)
    plan = batched.plan([3.0])
    assert batched.apply(other(params), plan) == 6
    with pytest.raises(eb.PlanError, match="another structure: they differ in params"):
        batched.apply({"layers": {"0": params["layers"][0]}, "none": None}, plan)
