"""Traced functions keep the values that NumPy arrays had when they were traced."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from edbatch.cell.jaxpr import (
    as_function,
    body_of,
    inner_bodies,
    trace,
    with_own_constants,
)

X = jnp.arange(3.0)
READS = {
    "itself": lambda x, c: x * c,
    "as a result": lambda x, c: (x, c),
    "by jnp": lambda x, c: jnp.asarray(c) + x,
    "a function of jax.jit": lambda x, c: jax.jit(lambda y: y + c)(x),
    "one in one": lambda x, c: jax.jit(lambda y: jax.jit(lambda z: z * c)(y))(x),
    "a branch": lambda x, c: jax.lax.cond(x[0] > 1, lambda y: y, lambda y: y - c, x),
    "a loop": lambda x, c: jax.lax.fori_loop(0, 3, lambda _, y: y * c, x),
    "a scan": lambda x, c: jax.lax.scan(lambda y, _: (y + c, y), x, length=2),
    "a branch in a loop": lambda x, c: jax.lax.fori_loop(
        0, 3, lambda k, y: jax.lax.cond(k > 1, lambda z: z * c, lambda z: z, y), x
    ),
    "a checkpoint": lambda x, c: jax.checkpoint(lambda y: jnp.sin(y) * c)(x),
}


@pytest.mark.parametrize("constant", [[2.0, 3.0, 5.0], 7.0], ids=["array", "0-d"])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_change_in_place_is_not_seen(read, constant):
    own = np.array(constant, np.float32)
    body, _ = trace(lambda x: read(x, own), X)
    expected = jax.tree.leaves(read(X, own.copy()))
    own[...] = 99
    run = as_function(body.inputs, body.equations, body.outputs, body.constants)
    for one, other in zip(run(X), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_functions_without_such_arrays_stay_the_same():
    there = jnp.ones(3)
    inner = jax.jit(lambda x: jnp.sin(x) * there)
    traced = jax.make_jaxpr(lambda x: jax.lax.cond(x[0] > x[1], inner, inner, x))(X)
    assert with_own_constants(traced) is traced


def test_an_array_that_is_read_twice_is_copied_once():
    own = np.ones(3, np.float32)
    body, _ = trace(lambda x: (x + own) * own, X)
    assert len(body.constants) == 1


def test_traces_of_one_array_share_its_copy():
    own = np.arange(3, dtype=np.float32)

    def copied():
        [found] = trace(lambda x: x + own, X)[0].constants.values()
        assert not np.shares_memory(found, own)
        with pytest.raises(ValueError, match="read-only"):
            found[0] = 1
        return found

    first, second = copied(), copied()
    assert first is second
    own[0] = 5
    third = copied()
    assert (first[0], third[0]) == (0, 5)
    assert copied() is third


def test_copies_are_let_go():
    own = np.arange(3, dtype=np.float32)
    body = trace(lambda x: x + own, X)[0]
    [copy] = map(weakref.ref, body.constants.values())
    del body
    gc.collect()
    assert copy() is None


def test_weak_types_stay():
    own = np.ones(3, np.float32)
    inner = jax.jit(lambda x, y: (x * own, y * 2.0))

    def types_of(jaxpr):
        return [
            (str(each.aval), each.aval.weak_type)
            for eqn in body_of(jaxpr).equations
            for inner in inner_bodies(eqn)
            for each_eqn in inner.equations
            for each in (*each_eqn.invars, *each_eqn.outvars)
        ]

    traced = jax.make_jaxpr(inner)(X, 2.0)
    assert {is_weak for _, is_weak in types_of(traced)} == {False, True}
    assert types_of(with_own_constants(traced)) == types_of(traced)


@pytest.mark.parametrize("shape", [(3,), (4, 400_000), (3, 2, 700_000), (0, 3), (2, 0)])
def test_a_copy_is_taken_again_only_if_all_bytes_are_the_same(shape):
    own = np.zeros(shape, np.float32)

    def copied():
        [found] = trace(lambda x: x + own.sum() * 0 + jnp.asarray(own).sum(), X)[
            0
        ].constants.values()
        return found

    first = copied()
    assert copied() is first
    if own.size:
        own.reshape(-1)[-1] = -0.0
        assert copied() is not first


def test_a_cell_made_of_traced_ones_copies_nothing():
    own = np.arange(3, dtype=np.float32)
    body, _ = trace(lambda x: x + own, X)
    [copy] = body.constants.values()
    run = as_function(body.inputs, body.equations, body.outputs, body.constants)
    again, _ = trace(lambda x: run(x * 2), X)
    [found] = again.constants.values()
    assert np.shares_memory(found, copy)
