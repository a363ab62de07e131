"""Tests that unbatched and batched cells give the same results for any arguments."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.graph.context import jitted_cells

pytestmark = pytest.mark.usefixtures("quick_compiles")

TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)


@eb.cell
def floor_divide(params, x, by):
    return x // by


@eb.cell
def divide(params, x, by):
    return x / by


@eb.cell
def scaled_sum(params, x):
    return (x * x).sum()


@eb.cell
def row(params, index):
    return params[index]


@eb.cell
def shift(params, x):
    return (x << 9) + x


@eb.cell(padded=("items",))
def average(params, items, mask):
    return jnp.where(mask, items, 0).sum() // mask.sum()


CALLS = {
    "integers": (floor_divide, (7, 0)),
    "scalars of NumPy": (floor_divide, (np.int32(-7), np.int32(0))),
    "float by zero": (divide, (1.0, 0.0)),
    "float64": (scaled_sum, (np.full(4, 0.1, np.float64),)),
    "promotion of floats": (divide, (np.float16(1), np.int32(3))),
    "promotion of integers": (floor_divide, (np.uint32(7), np.int32(2))),
    "float16": (scaled_sum, (np.full(70_000, 1.0, np.float16),)),
    "beyond the end": (row, (7,)),
    "below zero": (row, (-6,)),
    "small integers": (shift, (np.uint8(3),)),
    "booleans": (scaled_sum, (np.array([True, True]),)),
    "a padded list": (average, ([7, 8, 9],)),
}


def ways(model):
    """Runs a model on one instance: as it is, and batched."""
    return model, lambda params, x: eb.batch(model)(params, [x])


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("params", [TABLE, jnp.asarray(TABLE)], ids=["numpy", "jax"])
def test_numbers_and_arrays_of_numpy_follow_the_rules_of_jax(name, params):
    cell, args = CALLS[name]
    [batched] = eb.batch(lambda params, args: cell(params, *args))(params, [args])
    alone = cell(params, *args)
    assert isinstance(alone, jax.Array)
    assert (alone.dtype, alone.shape) == (batched.dtype, batched.shape)
    np.testing.assert_allclose(alone, batched, rtol=1e-6)


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("number", [2**40, np.int64(-(2**40)), np.array([1, 2**31])])
def test_integers_that_jax_has_not_are_refused_in_both_ways(number, by_name):
    def model(params, x):
        return row(params, index=x) if by_name else row(params, x)

    for run in ways(model):
        with pytest.raises(eb.RecordingError, match="does not fit int32: JAX has"):
            run(TABLE, number)


def test_an_integer_of_thousands_of_digits_is_refused_with_the_same_sentence():
    message = "received an integer of very many digits, which does not fit int32"
    for run in ways(row):
        with pytest.raises(eb.RecordingError, match=message):
            run(TABLE, -(10**5000))


NO_ARRAYS_OF_JAX = {
    "text": np.array(["a"]),
    "objects": np.array([1, None], object),
    "days": np.array(["2020-01-01"], "datetime64[D]"),
    "fields": np.zeros(2, [("a", "f4")]),
    "masked": np.ma.array([1.0, 2.0], mask=[True, False]),
}


@pytest.mark.parametrize("name", NO_ARRAYS_OF_JAX)
def test_arrays_that_jax_has_not_are_refused_with_one_sentence(name):
    sentences = []
    for run in ways(scaled_sum):
        with pytest.raises(eb.CellError, match=r"^cell 'scaled_sum', called") as raised:
            run(None, NO_ARRAYS_OF_JAX[name])
        _, _, sentence = str(raised.value).partition("received ")
        sentences.append(sentence)
    assert sentences[0] == sentences[1] and "; " in sentences[0]


@eb.cell
def in_mode(params, x, mode):
    return x if mode == "same" else -x


@pytest.mark.parametrize("jitted", [False, True])
def test_texts_and_arrays_without_a_masked_element_are_taken_in_both_ways(jitted):
    x = np.ma.array([1.0, 2.0], np.float32, mask=[False, False])
    mode = np.array(["same", "other"])[1]  # a NumPy string
    for run in ways(lambda params, x: scaled_sum(params, x)):
        with jitted_cells() if jitted else nullcontext():
            assert np.ravel(run(None, x)) == [5]
    for run in ways(lambda params, x: in_mode(params, x, mode)):
        np.testing.assert_array_equal(np.ravel(run(None, np.float32(3))), [-3])


def test_integers_are_checked_where_cells_are_compiled_one_by_one():
    with jitted_cells():
        with pytest.raises(eb.RecordingError, match="1099511627776, which does"):
            floor_divide(None, np.array([1, 2**40]), 1)
        assert floor_divide(None, np.array([7, 2**31 - 1]), 2)[0] == 3


def test_integers_as_wide_as_the_dtype_are_kept():
    limits = np.array([-(2**31), 2**31 - 1], np.int64)
    assert floor_divide(None, limits, 1).tolist() == limits.tolist()


@eb.cell
def constants(params):
    return {"wide": np.full(2, 0.1), "whole": 3, "real": 0.1, "flag": True}


def test_constants_that_a_cell_returns_have_the_dtypes_of_jax():
    alone = constants(None)
    batched = eb.batch(lambda params, x: constants(params))(None, [1])
    for name, value in alone.items():
        [expected] = batched[name]
        assert isinstance(value, jax.Array) and not value.weak_type
        assert value.dtype == expected.dtype
        np.testing.assert_array_equal(value, expected)


@eb.cell
def draws(params, x, rng=None):
    return x if rng is None else x + jax.random.normal(rng)


@eb.cell
def calls_drawing(params, x):
    return draws(params, x)


@eb.cell
def looks(params, x):
    return x + eb.value(x)


@pytest.mark.parametrize(
    ("cell", "message"),
    [(calls_drawing, "another cell calls it"), (looks, "called inside a cell")],
)
def test_what_cells_may_not_do_they_may_not_unbatched(cell, message):
    for run in ways(cell):
        with pytest.raises(eb.CellError, match=message):
            run(None, 1.0)
    assert draws(None, 1.0) == 1, "a cell that raised leaves nothing behind"
    assert eb.value(draws(None, 1.0)) == 1


@eb.cell(static=("steps",))
def constant_loop(params, x, steps):
    return inner_loop(params, x, steps)


@eb.cell
def inner_loop(params, x, steps):
    for _ in range(steps):  # a constant if a cell calls this cell, as in any function
        x = x * 2
    return x


def test_constants_of_a_cell_in_a_cell_stay_constants():
    def model(params, x):
        return constant_loop(params, x, 3)

    [batched] = eb.batch(model)(None, [1.0])
    assert batched == model(None, 1.0) == 8
    assert jax.jit(model)(None, 1.0) == 8
