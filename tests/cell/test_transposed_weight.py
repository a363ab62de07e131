from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.cell.transposed_weight import transposed_weight
from edbatch.target import CPU, GPU

PRODUCTS = {
    "matrix, vector": (lambda m, x: m @ x, (3, 4), (4,)),
    "vector, matrix": (lambda m, x: x @ m, (4, 3), (4,)),
    "matrix, matrix": (lambda m, x: m @ x, (3, 4), (4, 5)),
    "the other way": (lambda m, x: x @ m, (4, 3), (5, 4)),
    "two axes": (lambda m, x: jnp.einsum("abc,cdb->ad", m, x), (2, 3, 4), (4, 5, 3)),
    "last axes": (lambda m, x: jnp.einsum("cdb,abc->da", x, m), (2, 3, 4), (4, 5, 3)),
    "outer": (lambda m, x: jnp.tensordot(m, x, 0), (2, 3), (4,)),
    "all axes": (lambda m, x: jnp.vdot(m, x), (4,), (4,)),
}  # fmt: skip


def product(function, matrix, row):
    closed = jax.make_jaxpr(function)(matrix, row)
    [eqn] = [each for each in closed.eqns if each.primitive is jax.lax.dot_general_p]
    return eqn, closed.jaxpr.invars


@pytest.mark.parametrize("name", PRODUCTS)
def test_it_pulls_as_jax_does(name):
    function, *shapes = PRODUCTS[name]
    rng = np.random.default_rng(0)
    matrix, row = (jnp.asarray(rng.normal(size=each), jnp.float32) for each in shapes)
    # Only the product; other equations come before and after it.
    outer, _ = product(function, matrix, row)

    def multiply(matrix, row):
        return outer.primitive.bind(
            *((matrix, row) if first else (row, matrix)), **outer.params
        )

    first = outer.invars[0].aval.shape == matrix.shape
    eqn, [_, of_row] = product(multiply, matrix, row)
    found = transposed_weight(eqn, {of_row})
    given, pull = jax.vjp(lambda row: multiply(matrix, row), row)
    bar = jnp.asarray(rng.normal(size=given.shape), jnp.float32)
    np.testing.assert_allclose(
        found.pull(found.transpose(matrix), bar), pull(bar)[0], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("weight_is_first", [True, False])
def test_each_operand_keeps_its_precision(weight_is_first):
    """The cotangent has the precision of the batch row's array."""
    high, low = jax.lax.Precision.HIGHEST, jax.lax.Precision.DEFAULT

    def multiply(matrix, row):
        if weight_is_first:
            return jax.lax.dot(matrix, row, precision=(high, low))
        return jax.lax.dot(row, matrix, precision=(low, high))

    eqn, [_, of_row] = product(multiply, jnp.ones((4, 4)), jnp.ones(4))
    assert transposed_weight(eqn, {of_row}).precision == (low, high)


def elementwise(matrix, row):
    return jax.lax.dot_general(matrix, row, (([], []), ([0], [0])))


def converting(matrix, row):
    return jax.lax.dot_general(matrix, row.astype(jnp.bfloat16), (([0], [0]), ([], [])))


@pytest.mark.parametrize("function", [elementwise, converting, jnp.add])
def test_other_equations_are_left_to_jax(function):
    closed = jax.make_jaxpr(function)(jnp.ones(4), jnp.ones(4))
    eqn = closed.eqns[-1]
    assert transposed_weight(eqn, {eqn.invars[1]}) is None


def test_products_of_two_arrays_of_the_lane_are_left_to_jax():
    eqn, [own, other] = product(jnp.dot, jnp.ones((4, 4)), jnp.ones(4))
    assert transposed_weight(eqn, {own, other}) is None
    assert transposed_weight(eqn, {other}).weight is own


@eb.cell
def leaf(params, word):
    return params["table"][word]


@eb.cell
def step(params, state):
    return jnp.tanh(state @ params["w"])


def chain(params, word):
    return step(params, step(params, leaf(params, word)))


def count_by_columns(params, target):
    """Number of the gradient's products that contract the columns of their matrix."""
    batched = eb.batch(chain, "depth", params=params)
    plan = batched.plan([0, 1, 2]).on(target)
    gradient = jax.jit(jax.grad(lambda params: batched.apply(params, plan).sum()))
    return gradient.lower(params).as_text().count("contracting_dims = [1] x [1]")


def test_chunks_need_not_turn_small_matrices():
    params = {"table": jnp.ones((3, 8)), "w": jnp.eye(8)}
    large = {"table": jnp.ones((3, 1024)), "w": jnp.eye(1024)}
    assert count_by_columns(params, CPU) == 0 < count_by_columns(large, CPU)
    assert count_by_columns(params, GPU) > 0
    assert count_by_columns(large, replace(GPU, pretransposed_bytes=2**22)) == 0
