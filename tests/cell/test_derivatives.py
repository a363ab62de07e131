"""Which cells have slopes that may be infinite."""

import jax
import jax.numpy as jnp
import pytest

from edbatch.cell.derivatives import may_have_poles
from edbatch.cell.jaxpr import trace


def normalize(x):
    mean = x.mean()
    return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean() + 1e-6)


def gates(x, mask):
    """As in a lattice LSTM: one of the terms is never masked."""
    weight = jnp.exp(x)
    return x / (weight + jax.lax.select(mask, weight, jnp.zeros(4)))


FINITE = {
    "softmax": jax.nn.softmax,
    "normalisation": normalize,
    "gates": lambda x: gates(x, x > 0),
    "by a literal": lambda x: x / 2.0,
    "root of a sum": lambda x: jnp.sqrt((x * x).sum() + 1e-6),
    "computed again": jax.checkpoint(jnp.tanh),
    "stopped": lambda x: jax.lax.stop_gradient(jnp.sqrt(x)) + x,
}
POLES = {
    "norm": jnp.linalg.norm,
    "ratio": lambda x: x / x.sum(),
    "log": jnp.log,
    "power": lambda x: x**0.3,
    "of zero": lambda x: x / jnp.maximum(x, 0.0),
    "masked": lambda x: x / jnp.where(x > 0, jnp.exp(x), 0.0),
    "arc": jnp.arcsin,
    "log, computed again": jax.checkpoint(jnp.log),
    "in a loop": lambda x: jax.lax.scan(lambda c, _: (jnp.sqrt(c), 0), x, None, 2)[0],
}


@pytest.mark.parametrize("name", [*FINITE, *POLES])
def test_poles(name):
    function = (FINITE | POLES)[name]
    body, _ = trace(function, jnp.ones(4))
    assert may_have_poles(body.equations, body.outputs) == (name in POLES)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_literal_that_is_no_number_is_no_warning(dtype):
    def above(x):  # as `jnp.var` writes the variance of no elements
        nothing = jax.lax.full_like(x, jnp.nan)
        return jax.lax.rsqrt(jax.lax.select(x > 0, x, nothing))

    body, _ = trace(above, jnp.ones((), dtype))
    assert may_have_poles(body.equations, body.outputs)
