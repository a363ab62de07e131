"""Tests the values a cell accepts: dtypes, ranges, subclasses, error messages."""

import enum
import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental import sparse

import edbatch as eb

pytestmark = pytest.mark.usefixtures("quick_compiles")

DTYPES = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"),
]


@eb.cell
def same(params, x):
    return x


@eb.cell
def bucket(params, hashes):
    return hashes % 7


def run(instances, cell=same):
    batched = eb.batch(lambda params, x: cell(params, x))
    return batched(jnp.float32(0), instances)


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, name))


FORMS = {
    "array": lambda dtype: np.array([1, 0, 1]).astype(dtype),
    "0-d array": lambda dtype: np.ones((), dtype),
    "scalar": lambda dtype: np.ones((), dtype)[()],
    "jax.Array": lambda dtype: jnp.array([1, 0, 1]).astype(canonical(dtype)),
    "0-d jax.Array": lambda dtype: jnp.ones((), canonical(dtype)),
}


def canonical(dtype):
    return jax.dtypes.canonicalize_dtype(dtype)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_in_every_form(name, form):
    dtype = dtype_of(name)
    value = FORMS[form](dtype)
    found = run([value, value])
    expected = np.asarray(value).astype(canonical(dtype))
    assert found.dtype == expected.dtype
    assert (np.asarray(found) == expected).all() and found.shape == (2, *expected.shape)


class Color(enum.IntEnum):
    RED = 3


class Metres(float):
    pass


class Named(np.ndarray):
    pass


CONVERTED = {
    "big-endian": np.array([1.5, -2.0], ">f4"),
    "big-endian integers": np.array([1, -2], ">i8"),
    "big-endian 0-d": np.array(1.5, ">f4"),
    "nothing masked": np.ma.array([1.0, 2.0], mask=[False, False]),
    "subclass of arrays": np.ones(2, np.float32).view(Named),
    "enum": Color.RED,
    "subclass of float": Metres(2.5),
    "weak": jnp.asarray(1.0),
    "empty": np.zeros((0, 3), np.int64),
    "not contiguous": np.arange(8.0)[::2],
    "reversed": np.arange(3)[::-1],
    "sliced numbers": np.arange(6).reshape(2, 3).T,
}


@pytest.mark.parametrize("name", CONVERTED)
def test_what_is_converted_exactly(name):
    value = CONVERTED[name]
    found = run([value, value])
    assert found.dtype == canonical(np.asarray(value).dtype.newbyteorder("="))
    assert np.array_equal(found, [np.asarray(value)] * 2)


def test_sparse_arrays_of_jax_are_pytrees():
    @eb.cell
    def multiply(params, matrix):
        return matrix @ jnp.ones(2)

    matrix = sparse.BCOO.fromdense(jnp.array([[1.0, 2.0], [0.0, 3.0]]))
    assert run([matrix], multiply).tolist() == [[3.0, 3.0]]


class Duck:
    dtype = np.dtype(np.float32)
    shape = (2,)

    def __array__(self, dtype=None, copy=None):
        return np.ones(2, np.float32)


class Foreign(Duck):
    dtype = object()  # as in a library with its own dtypes


REFUSED = {
    "masked": (np.ma.array([1, 2], mask=[0, 1]), "masked array with 1 of 2 .*filled"),
    "masked scalar": (np.ma.masked, "masked array with 1 of 1 elements masked"),
    "longdouble": (np.ones(2, np.longdouble), r"array of dtype float\d+, .*astype"),
    "longdouble scalar": (np.longdouble(1), r"scalar of dtype float\d+"),
    "clongdouble": (np.ones(2, np.clongdouble), r"dtype complex\d+, .*complex64"),
    "fields": (np.zeros(2, [("a", "i4")]), "each of its fields as an array"),
    "record": (np.zeros(2, [("a", "i4")])[0], "each of its fields as an array"),
    "objects": (np.array([1, None]), "dtype object, .* array of numbers"),
    "words": (np.array(["a"]), "number the words"),
    "bytes": (b"ab", "received bytes; arguments are pytrees"),
    "dates": (np.array(["2020-01-01"], "M8[D]"), "pass numbers, such as the days"),
    "durations": (np.timedelta64(3, "s"), "pass numbers, such as array /"),
    "buffer": (memoryview(b"ab"), "received memoryview"),
    "shape": (jax.ShapeDtypeStruct((2,), np.float32), "received ShapeDtypeStruct"),
    "duck": (Duck(), r"Duck, which is no array of .*np\.asarray"),
    "foreign": (Foreign(), r"Foreign, which is no array of .*np\.asarray"),
    "key": (jax.random.key(0), "a key"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_in_a_sentence(name):
    value, text = REFUSED[name]
    with pytest.raises(eb.CellError, match=f"cell 'same'.*{text}"):
        run([value])
    if "received" not in text:
        with pytest.raises(eb.RecordingError, match=f"the model returns .*{text}"):
            eb.batch(lambda params, x: (same(params, 1.0), x))(None, [value])


def test_matrices_of_numpy_are_refused():
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix([[1.0, 2.0]])
    with pytest.raises(eb.CellError, match=r"np\.matrix, .*np\.asarray"):
        run([matrix])


WIDE = {
    "array": np.array([5, 2**40 + 3]),
    "unsigned array": np.array([2**32], np.uint64),
    "negative": np.array([[-(2**31) - 1]]),
    "0-d array": np.array(2**31),
    "scalar": np.int64(2**40),
    "unsigned scalar": np.uint64(2**40),
    "number": 2**31,
    "large number": 2**70,
    "big-endian": np.array([2**40], ">i8"),
}


@pytest.mark.parametrize("name", WIDE)
def test_integers_that_do_not_fit_are_named(name):
    value = WIDE[name]
    wide = max(np.asarray(value).ravel().tolist(), key=abs)
    text = rf"cell 'bucket' received {wide}, which does not fit u?int32: .*enable"
    ones = np.ones_like(value) if isinstance(value, np.ndarray | np.generic) else 1
    with pytest.raises(eb.RecordingError, match=text):
        run([ones, value], bucket)
    batched = eb.batch(lambda params, x: (same(params, 1.0), x))
    with pytest.raises(eb.RecordingError, match=f"the model returns {wide}, which"):
        batched(None, [value])


def test_wide_arrays_of_jax_are_checked_too():
    with jax.enable_x64(True):
        wide = jnp.array([2**40])
    with pytest.raises(eb.RecordingError, match="1099511627776, which does not fit"):
        run([wide], bucket)


def test_integers_that_fit_are_taken():
    limits = np.array([-(2**31), 2**31 - 1, 0])
    assert run([limits, limits[::-1]]).tolist() == [
        limits.tolist(),
        [0, *limits[1::-1]],
    ]
    most = np.array([2**32 - 1, 0], np.uint64)
    found = run([most, most.astype(np.uint32)])
    assert found.dtype == np.uint32 and found.tolist() == [most.tolist()] * 2
    mixed = run([3, np.array(-4), np.int64(5), jnp.int32(6), np.int32(7)])
    assert mixed.dtype == np.int32 and mixed.tolist() == [3, -4, 5, 6, 7]


def test_floats_that_overflow_are_infinite_as_in_jax():
    value = np.array([1e300])
    with pytest.warns(RuntimeWarning, match="overflow encountered in cast"):
        expected = jnp.asarray(value)
    with pytest.warns(RuntimeWarning, match="overflow encountered in cast"):
        found = run([value])
    assert found[0].tolist() == expected.tolist() == [np.inf]


# Setting the shape is deprecated in NumPy 2.5, but older code does it.
@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")
def test_an_array_whose_owner_turns_a_sign_or_the_shape():
    """Zeros of both signs are equal, and an array's shape can be changed in place."""
    array = np.zeros((2, 3), np.float32)

    @eb.cell
    def sign(params, x):
        return jnp.copysign(1.0, x.ravel())

    def changing(params, _):
        results = [sign(params, array)]
        array[:] = -0.0
        results.append(sign(params, array))
        array.shape = (3, 2)
        return (*results, sign(params, array))

    first, second, third = eb.batch(changing)(None, [0])
    assert (first == 1).all() and (second == -1).all() and (third == -1).all()


def test_the_sentence_of_a_number_says_how_wide_integers_are():
    with jax.enable_x64(True), pytest.raises(eb.RecordingError) as caught:
        run([2**70])
    assert re.search("does not fit int64: .* 64 bits at most; pass", str(caught.value))


def test_merged_recordings_keep_apart_inputs_of_several_kinds():
    @eb.cell
    def scale(params, vector):
        return params * vector.sum()

    @eb.cell
    def shift(params, state, number):
        return params + state * number

    def model(params, counts):
        vectors, numbers = counts
        state = scale(params, np.arange(3, dtype=np.float32) + vectors)
        for k in range(vectors):
            state = shift(params, state, np.float32(1 + k))
        for k in range(numbers):
            state = shift(params, state, np.int32(k + 2))
        return state

    params = np.float32(0.5)
    counts = [(3, 1), (1, 4), (2, 2)]
    batched = eb.batch(model, params=params)
    recordings = [batched.record(each) for each in counts]
    found = batched(params, recordings)
    expected = [float(model(params, each)) for each in counts]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
