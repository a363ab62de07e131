"""Tests gradients of cells with custom rules, and of outputs that are never read.

A rule need not be linear: it may return nonzero for a zero cotangent, which padding
rows have and nodes of the model do not.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compared_gradients import assert_same_gradient

import edbatch as eb


@jax.custom_vjp
def decayed(x):
    return x


decayed.defvjp(lambda x: (x, x), lambda x, bar: (bar + 0.1 * x,))


@jax.custom_vjp
def of_length_one(x):
    return x


of_length_one.defvjp(lambda x: (x, None), lambda _, bar: (bar / jnp.linalg.norm(bar),))


@jax.custom_vjp
def decaying_product(w, x):
    return w @ x


decaying_product.defvjp(
    lambda w, x: (w @ x, (w, x)),
    lambda saved, bar: (jnp.outer(bar, saved[1]) + 0.1 * saved[0], saved[0].T @ bar),
)


@eb.cell
def leaf(params, word):
    return params["table"][word]


def chain(step):
    """A model that applies `step`; its instances are numbers of steps."""

    def model(params, steps):
        state = leaf(params, steps % 3)
        for _ in range(steps):
            state = step(params, state)
        return state

    return model


RULES = {
    "after a product": lambda params, x: jnp.tanh(decayed(params["w"] @ x)),
    "not finite at zero": lambda params, x: jnp.tanh(of_length_one(params["w"] @ x)),
    "of the product": lambda params, x: jnp.tanh(decaying_product(params["w"], x)),
    "of a small parameter": lambda params, x: decayed(x + params["b"]) * params["b"],
    "of the operand": lambda params, x: jnp.tanh(params["w"] @ decayed(x)),
    "in a loop": lambda params, x: jax.lax.fori_loop(
        0, 2, lambda _, y: jnp.tanh(params["w"] @ decayed(y)), x
    ),
    "in a branch": lambda params, x: jax.lax.cond(
        x[0] > 0, lambda y: decayed(params["w"] @ y), lambda y: y, x
    ),
}


def sample(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "table": jnp.asarray(rng.normal(size=(3, 4)), jnp.float32),
        "w": jnp.asarray(rng.normal(size=(4, 4)) / 2, jnp.float32),
        "b": jnp.asarray(rng.normal(size=4), jnp.float32),
    }


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("remat", [False, True])
def test_padding_gets_nothing_from_a_rule(rule, remat, quick_compiles):
    step = eb.cell(RULES[rule], name="step")
    # With a width of four, chunks of one, two and three nodes have padding.
    assert_same_gradient(
        chain(step),
        sample(),
        [3, 1, 2, 4, 4, 4, 3],
        compiler=eb.Compiler(remat="always" if remat else "auto"),
        sizes=eb.Sizes(widths=(4,)),
    )


def test_slices_have_padding_too(quick_compiles):
    step = eb.cell(RULES["after a product"], name="step")
    plan = assert_same_gradient(
        chain(step),
        sample(),
        [6, 6, 6],
        planner=eb.Planner(layout="aligned"),
        sizes=eb.Sizes(widths=(4,)),
    )
    turns = plan.trips[: plan.num_steps].sum(axis=0)
    loops = plan.shape.program.loops
    assert sum(turns[p] for p in range(len(loops)) if loops[p].sliced) >= 4


@pytest.mark.parametrize("remat", [False, True])
def test_a_cell_may_overflow_for_what_other_nodes_return(remat, quick_compiles):
    """The padding row reads the first result, at which the derivative is infinite."""

    @eb.cell
    def grow(params, x):
        return 1000 * jnp.exp(params["b"] * x)

    params = sample()
    params["b"] = jnp.ones(4)
    plan = assert_same_gradient(
        lambda params, word: grow(params, leaf(params, word)),
        params,
        [0, 1, 2],
        planner=eb.Planner(layout="aligned"),
        compiler=eb.Compiler(remat="always" if remat else "auto"),
        sizes=eb.Sizes(widths=(4,)),
    )
    assert any(loop.sliced for loop in plan.shape.program.loops)


def test_what_nobody_reads_has_no_cotangent(quick_compiles):
    """A norm's derivative at zero is infinite, and zero times infinity is not zero."""

    @eb.cell
    def step(params, x):
        return jnp.tanh(params["w"] @ x), jnp.sqrt((x * x).sum())

    def model(params, word):
        return step(params, leaf(params, word))[0]

    def model_of_both(params, word):
        state, norm = step(params, leaf(params, word))
        return {"state": state, "norm": norm}

    params = sample()
    params["table"] = params["table"].at[1].set(0)
    assert_same_gradient(model, params, [0, 1, 2, 1, 1])
    assert_same_gradient(
        model_of_both, params, [0, 1, 2, 1, 1], read=lambda output: output["state"]
    )


def test_an_output_of_the_model_is_read(quick_compiles):
    @eb.cell
    def step(params, x):
        return jnp.tanh(params["w"] @ x), (x * x).sum()

    def model(params, word):
        state, squares = step(params, leaf(params, word))
        return {"squares": squares, "last": step(params, state)[0]}

    assert_same_gradient(model, sample(), [0, 1, 2, 1])


def test_a_loop_may_have_no_derivative_where_none_is_asked_for(quick_compiles):
    @eb.cell
    def step(params, x):
        def body(state):
            return jnp.tanh(params["w"] @ state[0]), state[1] + 1

        found, _ = jax.lax.while_loop(lambda state: state[1] < 3, body, (x, 0))
        return jax.lax.stop_gradient(found) + params["b"] * x

    rng = np.random.default_rng(1)
    params = {  # large enough to be taped
        "table": jnp.asarray(rng.normal(size=(3, 8)), jnp.float32),
        "w": jnp.asarray(rng.normal(size=(8, 8)), jnp.float32),
        "b": jnp.asarray(rng.normal(size=8), jnp.float32),
    }
    assert_same_gradient(chain(step), params, [2, 1, 3])


def test_cells_may_print(quick_compiles):
    seen = []

    @eb.cell
    def step(params, x):
        product = params["w"] @ x
        jax.debug.callback(lambda value: seen.append(float(value)), product[0])
        return jnp.tanh(product)

    params, model = sample(), chain(step)
    assert_same_gradient(model, params, [2, 1, 2])
    jax.effects_barrier()
    seen.clear()
    batched = eb.batch(model, params=params)
    plan = batched.plan([2, 1, 2])
    jax.grad(lambda params: batched.apply(params, plan).sum())(params)
    jax.effects_barrier()
    forward_and_padding = list(seen)
    seen.clear()
    for each in [2, 1, 2]:
        model(params, each)
    jax.effects_barrier()
    assert set(np.round(seen, 4)) == set(np.round(forward_and_padding, 4))


def settle(w, y):
    """A loop that has no derivative."""
    return jax.lax.while_loop(
        lambda c: jnp.abs(c).sum() > 1.0, lambda c: 0.5 * jnp.tanh(w @ c), y
    )


def settled_parameter(params, x):
    w = jax.lax.stop_gradient(params["w"])
    return settle(w, jax.lax.stop_gradient(params["w"] @ x)) + params["w"] @ x


def settled_derived(params, x):
    w = jnp.sin(jax.lax.stop_gradient(params["w"])) + jnp.eye(4)
    return settle(w, jax.lax.stop_gradient(x)) + params["w"] @ x


@pytest.mark.parametrize("step", [settled_parameter, settled_derived])
@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("remat", [False, True])
def test_loops_of_what_has_no_gradient(step, packing, remat, quick_compiles):
    assert_same_gradient(
        chain(eb.cell(step, name="step")),
        sample(),
        [3, 1, 2],
        compiler=eb.Compiler(
            packing="auto" if packing else "never",
            remat="always" if remat else "auto",
        ),
        sizes=eb.Sizes(widths=(4,)),
    )


def test_loops_of_what_is_hoisted_and_has_no_gradient(quick_compiles):
    """The loop reads a hoisted product of inputs under `stop_gradient`."""

    @eb.cell
    def step(params, vector, state):
        start = jnp.tanh(jax.lax.stop_gradient(params["w"] @ vector))
        return settle(jnp.eye(4), start + jax.lax.stop_gradient(state)) + state

    def model(params, count):
        state = leaf(params, count)
        for k in range(count):
            state = step(params, np.float32([k, 1, -1, 0.5]), state)
        return state

    batched_plan = assert_same_gradient(
        model,
        sample(),
        [1, 2, 1],
        compiler=eb.Compiler(hoisting="always"),
        sizes=eb.Sizes(widths=(4,)),
    )
    assert len(batched_plan.shape.program.types.types) >= 3, "a part is hoisted"


def test_loops_of_inputs_alone(quick_compiles):
    """The loss is not differentiated with respect to inputs: the loops are constant.

    So are values in arenas of a shape and dtype that no parameter affects.
    """

    @eb.cell
    def first(vector):
        return 2.0 * vector.reshape(2, 2)

    @eb.cell
    def second(vector, other):
        return settle(jnp.eye(4), other + vector.ravel()).sum()

    @eb.cell
    def third(params, vector, number):
        return jnp.tanh(params["w"] @ settle(jnp.eye(4), vector)) * number

    def model(params, vector):
        return third(params, vector, second(first(vector), vector))

    rng = np.random.default_rng(0)
    instances = [rng.normal(size=4).astype(np.float32) for _ in range(3)]
    for compiler in (eb.Compiler(), eb.Compiler(packing="never", remat="always")):
        assert_same_gradient(model, sample(), instances, compiler=compiler)
