"""Outputs that are never read have no cotangent, whatever else has their shape.

A square root's derivative at zero is infinite, and zero times infinity is not zero: a
cotangent that is zero because nothing reads the output must not be propagated. The
unbatched model is the specification; JAX does not propagate symbolic zeros.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compared_gradients import assert_same_gradient

import edbatch as eb
from edbatch.cell.derivatives import may_have_poles

SIZE = 8  # large enough that the matrix's product is taped


@eb.cell
def leaf(params, word):
    return params["table"][word]


@eb.cell
def roots(params, x):
    """Two outputs of one shape and dtype; one's derivative is infinite at zero."""
    return jnp.tanh(params["w"] @ x), jnp.sqrt(jnp.abs(x)) * params["b"]


@eb.cell
def root_of_product(params, x):
    """The pole is after a product with a large parameter."""
    return x + params["b"], jnp.sqrt(jnp.abs(params["w"] @ x))


@eb.cell
def looped(params, x):
    """The pole and the large parameter are inside one equation."""

    def turn(x, _):
        return jnp.sqrt(jnp.abs(params["w"] @ x)), None

    return x * params["b"], jax.lax.scan(turn, x, None, length=2)[0]


@eb.cell
def add(params, left, right):
    return left + params["b"] * right


@eb.cell
def root(x):
    return jnp.sqrt(jnp.abs(x))


@eb.cell
def either(left, right):
    """The first output depends only on `left`, the second on both."""
    return left * 2.0, left * right


CELLS = {"roots": roots, "product": root_of_product, "loop": looped}


def make_params():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(5, SIZE))
    table[1] = 0
    return {
        "table": jnp.asarray(table, jnp.float32),
        "w": jnp.asarray(rng.normal(size=(SIZE, SIZE)), jnp.float32),
        "b": jnp.asarray(rng.normal(size=SIZE), jnp.float32),
    }


WORDS = [0, 1, 2, 1, 1, 3, 1]
OPTIONS = {
    "default": {},
    "narrow": {"sizes": eb.Sizes(widths=(4,))},
    "remat": {"compiler": eb.Compiler(remat="always"), "sizes": eb.Sizes(widths=(4,))},
    "unpacked": {
        "compiler": eb.Compiler(packing="never"),
        "planner": eb.Planner(layout="aligned"),
        "sizes": eb.Sizes(widths=(4, 8)),
    },
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("cell", CELLS)
def test_of_two_outputs_one_is_read(cell, options, quick_compiles):
    def model(params, word):
        return CELLS[cell](params, leaf(params, word))[0]

    assert_same_gradient(model, make_params(), WORDS, **OPTIONS[options])


@pytest.mark.parametrize("cell", CELLS)
def test_some_nodes_are_read_and_others_are_not(cell, quick_compiles):
    """The output with the pole is read for all words except 1, whose row is zero."""

    def model(params, words):
        state = leaf(params, words[0])
        for word in words:
            one, two = CELLS[cell](params, leaf(params, word))
            state = add(params, state, one)
            if word != 1:
                state = add(params, state, two)
        return state

    assert_same_gradient(
        model,
        make_params(),
        [[0, 1, 2], [1], [3, 1], [1, 1, 4, 1]],
        sizes=eb.Sizes(widths=(4,)),
    )


def test_what_reads_may_be_unread_itself(quick_compiles):
    def model(params, word):
        state = leaf(params, word)
        one, two = roots(params, state)
        if word == 1:
            add(params, two, root(two))  # this result is never read
            return one
        return add(params, one, two)

    assert_same_gradient(model, make_params(), WORDS)


def test_a_cotangent_comes_only_to_what_an_output_depends_on(quick_compiles):
    def model(params, word):
        state = leaf(params, word)
        return either(add(params, state, state), root(state))[word != 1]

    assert_same_gradient(model, make_params(), WORDS)


def test_outputs_of_the_model_that_the_loss_does_not_read(quick_compiles):
    def model(params, word):
        one, two = roots(params, leaf(params, word))
        return {"one": one, "two": two}

    assert_same_gradient(model, make_params(), WORDS, read=lambda output: output["one"])


def test_nodes_that_nothing_reads(quick_compiles):
    """Every cell has one output here."""

    def model(params, word):
        state = leaf(params, word)
        above = root(state)
        return add(params, state, state) if word == 1 else add(params, state, above)

    assert_same_gradient(model, make_params(), WORDS)


def test_padded_lists(quick_compiles):
    @eb.cell(padded=("items",))
    def pool(items, mask):
        items = jnp.where(mask[:, None], items, 1.0)
        return items.sum(0), jnp.sqrt(jnp.abs(items)).sum(0)

    def model(params, words):
        one, two = pool([leaf(params, word) for word in words])
        return one if 1 in words else add(params, one, two)

    assert_same_gradient(model, make_params(), [[0, 1, 2], [2, 3], [1], [4, 4, 4, 3]])


def test_random_numbers(quick_compiles):
    """Rows without a cotangent also have keys as inputs."""

    @eb.cell
    def noisy(params, x, rng):
        return x * jax.random.normal(rng, x.shape), jnp.sqrt(jnp.abs(x))

    def model(params, word):
        one, two = noisy(params, leaf(params, word))
        return one if word == 1 else add(params, one, two)

    params = make_params()
    batched = eb.batch(model, params=params)
    plan = batched.plan(WORDS)

    def loss(params):
        return batched.apply(params, plan, rng=jax.random.key(1)).sum()

    for each in jax.grad(loss)(params).values():
        assert np.isfinite(each).all()


@pytest.mark.parametrize("packing", [False, True])
def test_outputs_that_are_constant(packing, quick_compiles):
    @eb.cell
    def constant(params, x):
        return params["b"] * x, 2.0, jnp.sqrt(jnp.abs(x))

    @eb.cell
    def scale(number, x):
        return number * x

    def model(params, word):
        one, number, two = constant(params, leaf(params, word))
        return scale(number, one if word == 1 else add(params, one, two))

    compiler = eb.Compiler(packing="auto" if packing else "never")
    assert_same_gradient(model, make_params(), WORDS, compiler=compiler)


@jax.custom_jvp
def steep(x):
    """The function's own derivative is finite, its rule's is not."""
    return jnp.tanh(x)


@steep.defjvp
def _(primals, tangents):
    (x,), (tangent,) = primals, tangents
    return steep(x), tangent / jnp.abs(x)


def masked_log_softmax(y, v):
    return jnp.log(jax.nn.softmax(jnp.where(v > -1, y, -jnp.inf)))


SECOND = {
    "root of an exponential": lambda y, v: jnp.sqrt(jnp.exp(y + v)),
    "root of a softmax": lambda y, v: jnp.sqrt(jax.nn.softmax(y + v)),
    "logarithm of a sigmoid": lambda y, v: jnp.log(jax.nn.sigmoid(y + v)),
    "divided by an exponential": lambda y, v: v / jnp.exp(y + v),
    "masked softmax": masked_log_softmax,
    "rule of custom_jvp": lambda y, v: steep(y * jnp.where(v < 0, 0.0, 1.0)),
}


def assert_same_where_it_is_unread(second, far, everywhere=False):
    """Compares gradients if only some nodes' second output of a cell is read.

    Args:
        second: Computes the second output from the parameters, a state and a vector.
        far: The vector of nodes whose second output is not read; others get zeros.
        everywhere: Whether no node's second output is read.
    """

    @eb.cell
    def two(params, x, v):
        y = params["w"] @ x
        return jnp.tanh(y), second(params, y, v)

    def model(params, word):
        state = leaf(params, word)
        if word == 1 or everywhere:
            return two(params, state, far)[0]
        one, other = two(params, state, np.zeros(SIZE, np.float32))
        return add(params, one, other)

    params = make_params()
    params["table"] = params["table"].at[1].set(0.5)
    assert_same_gradient(model, params, WORDS)


@pytest.mark.parametrize("second", SECOND)
def test_slopes_that_are_infinite_where_a_number_underflows(second, quick_compiles):
    """The second output is read only if its derivative is finite."""
    far = np.zeros(SIZE, np.float32)
    far[::2] = -200
    assert_same_where_it_is_unread(
        lambda params, y, v: SECOND[second](y, v) * params["b"], far
    )


def of_memory(params, y, v):
    """Attention over memory slots, all of which may be empty."""
    scores = jnp.where(v < 1, params["w"] @ y, -jnp.inf)
    return params["w"].T @ jax.nn.softmax(scores)


UNDERFLOWING = {
    "square": lambda y, v: jnp.log(jnp.maximum(v - 1e-3 * y**2, 1e-30) ** 2),
    "product": lambda y, v: jnp.log(
        jnp.clip(v - y**2, 1e-25, 1.0) * jnp.clip(v - y[::-1] ** 2, 1e-25, 1.0)
    ),
}


@pytest.mark.parametrize("second", UNDERFLOWING)
def test_positive_numbers_whose_product_underflows(second, quick_compiles):
    """The second output is read only if the vector is large enough."""
    assert_same_where_it_is_unread(
        lambda params, y, v: UNDERFLOWING[second](y, v + 9) * params["b"],
        np.full(SIZE, -9, np.float32),
    )


ALL_MASKED = np.full(SIZE, -np.inf, np.float32)
OVERFLOWING = {
    "exponential": lambda params, y, v: jnp.exp(y + v),
    "product": lambda params, y, v: jnp.exp(v) * jnp.exp(v) * y,
    "square": lambda params, y, v: (params["b"] * jnp.exp(v + 0.1 * y)) ** 2,
    "sum of exponentials": lambda params, y, v: y + jnp.log(jnp.exp(-v - y).sum()),
    "softmax by hand": lambda params, y, v: jnp.exp(v + y) / jnp.exp(v + y).sum(),
    "empty memory": of_memory,
    "read by a product": lambda params, y, v: params["w"] @ jnp.exp(0.1 * y + v),
    "in a loop": lambda params, y, v: jax.lax.scan(
        lambda x, _: (params["w"] @ jnp.exp(0.1 * x + v), None), y, None, length=1
    )[0],
    "constant": lambda params, y, v: jax.nn.softmax(
        jnp.where(v < 1, y, y + ALL_MASKED)
    ),
}


@pytest.mark.parametrize("second", OVERFLOWING)
@pytest.mark.parametrize("everywhere", [False, True])
def test_numbers_that_overflow_in_what_nothing_reads(
    second, everywhere, quick_compiles
):
    """The second output is read if it is finite, or never."""
    far = np.full(SIZE, 200, np.float32)
    assert_same_where_it_is_unread(OVERFLOWING[second], far, everywhere)


def test_a_cell_that_closes_over_a_traced_array(quick_compiles):
    """It is unknown whether the array is finite."""

    def total_of_two(scale):
        @eb.cell
        def two(x):
            return x * scale, jnp.exp(x) * scale

        words = [np.full(SIZE, k, np.float32) for k in range(3)]
        outputs = eb.batch(lambda params, x: two(x)[0], params=())((), words)
        return outputs.sum()

    assert jax.jit(total_of_two)(jnp.full(SIZE, 2.0)) == 2 * SIZE * (0 + 1 + 2)


@pytest.mark.parametrize("name", ["softmax", "relu"])
def test_what_has_no_pole_is_not_taken_for_one(name):
    """Otherwise a cell's outputs would be differentiated one by one."""
    function = getattr(jax.nn, name)
    jaxpr = jax.make_jaxpr(lambda x: function(2 * x))(np.ones(4, np.float32))
    assert not may_have_poles(jaxpr.eqns, jaxpr.jaxpr.outvars)
