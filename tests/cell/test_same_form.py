"""Tests that types share a cell if they differ only in the parameters they read."""

import jax
import jax.numpy as jnp
import message_passing
import numpy as np
import pytest

import edbatch as eb
from edbatch.cell.same_form import form_of

H = 3
NAMES = ("a", "b", "c")


def new_params(seed=0):
    keys = jax.random.split(jax.random.key(seed), 2 * len(NAMES))
    return {
        name: {
            "weight": jax.random.normal(keys[2 * k], (H, H)),
            "bias": jax.random.normal(keys[2 * k + 1], (H,)),
        }
        for k, name in enumerate(NAMES)
    }


PARAMS = new_params()
INSTANCES = [np.float32([1, k, -k / 2]) for k in range(5)]


def forms(model, instances=INSTANCES, params=PARAMS):
    """For each type, the number of the first type of the same form."""
    batched = eb.batch(model, params=params)
    batched.record_all(instances)
    types = batched.types
    return [form_of(each, types).first.id for each in types.types]


def test_the_rounds_of_a_network_are_of_one_form():
    found = forms(
        message_passing.message_passing,
        message_passing.sample_molecules(0, 16),
        message_passing.make_params(4),
    )
    assert len(found) == message_passing.NUM_TYPES
    assert len(set(found)) == 7  # an embedding, five list lengths, a sum


calls = []


@eb.cell
def layer(params, x):
    calls.append(params)
    return jnp.tanh(x @ params["weight"] + params["bias"] * x)


def layers(params, x):
    for name in NAMES:
        x = layer(params[name], x)
    return x


@pytest.mark.parametrize("packing", ["auto", "never"])
@pytest.mark.parametrize("tier", ["fine", "coarse"])
def test_each_type_reads_its_own_parameters(packing, tier):
    assert len(set(forms(layers))) == 2  # the first layer reads an external input
    compiler = eb.Compiler(packing=packing, sharing="never")
    batched = eb.batch(layers, params=PARAMS, compiler=compiler)
    plan = batched.plan(INSTANCES).in_tier(tier)
    params = new_params(1)

    def loss(params):
        found = batched.apply(params, plan)
        return (found**2).sum(), found

    def expected(params):
        found = jnp.stack([layers(params, each) for each in INSTANCES])
        return (found**2).sum(), found

    slope, outputs = jax.jit(jax.grad(loss, has_aux=True))(params)
    own_slope, own_outputs = jax.grad(expected, has_aux=True)(params)
    np.testing.assert_allclose(outputs, own_outputs, rtol=1e-5)
    for one, two in zip(*map(jax.tree.leaves, (slope, own_slope)), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(batched(params, INSTANCES), own_outputs, rtol=1e-5)


def test_a_cell_is_traced_once_for_all_who_ask():
    batched = eb.batch(layers, params=PARAMS)
    calls.clear()
    batched.record_all(INSTANCES)
    assert len(calls) == 2, "one trace of each form"
    plan = batched.plan(INSTANCES)
    slope = jax.jit(jax.grad(lambda own: batched.apply(own, plan).sum()))
    jax.block_until_ready(slope(PARAMS))
    batched(PARAMS, INSTANCES)
    assert len(calls) == 2, "and nothing is traced later"


@eb.cell
def blend(one, two, x, factor=1.0):
    return (3.0 if factor is None else factor) * (x @ one["weight"]) + two["bias"]


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        (("a", "b", 1.0), ("b", "c", 1.0), True),
        (("a", "b", 1.0), ("a", "c", 1.0), True),
        (("a", "b", 1.0), ("b", "a", 1.0), False),  # another order of arrays
        (("a", "b", 1.0), ("b", "b", 1.0), False),  # the same part twice
        (("a", "b", 1.0), ("b", "c", 2.0), True),  # numbers are inputs
        (("a", "b", 1.0), ("b", "c", None), False),  # another call
    ],
)
def test_what_a_form_is(first, second, is_same):
    def model(params, x):
        return [
            blend(params[one], params[two], x, factor)
            for one, two, factor in (first, second)
        ]

    one, two = forms(model)
    assert (one == two) == is_same
    eb.verify(eb.batch(model, params=PARAMS), PARAMS, INSTANCES)


@jax.tree_util.register_pytree_node_class
class Restored:
    """A pytree node that is marked once it is rebuilt."""

    def __init__(self, value, mark="new"):
        self.value, self.mark = value, mark

    def tree_flatten(self):
        return (self.value,), self.mark

    @classmethod
    def tree_unflatten(cls, mark, values):
        return cls(*values, "restored")


def test_output_structures_are_those_of_eval_shape():
    """Recordings of other processes are compared with them."""

    @eb.cell
    def restored(params, x):
        return Restored(x * params)

    batched = eb.batch(lambda params, x: restored(params, x).value, params=2.0)
    types = batched.graph([1.0]).types
    [found] = types.types
    assert types.trace(found) == (found.output_kinds, found.output_tree)
