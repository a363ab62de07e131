"""Comparing traces of a function considers operations and constants, not names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from edbatch.cell.jaxpr import (
    body_of,
    changeable_constants,
    same_operations,
    trace,
)

X = jax.ShapeDtypeStruct((3, 3), np.float32)
ONE = np.ones((3, 3), np.float32)
KEY = jax.random.key(0)


def traced(function, *specs):
    return trace(function, *(specs or (X,)))[0]


def scaled(scale):
    return lambda x: x * scale


def looped(step):
    return lambda x: jax.lax.scan(lambda x, _: (step(x), None), x, None, length=2)[0]


def chosen(step):
    return lambda x: jax.lax.cond(x[0, 0] > 0, step, lambda x: x, x)


def ruled(step):
    function = jax.custom_jvp(step)
    function.defjvps(lambda tangent, _, x: tangent)
    return function


DIFFERENT = {
    "a number": (scaled(2.0), scaled(3.0)),
    "a sign of zero": (scaled(0.0), scaled(-0.0)),
    "an operation": (jnp.sin, jnp.cos),
    "one more": (jnp.sin, lambda x: jnp.sin(jnp.sin(x))),
    "an array of NumPy": (scaled(ONE), scaled(2 * ONE)),
    "an array of JAX": (scaled(jnp.ones((3, 3))), scaled(jnp.zeros((3, 3)))),
    "a key": (
        lambda x: x + jax.random.normal(KEY, (3, 3)),
        lambda x: x + jax.random.normal(jax.random.key(1), (3, 3)),
    ),
    "the order of operands": (lambda x: x[0] - x[1], lambda x: x[1] - x[0]),
    "an operand": (lambda x: jnp.sin(x) * x, lambda x: jnp.sin(x) * jnp.sin(x)),
    "a result": (lambda x: (x, jnp.sin(x)), lambda x: (jnp.sin(x), x)),
    "a parameter": (lambda x: x.sum(0), lambda x: x.sum(1)),
    "a dtype": (
        lambda x: x.astype(np.float16).sum(),
        lambda x: x.astype(jnp.bfloat16).sum(),
    ),
    "a precision": (
        lambda x: jnp.dot(x, x, precision=None),
        lambda x: jnp.dot(x, x, precision="highest"),
    ),
    "another precision": (
        lambda x: jnp.dot(x, x, precision="high"),
        lambda x: jnp.dot(x, x, precision="highest"),
    ),
    "a mode": (
        lambda x: x.at[jnp.array([5])].get(mode="clip"),
        lambda x: x.at[jnp.array([5])].get(mode="fill"),
    ),
    "a number in a parameter": (
        lambda x: jax.lax.reduce_precision(x, 8, 7),
        lambda x: jax.lax.reduce_precision(x, 8, 8),
    ),
    "in a function": (jax.jit(scaled(2.0)), jax.jit(scaled(3.0))),
    "in a loop": (looped(scaled(2.0)), looped(scaled(3.0))),
    "in a branch": (chosen(scaled(2.0)), chosen(scaled(3.0))),
    "below a rule": (ruled(scaled(2.0)), ruled(scaled(3.0))),
    "in a slope": (
        jax.grad(lambda x: (2 * jnp.sin(x)).sum()),
        jax.grad(lambda x: (3 * jnp.sin(x)).sum()),
    ),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_what_differs_is_found(one, other):
    first, second = traced(one), traced(other)
    assert not same_operations(first, second)
    assert not same_operations(second, first)
    for each in (one, other):

        def again(x, each=each):
            return each(x)

        assert same_operations(traced(each), traced(again))


def test_shapes_of_arguments_differ():
    wide = jax.ShapeDtypeStruct((3, 4), np.float32)
    whole = jax.ShapeDtypeStruct((3, 3), np.int32)
    for other in (wide, whole):
        assert not same_operations(traced(jnp.sin), traced(jnp.sin, other))


def test_numbers_that_are_none_are_the_same():
    assert same_operations(traced(scaled(np.nan)), traced(scaled(np.nan)))


def test_settings_of_an_operation():
    def draw(x):
        return x + jax.random.normal(KEY, (3, 3))

    with jax.threefry_partitionable(False):
        before = traced(lambda x: draw(x))
    assert not same_operations(traced(lambda x: draw(x)), before)


def test_structures_of_arguments_of_callbacks():
    def calling():
        def function(x):
            jax.debug.callback(lambda **parts: None, one=x, two=x)
            jax.debug.print("{x}", x=x)
            return jax.scipy.linalg.solve(x, x)

        return function

    assert same_operations(traced(calling()), traced(calling()))


def test_callbacks_say_nothing():
    def calling():
        return lambda x: jax.pure_callback(lambda x: x, X, x)

    assert same_operations(traced(calling()), traced(calling()))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, looped])
def test_arrays_of_numpy_may_change_in_place(wrap):
    array = np.ones((3, 3), np.float32)
    body = body_of(jax.make_jaxpr(wrap(scaled(array)))(X))
    before = changeable_constants(body)
    assert changeable_constants(body) == before
    array[1, 1] = 2
    assert changeable_constants(body) != before


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((3, 0), np.float32),
        np.array(True),
        np.asfortranarray(np.arange(9.0).reshape(3, 3)),
        jnp.ones(3, jnp.bfloat16),
    ],
    ids=["empty", "scalar", "order of Fortran", "bfloat16"],
)
def test_constants_of_all_kinds(array):
    def function(x):
        return x.sum() + jnp.asarray(array).astype(np.float32).sum()

    body = traced(function)
    assert changeable_constants(body) == changeable_constants(traced(function))
    assert same_operations(body, traced(lambda x: function(x)))
