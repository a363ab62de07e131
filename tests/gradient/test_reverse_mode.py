"""Tests that reverse mode works in every combination and forward mode is refused."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trees import encode, make_params

import edbatch as eb
from edbatch.gradient.reverse_mode import reverse_only

TREES = [((0, 1), 2), (3, 4), 0]
RULE = (
    "a batched function has derivatives in reverse mode only, by jax.grad, .* jax.jacr"
    "ev, but this is forward mode, as in .*; use one of the reverse-mode functions, or"
)


@pytest.fixture(scope="module")
def params():
    return make_params()


@pytest.fixture(scope="module")
def loss(params):
    batched = eb.batch(encode, params=params, sizes=eb.Sizes(widths=(4,)))
    plan = batched.plan(TREES)
    return lambda own: sum(
        leaf.sum() for leaf in jax.tree.leaves(batched.apply(own, plan))
    )


def twice(loss, params):
    """The loss in a scan, whose derivative JAX splits by partial evaluation."""
    step = lambda total, _: (total + loss(params), None)  # noqa: E731
    return jax.lax.scan(step, jnp.float32(0), None, length=2)[0]


REVERSE = {
    "jit": lambda loss, params: jax.jit(jax.grad(loss))(params),
    "value": lambda loss, params: jax.value_and_grad(loss)(params)[1],
    "vjp": lambda loss, params: jax.vjp(loss, params)[1](jnp.float32(1))[0],
    "jacrev": lambda loss, params: jax.jacrev(loss)(params),
    "checkpoint": lambda loss, params: jax.grad(jax.checkpoint(loss))(params),
    "mapped": lambda loss, params: jax.tree.map(
        lambda each: each[0],
        jax.vmap(jax.grad(loss))(jax.tree.map(lambda each: each[None], params)),
    ),
    "of a map": lambda loss, params: jax.grad(
        lambda own: jax.vmap(lambda x: loss(own) * x)(jnp.ones(1))[0]
    )(params),
    "loop": lambda loss, params: jax.tree.map(
        lambda each: each / 2, jax.grad(partial(twice, loss))(params)
    ),
}


@pytest.mark.parametrize("name", REVERSE)
def test_reverse_mode_passes(loss, params, name):
    expected = jax.grad(loss)(params)
    found = REVERSE[name](loss, params)
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6),
        found,
        expected,
    )


def linearized(loss, params):
    _, tangent = jax.linearize(loss, params)
    return tangent(params)


FORWARD = {
    "jvp": lambda loss, params: jax.jvp(loss, (params,), (params,)),
    "in jit": lambda loss, params: jax.jit(lambda p: jax.jvp(loss, (p,), (p,)))(params),
    "of jit": lambda loss, params: jax.jvp(jax.jit(loss), (params,), (params,)),
    "jacfwd": lambda loss, params: jax.jacfwd(loss)(params),
    "linearize": linearized,
    "hessian": lambda loss, params: jax.hessian(loss)(params),
}


@pytest.mark.parametrize("name", FORWARD)
def test_forward_mode_is_refused(loss, params, name):
    with pytest.raises(eb.PlanError, match=RULE):
        FORWARD[name](loss, params)


def test_only_what_has_a_tangent_is_refused():
    def model(x, y):
        return reverse_only(x) * y

    value, tangent = jax.jvp(partial(model, jnp.float32(3)), (2.0,), (1.0,))
    assert (value, tangent) == (6.0, 3.0)
    assert reverse_only({"a": 1}) == {"a": 1}
    jaxpr = jax.make_jaxpr(lambda x: jax.grad(lambda x: reverse_only(x) * x)(x))(2.0)
    assert "tangent_of" not in str(jaxpr)


def test_a_scan_over_plans_keeps_its_parameters_once():
    @eb.cell
    def product(params, x):
        return params @ x

    params = jnp.ones((5, 5))
    batched = eb.batch(product, params=params)
    plans = [batched.plan([np.full(5, k, np.float32)] * 3, pad_to=3) for k in range(7)]
    stacked = jax.tree.map(lambda *own: jnp.stack(own), *plans)

    def loss(params):
        def step(total, plan):
            return total + batched.apply(params, plan).sum(), None

        return jax.lax.scan(step, jnp.float32(0), stacked)[0]

    found = jax.grad(loss)(params)
    assert found.tolist() == [[3 * sum(range(7))] * 5] * 5
    assert "f32[5,5]" in str(jax.make_jaxpr(jax.grad(loss))(params))
    assert "f32[7,5,5]" not in str(jax.make_jaxpr(jax.grad(loss))(params))


@eb.cell
def repeated(params, x, times):
    def step(state):
        return state[0] + 1, params * state[1]

    return jax.lax.while_loop(lambda state: state[0] < times, step, (0, x))[1]


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, eb.jit])
@pytest.mark.parametrize("tier", ["coarse", "fine"])
def test_a_cell_that_has_no_derivative_is_named(wrap, tier):
    batched = eb.batch(lambda params, x: repeated(params, *x), params=jnp.float32(2))
    instances = [(1.0, 3), (0.5, 2)]
    with eb.use_tiers(tier):
        assert batched(jnp.float32(2), instances).tolist() == [8, 2]
        plan = batched.plan(instances)
        slope = wrap(jax.grad(lambda params: batched.apply(params, plan).sum()))
        with pytest.raises(
            eb.CellError,
            match=r"cell 'repeated' \(test_reverse_mode\.py:\d+\) cannot be differen"
            r"tiated: ValueError: Reverse-mode .*while_loop.*; use only operations",
        ):
            slope(jnp.float32(2))


@jax.custom_vjp
def doubled(x):
    return 2 * x


def raising(_, cotangent):
    raise KeyError("no such rule")


doubled.defvjp(lambda x: (2 * x, None), raising)
ruled = eb.cell(lambda params, x: doubled(params * x), name="ruled")


@pytest.mark.parametrize("wrap", [lambda f: f, eb.jit])
def test_a_cell_whose_own_rule_raises_is_named(wrap):
    batched = eb.batch(ruled, params=jnp.float32(2))
    plan = batched.plan([1.0, 3.0])
    slope = wrap(jax.grad(lambda params: batched.apply(params, plan).sum()))
    with pytest.raises(
        eb.CellError,
        match=r"cell 'ruled' .*KeyError: .*no such rule.* \(test_reverse_mode\.py:\d+\)"
        r".*; this was raised by a rule of differentiation that the cell calls",
    ):
        slope(jnp.float32(2))
