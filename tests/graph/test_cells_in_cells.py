"""Tests cells that call cells, which are plain functions there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb

pytestmark = pytest.mark.usefixtures("quick_compiles")

SIZES = eb.Sizes(widths=(4,))
PARAMS = {"w": jnp.full((3, 3), 0.3) + jnp.eye(3), "v": jnp.float32(0.5)}
VECTORS = [np.arange(3, dtype=np.float32) + k for k in range(4)]


@eb.cell
def product(params, x):
    return jnp.tanh(params["w"] @ x)


@eb.cell
def ones():
    return jnp.ones(3)


@eb.cell(padded=("items",))
def total(items, mask):
    return jnp.where(mask[:, None], items, 0).sum(0)


@eb.cell(static=("power",))
def raised(params, x, power):
    return params["v"] * x**power


@eb.cell
def calls_one(params, x):
    return product(params, x) + 1


@eb.cell
def calls_none(params, x):
    return ones() * product(params, ones()) + x


@eb.cell
def calls_padded(params, x):
    return total([x, product(params, x), ones()])


@eb.cell
def calls_static(params, x):
    return raised(params, x, 2) + raised(params, x, power=3)


@eb.cell(static=("depth",))
def calls_itself(params, x, depth=2):
    return calls_itself(params, product(params, x), depth - 1) if depth else x


@eb.cell
def calls_mapped(params, x):
    return jax.vmap(lambda own: product(params, own))(jnp.stack([x, x])).sum(0)


@eb.cell
def calls_numbers(params, x):
    return raised(params, 2.0, 2) * x


@eb.cell(padded=("items",))
def calls_from_padded(params, items, mask):
    return total(list(items)) + product(params, items[0]) * mask.sum()


@pytest.mark.parametrize("compiler", [eb.Compiler(), eb.Compiler(hoisting="always")])
@pytest.mark.parametrize(
    "outer",
    [
        calls_one,
        calls_none,
        calls_padded,
        calls_static,
        calls_itself,
        calls_mapped,
        calls_numbers,
    ],
    ids=lambda outer: outer.name,
)
def test_a_cell_may_call_cells(outer, compiler):
    """The call is one node, with the values and gradients of the plain function."""

    def model(params, vectors):
        return outer(params, outer(params, sum(vectors)))

    batched = eb.batch(model, sizes=SIZES, compiler=compiler, params=PARAMS)
    instances = [VECTORS[:1], VECTORS[1:], VECTORS]
    assert batched.record(instances[0]).num_nodes == 2
    found = eb.verify(batched, PARAMS, instances)
    assert found.outputs == 9 and found.max_gradient_error is not None


def test_a_padded_cell_may_call_cells():
    def model(params, vectors):
        return calls_from_padded(params, [product(params, x) for x in vectors])

    batched = eb.batch(model, sizes=SIZES, params=PARAMS)
    instances = [VECTORS[:4], VECTORS[:2] * 2]
    eb.verify(batched, PARAMS, instances)


def test_the_same_cell_is_a_node_where_the_model_calls_it():
    """Even after another cell that calls it has raised, or has been traced with it."""

    @eb.cell
    def fails(params, x):
        return product(params, x)[: x[0]]

    def model(params, x):
        with pytest.raises(eb.CellError, match="'fails' cannot be traced"):
            fails(params, x)
        return product(params, calls_one(params, product(params, x)))

    batched = eb.batch(model, sizes=SIZES, params=PARAMS)
    names = [
        str(batched.types.types[k].key) for k in batched.record(VECTORS[0]).node_type
    ]
    assert names == ["product/0", "calls_one/1", "product/1"]


@eb.cell
def noise(x, rng=None):
    return x if rng is None else x + jax.random.normal(rng, x.shape)


def test_a_key_is_passed_on_from_cell_to_cell():
    @eb.cell
    def outer(x, rng):
        first, second = jax.random.split(rng)
        return noise(noise(x, rng=first), second) + noise(x, rng=None)

    batched = eb.batch(lambda params, x: outer(outer(x)), sizes=SIZES)
    eb.verify(batched, None, VECTORS, rng=jax.random.key(1))


@pytest.mark.parametrize("rng", [None, 0])
def test_an_inner_cell_gets_no_key_by_itself(rng):
    """Otherwise a cell with a default for `rng` would silently draw nothing."""

    @eb.cell
    def outer(x, rng=None):
        return noise(x) + 1

    batched = eb.batch(lambda params, x: outer(x), sizes=SIZES)
    text = r"'noise' takes a key, .* another cell calls it without one \(test_cells_in"
    with pytest.raises(eb.CellError, match=text):
        batched(None, VECTORS, rng=None if rng is None else jax.random.key(rng))


@pytest.mark.parametrize("library", ["linen", "nnx"])
def test_cells_of_flax_may_be_called(library):
    import edbatch.flax

    flax = pytest.importorskip("flax")
    if library == "linen":
        module = flax.linen.Dense(3)
        params = module.init(jax.random.key(0), jnp.zeros(3))
    else:
        module = flax.nnx.Linear(3, 3, rngs=flax.nnx.Rngs(0))
        params = flax.nnx.state(module, flax.nnx.Param)
    dense = edbatch.flax.cell(module)

    @eb.cell
    def outer(params, x):
        return jnp.tanh(dense(params, x)) + x

    batched = eb.batch(lambda params, x: outer(params, outer(params, x)), sizes=SIZES)
    assert eb.verify(batched, params, VECTORS).max_gradient_error is not None


def test_a_cell_under_a_loop_of_the_model_is_an_error():
    def model(params, x):
        return jax.lax.fori_loop(0, 2, lambda _, own: product(params, own), x)

    with pytest.raises(eb.RecordingError, match="inside cells, not around them"):
        eb.batch(model, params=PARAMS).record(VECTORS[0])


@pytest.mark.parametrize(
    "use",
    [
        lambda params, handle, x: handle * x,
        lambda params, handle, x: x * handle,
        lambda params, handle, x: jnp.tanh(handle) + x,
        lambda params, handle, x: product({"w": x[:, None]}, handle[:1]),
        lambda params, handle, x: product(params, x),
        lambda params, handle, x: params["v"] * x,
        lambda params, handle, x: jnp.tanh(params["v"]) * x,
        lambda params, handle, x: handle,
        lambda params, handle, x: (x, params),
    ],
)
def test_a_cell_closes_over_nothing_of_the_model(use):
    def model(params, vector):
        handle = product(params, vector)

        @eb.cell
        def inner(x):
            return use(params, handle, x)

        return inner(vector)

    text = r"'inner' uses a handle or a parameter that was not passed to it \("
    with pytest.raises(eb.CellError, match=text) as caught:
        eb.batch(model, params=PARAMS).record(VECTORS[0])
    assert "test_cells_in_cells.py:" in str(caught.value)
