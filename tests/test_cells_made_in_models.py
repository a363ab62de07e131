"""Variables that a cell closes over have their values at the time of the call.

A model may make a cell in a loop, for one layer. Python looks up the loop variable when
the cell's function runs, so the cell must be traced before the loop continues.
"""

import jax
import jax.numpy as jnp
import pytest

import edbatch as eb
from edbatch.compiler import OFF

# Instances share no batch here, and the library warns of that.
pytestmark = pytest.mark.filterwarnings("ignore::edbatch.errors.ManyTypesWarning")

PARAMS = {"table": jnp.arange(1.0, 5.0), "scale": jnp.float32(0.5)}
SIZES = eb.Sizes(widths=(4,))


@eb.cell
def start(params, x):
    return params["table"] * x


def loop_variable(params, x):
    h = start(params, x)
    for k in range(3):

        @eb.cell
        def scale(params, h):
            return h * (k + 1) + params["scale"]  # noqa: B023

        h = scale(params, h)
    return h


def assigned_later(params, x):
    factor = 2.0
    scale = eb.cell(lambda params, h: h * factor + params["scale"])
    h = scale(params, start(params, x))
    factor = 7.0
    return h


def assigned_in_a_loop(params, x):
    h, factor = start(params, x), 1.0
    for _ in range(3):
        factor *= 0.5
        h = eb.cell(lambda h: h * factor)(h)  # noqa: B023
    return h


def with_static_function(params, x):
    h = start(params, x)
    for k in range(3):
        h = apply(h, function=lambda value: value * (k + 2))  # noqa: B023
    return h


@eb.cell(static=["function"])
def apply(h, function):
    return function(h)


def with_key(params, x):
    h = start(params, x)
    for k in range(3):

        @eb.cell
        def drop(h, rng=None):
            kept = h if rng is None else h * jax.random.uniform(rng)
            return kept * (k + 1)  # noqa: B023

        h = drop(h)
    return h


def of_shapes(params, x):
    h, found = start(params, x), []
    for k in range(1, 4):

        @eb.cell
        def head(h):
            return h[:k]  # noqa: B023

        found.append(head(h))
    return tuple(found)


MODELS = [
    loop_variable,
    assigned_later,
    assigned_in_a_loop,
    with_static_function,
    with_key,
    of_shapes,
]
INSTANCES = [jnp.float32(k) for k in (1, 2, 5)]


@pytest.mark.parametrize("tiers", ["fine", "coarse"])
@pytest.mark.parametrize("model", MODELS)
def test_batched_equals_unbatched(model, tiers):
    with eb.use_tiers(tiers):
        batched = eb.batch(model, params=PARAMS, sizes=SIZES)
        eb.verify(batched, PARAMS, INSTANCES)


@pytest.mark.parametrize("model", [loop_variable, of_shapes])
def test_a_kept_recording(model):
    batched = eb.batch(model, params=PARAMS, sizes=SIZES)
    found = batched.apply(PARAMS, batched.plan(batched.record_all(INSTANCES)))
    for k, instance in enumerate(INSTANCES):
        own = jax.tree.map(lambda each, k=k: each[k], found)
        for one, other in zip(
            jax.tree.leaves(own),
            jax.tree.leaves(model(PARAMS, instance)),
            strict=True,
        ):
            assert one.tolist() == pytest.approx(other.tolist())


def test_with_a_key():
    """Random draws and factors equal those of the unbatched model."""
    batched = eb.batch(with_key, params=PARAMS, sizes=SIZES)
    eb.verify(batched, PARAMS, INSTANCES, rng=jax.random.key(3))


def test_values_on_the_way():
    def asking(params, x):
        h = start(params, x)
        for k in range(3):

            @eb.cell
            def scale(h):
                return h * (k + 1)  # noqa: B023

            h = scale(h)
            if eb.value(h)[0] > 8:
                break
        return h

    batched = eb.batch(asking, params=PARAMS, sizes=SIZES)
    eb.verify(batched, PARAMS, INSTANCES)


def test_layers_read_what_the_first_one_did():
    """Types that differ in parameters only are traced once, for the first of them."""
    params = {"layers": [{"w": jnp.float32(k)} for k in range(1, 6)], **PARAMS}

    def model(params, x):
        factor = 2.0
        scale = eb.cell(lambda own, other, h: h * own["w"] + factor * other["w"])
        h, layers = start(params, x), params["layers"]
        for one, other in ((0, 1), (2, 2), (4, 3), (1, 1)):
            h = scale(layers[one], layers[other], h)
        factor = 7.0
        return h

    batched = eb.batch(model, params=params, sizes=SIZES)
    eb.verify(batched, params, INSTANCES)
    off = eb.batch(model, params=params, sizes=SIZES, compiler=OFF)
    eb.verify(off, params, INSTANCES)


class Layer:
    """An attribute of an object that a cell closes over keeps its first value."""

    factor = 1.0


def test_the_first_value_of_an_attribute_stays():
    layer = Layer()
    scale = eb.cell(lambda h: h * layer.factor)

    def model(params, x):
        h = start(params, x)
        for _ in range(3):
            layer.factor += 1
            h = scale(h)
        return h

    batched = eb.batch(model, params=PARAMS, sizes=SIZES)
    found = batched(PARAMS, INSTANCES[:1])
    assert found[0].tolist() == [8 * each for each in (1, 2, 3, 4)]
    layer.factor = 100.0
    assert batched(PARAMS, INSTANCES)[2].tolist() == [40 * k for k in (1, 2, 3, 4)]


def test_many_copies_of_a_cell_are_warned_of():
    batched = eb.batch(loop_variable, params=PARAMS, sizes=SIZES)
    with pytest.warns(
        eb.errors.ManyTypesWarning,
        match=r"cell 'scale' was made \d+ times, .*, outside the model",
    ):
        batched(PARAMS, INSTANCES)


@pytest.mark.filterwarnings("default::edbatch.errors.ManyTypesWarning")
def test_cells_of_a_factory_are_not_taken_for_copies():
    def make(activation):
        @eb.cell
        def layer(w, x):
            return activation(w @ x).sum()

        return layer

    layers = make(jnp.tanh), make(jnp.sin)
    params = {"layers": [jnp.ones((1 + k, 4)) for k in range(10)]}

    def model(params, x):
        return [cell(w, x) for w in params["layers"] for cell in layers]

    batched = eb.batch(model, params=params, sizes=SIZES)
    with pytest.warns(
        eb.errors.ManyTypesWarning, match="parameters of a shape that no"
    ):
        batched(params, [jnp.ones(4)])
