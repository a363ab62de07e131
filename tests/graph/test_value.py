"""Tests `eb.value` in unbatched models, and where no value exists."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb


@eb.cell
def grow(params, x):
    return params * x, x + 1


def powers(params, x):
    """Multiplies until a value is large enough; the number of steps is a result."""
    count = 0
    while eb.value(x) < 10:
        x, _ = grow(params, x)
        count += 1
    return x, count


def test_unbatched_values_are_numpy_arrays():
    pair = grow(jnp.float32(2), jnp.arange(3, dtype=jnp.float32))
    found = eb.value({"pair": pair, "number": 3})
    assert all(type(each) is np.ndarray for each in jax.tree.leaves(found))
    assert found["pair"][0].tolist() == [0, 2, 4]
    assert found["pair"][0].dtype == np.float32


def test_a_model_that_asks_runs_unbatched():
    result, count = powers(jnp.float32(2), jnp.float32(1))
    assert (float(result), count) == (16.0, 4)


@pytest.mark.parametrize("transform", [jax.grad, jax.value_and_grad])
def test_a_value_is_a_constant_of_a_gradient(transform):
    found = transform(lambda params: powers(params, jnp.float32(1))[0])(jnp.float32(2))
    gradient = found[1] if isinstance(found, tuple) else found
    assert float(gradient) == 4 * 2.0**3


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap])
def test_a_trace_has_no_values(transform):
    function = transform(lambda x: eb.value(x) * x)
    with pytest.raises(eb.RecordingError, match=r"under jax\.jit, jax\.vmap"):
        function(jnp.ones(2))


def test_a_cell_has_no_values():
    @eb.cell
    def look(x):
        return x * float(eb.value(x))

    batched = eb.batch(lambda params, x: look(x), params={})
    with pytest.raises(eb.EdbatchError, match="inside a cell"):
        batched.plan([1.0])


@pytest.mark.parametrize("how", ["record", "plan", "graph"])
def test_what_only_records_says_what_to_call(how):
    batched = eb.batch(powers, params=jnp.float32(2))
    with pytest.raises(eb.RecordingError, match=r"batched\.rollout"):
        getattr(batched, how)(1.0 if how == "record" else [1.0])


def test_a_handle_of_another_recording_has_no_value():
    kept = []

    def model(params, x):
        found, _ = grow(params, x)
        kept.append(found)
        return found

    eb.batch(model, params=jnp.float32(2)).record(1.0)
    with pytest.raises(eb.RecordingError, match="outside of the recording that"):
        eb.value(kept[0])


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap])
def test_transformed_functions_have_no_values_in_a_batched_model(transform):
    @eb.cell
    def double(x):
        return 2 * x

    def model(params, x):
        known = eb.value(double(x))
        return double(transform(lambda y: eb.value(y) + 1)(known))

    message = r"returns what is computed already.*\(test_value\.py:\d+\)"
    for run in eb.batch(model), lambda params, xs: model(params, xs[0]):
        with pytest.raises(eb.RecordingError, match=message):
            run(None, [np.ones(2, np.float32)])


@pytest.mark.filterwarnings("ignore:Python iterable type:DeprecationWarning")
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda x: (each for each in [x]),
            "received a generator .*convert it to a list",
        ),
        (lambda x: {1.0}, "received a set .*convert it to a list"),
        (lambda x: {"x": x}.values(), "received a dict_values .*convert it to a list"),
        (lambda x: [x, "name"], "received a str .*leave it out"),
        (lambda x: (x, object()), "received a object .*leave it out"),
    ],
)
def test_what_is_no_array_has_no_value(batched, make, message):
    def model(params, x):
        return eb.value(make(grow(params, x)[0]))

    run = eb.batch(model) if batched else model
    with pytest.raises(eb.RecordingError, match=message):
        run(jnp.float32(2), [1.0] if batched else 1.0)
