"""Rules of `jax.custom_vjp` that are not linear, on what cells make of parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb

PARAMS = {"b": jnp.ones(3)}
INSTANCES = np.float32([1, 2, 3])


@jax.custom_vjp
def clipped(x):
    return x


clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))


@eb.cell
def at_once(params, x):
    return jnp.tanh(clipped(params["b"]) * x)


@eb.cell
def for_each(params, x):
    return jnp.tanh(clipped(params["b"] + 0 * x) * x)


def test_a_rule_on_what_depends_on_an_argument_runs_for_each_node():
    batched = eb.batch(for_each)
    found = jax.grad(lambda p: batched(p, INSTANCES).sum())(PARAMS)["b"]
    expected = sum(
        jax.grad(lambda p, x=x: for_each(p, x).sum())(PARAMS)["b"] for x in INSTANCES
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    eb.verify(batched, PARAMS, INSTANCES)


def test_verify_finds_a_rule_on_parameters_alone():
    with pytest.raises(eb.VerificationError, match=r"gradient of params\['b'\]"):
        eb.verify(eb.batch(at_once), PARAMS, INSTANCES)
