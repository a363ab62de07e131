"""Tests that a product's tape holds the array its input is cut from, if smaller."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.cell.backward import taped_cell
from edbatch.cell.jaxpr import shape_of

pytestmark = pytest.mark.usefixtures("quick_compiles")

LENGTH, CHANNELS, OUT = 4, 8, 5
SIZES = eb.Sizes(widths=(4,))


def windows(x, value=0.0):
    around = jnp.pad(x, ((1, 1), (0, 0)), constant_values=value)
    return jnp.concatenate([around[k : k + LENGTH] for k in range(3)], axis=-1)


def of_zeros(params, x, y):
    return windows(x)


def of_ones(params, x, y):
    return windows(x, 1.0)


def of_casts(params, x, y):
    return windows(x.astype(jnp.bfloat16)).astype(jnp.float32)


def of_two(params, x, y):
    return jnp.concatenate(
        [windows(x), jnp.broadcast_to(y, (LENGTH, CHANNELS))], axis=-1
    )


def of_views(params, x, y):
    parts = jnp.split(x[::-1].T.reshape(2, -1), 2, axis=1)
    whole = jnp.concatenate([parts[1], parts[0]], axis=1).reshape(LENGTH, CHANNELS)
    return jnp.tile(whole, (1, 3))


def of_computed(params, x, y):
    """The windows are cut from a computed value, not from the operand."""
    return windows(jnp.tanh(x) * params["scale"])


def of_infinity(params, x, y):
    return jnp.maximum(windows(x, -jnp.inf), -1)


def padded_by_infinity(params, x, y):
    return windows(x, -jnp.inf)


def of_parameter(params, x, y):
    row = jnp.broadcast_to(params["row"], (LENGTH, CHANNELS))
    return jnp.concatenate([windows(x), row], axis=-1)


def of_same_size(params, x, y):
    return jnp.concatenate([x, x[::-1] + 1, jnp.tanh(x)], axis=-1)


SMALLER = {
    of_zeros: [(LENGTH, CHANNELS)],
    of_ones: [(LENGTH, CHANNELS)],
    of_casts: [(LENGTH, CHANNELS)],
    of_two: [(LENGTH, CHANNELS), (CHANNELS,)],
    of_views: [(LENGTH, CHANNELS)],
    of_computed: [(LENGTH, CHANNELS)],
}
WHOLE = {
    of_infinity: (LENGTH, 3 * CHANNELS),
    padded_by_infinity: (LENGTH + 2, CHANNELS),  # the padded array
    of_parameter: (LENGTH, 4 * CHANNELS),
    of_same_size: (LENGTH, 3 * CHANNELS),
}
WIDTH = {of_two: 4, of_parameter: 4}


def make_params(form, layers=1):
    width = WIDTH.get(form, 3) * CHANNELS
    keys = jax.random.split(jax.random.key(1), 3)
    weights = jax.random.normal(keys[0], (layers, width, OUT)) / np.sqrt(width)
    row, scale = jax.random.normal(keys[1], (CHANNELS,)), jnp.float32(0.8)
    return {
        "layers": [{"w": each, "row": row, "scale": scale} for each in weights],
        "up": jax.random.normal(keys[2], (OUT, CHANNELS)),
    }


def make_model(form):
    @eb.cell
    def start(params, x):
        return jnp.sin(x)

    @eb.cell
    def mix(layer, x, y):
        return jnp.tanh(form(layer, x, y) @ layer["w"])

    @eb.cell
    def widen(params, x):
        return x @ params["up"]

    @eb.cell
    def last(params, x):
        return x.sum(0)

    def model(params, instance):
        x, y, depth = instance
        layers = params["layers"]
        state, first = start(params, x), start(params, y)
        for k in range(depth):
            state = widen(params, mix(layers[k], state, first))
        return last(params, state)

    return model


def sample(seed, count, most=1):
    random = np.random.default_rng(seed)
    return [
        (
            random.standard_normal((LENGTH, CHANNELS)).astype(np.float32),
            random.standard_normal(CHANNELS).astype(np.float32),
            int(random.integers(1, most + 1)),
        )
        for _ in range(count)
    ]


def tape_of(batched, *, of_family=False):
    """Shapes of the arrays on the tape of the product with the layer's weight."""
    types = batched.plan(sample(0, 3)).shape.program.types
    [found] = [
        each
        for each in types.types
        if each.key.cell == "mix" and (each.family is not None) == of_family
    ]
    cell = taped_cell(found, types, packing=True)
    [site] = [each for each in cell.sites if each.is_product]
    return [shape_of(each) for each in site.taped]


@pytest.mark.parametrize("packing", ["auto", "never"])
@pytest.mark.parametrize("form", SMALLER, ids=lambda form: form.__name__)
def test_what_windows_are_cut_from(form, packing):
    params = make_params(form)
    compiler = eb.Compiler(packing=packing)
    batched = eb.batch(make_model(form), params=params, sizes=SIZES, compiler=compiler)
    eb.verify(batched, params, sample(0, 5))
    assert sorted(tape_of(batched)) == sorted(SMALLER[form])


@pytest.mark.parametrize("form", WHOLE, ids=lambda form: form.__name__)
def test_what_is_no_smaller_or_computed_is_kept_whole(form):
    params = make_params(form)
    batched = eb.batch(make_model(form), params=params, sizes=SIZES)
    assert tape_of(batched) == [WHOLE[form]]
    if form is not padded_by_infinity:
        eb.verify(batched, params, sample(0, 3))


@pytest.mark.parametrize("form", [of_ones, of_two], ids=lambda form: form.__name__)
def test_layers_that_share_loops(form):
    """The rows of one layer are cut from the tape as blocks."""
    params = make_params(form, layers=8)
    batched = eb.batch(make_model(form), params=params, sizes=SIZES)
    instances = sample(1, 9, most=8)
    eb.verify(batched, params, instances)
    assert sorted(tape_of(batched, of_family=True)) == sorted(SMALLER[form])


def test_cells_that_compute_in_bfloat16():
    params = make_params(of_two)
    half = {"compute_dtype": jnp.bfloat16}
    batched = eb.batch(make_model(of_two), params=params, sizes=SIZES, **half)
    eb.verify(batched, params, sample(2, 9))
    assert sorted(tape_of(batched)) == sorted(SMALLER[of_two])


def test_derivatives_by_inputs():
    """The first windows are cut from these external inputs."""
    params = make_params(of_ones)
    model = make_model(of_ones)
    batched = eb.batch(model, params=params, sizes=SIZES)
    instances = sample(3, 6)
    plan = batched.plan(instances)

    def loss(own, plan):
        return (batched.apply(own, plan) ** 2).sum()

    def alone(own):
        return sum((model(own, each) ** 2).sum() for each in instances)

    own, expected = jax.grad(loss)(params, plan), jax.grad(alone)(params)
    for a, b in zip(jax.tree.leaves(own), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
