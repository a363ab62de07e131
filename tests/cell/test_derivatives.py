"""Tests which cells may have infinite derivatives."""

import jax
import jax.numpy as jnp
import pytest

from edbatch.cell.cell_graph import trace_cell
from edbatch.cell.derivatives import may_have_poles
from edbatch.cell.jaxpr import equations_of, trace
from edbatch.cell.value_ranges import infinite_constants


def normalize(x):
    mean = x.mean()
    return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean() + 1e-6)


def gates(x, mask):
    """A denominator as in a lattice LSTM: one of its terms is never masked."""
    weight = jnp.exp(jax.nn.sigmoid(x))
    return x / (weight + jax.lax.select(mask, weight, jnp.zeros(4)))


def attention(x, keys):
    """A hand-written softmax that first subtracts the maximum of each row."""
    scores = keys * x[:, None]
    weights = jnp.exp(scores - scores.max(axis=1, keepdims=True))
    return (weights / weights.sum(axis=1, keepdims=True)) @ keys


def largest_of_columns(x):
    """Subtracts the maximum of each column in place of each row's."""
    scores = jnp.outer(x, x)
    return jnp.exp(scores - scores.max(axis=0)[:, None])


def sums_of_columns(x):
    """Subtracts the maximum of the whole array, not of each column."""
    scores = jnp.outer(x, x)
    return jnp.log(jnp.exp(scores - scores.max()).sum(axis=0))


KEYS = jnp.ones((4, 4))
MASK = jnp.where(jnp.eye(4) > 0, -jnp.inf, 0.0)


FINITE = {
    "softmax": jax.nn.softmax,
    "normalisation": normalize,
    "gates": lambda x: gates(x, x > 0),
    "by a literal": lambda x: x / 2.0,
    "root of a sum": lambda x: jnp.sqrt((x * x).sum() + 1e-6),
    "computed again": jax.checkpoint(jnp.tanh),
    "stopped": lambda x: jax.lax.stop_gradient(jnp.sqrt(x)) + x,
    "logarithm of a softmax": jax.nn.log_softmax,
    "sum of exponentials": lambda x: jax.nn.logsumexp(x) * x,
    "attention": lambda x: attention(x, KEYS),
    "exponential linear unit": lambda x: jax.nn.elu(x) * x,
    "power": lambda x: (x * x + 1) ** 0.3,
    "noise": lambda x: jax.random.uniform(jax.random.key(0), (4,)) * x,
    "bell": lambda x: jnp.exp(-0.5 * x**2) * x,
    "exponential of a sigmoid": lambda x: jnp.log(jnp.exp(jax.nn.sigmoid(x))),
    "small, but no zero": lambda x: jnp.log(
        jnp.clip(x, 1e-18, 1.0) * jnp.clip(x[::-1], 1e-18, 1.0)
    ),
    "roots of what is above zero": lambda x: (
        x / (jnp.sqrt((x * x).sum() + 1e-6) * jnp.sqrt((x[::-1] * x).sum() ** 2 + 1e-6))
    ),
    "reciprocal roots": lambda x: jnp.log(
        jax.lax.rsqrt(jnp.clip(x, 1e-6, 1e6)) * jnp.sqrt(jnp.clip(x, 1e-6, 1e6))
    ),
    "cast": lambda x: jnp.log(jnp.maximum(x, 1e-20).astype(jnp.bfloat16)),
    "part of a softmax's denominator": lambda x: jnp.log(
        jnp.exp(x - x.max()).sum() * 1e-3
    ),
    "squares that overflow": lambda x: (
        x
        + jax.lax.stop_gradient(
            jnp.square(jnp.square(jnp.square(jnp.square(jnp.clip(x, -1e38, 1e38)))))
        )
    ),
    "infinite, added": lambda x: jnp.where(x > 0, x, -jnp.inf) + x,
    "largest of masked": lambda x: jnp.maximum(x, -jnp.inf) * x,
}
POLES = {
    "exponential": jnp.exp,
    "power of two": lambda x: jnp.power(2.0, x),
    "above infinity": lambda x: jnp.minimum(x, -jnp.inf) * x,
    "product of one": lambda x: jnp.where(x > 0, 1.0, jnp.inf) * x,
    "masked softmax": lambda x: jax.nn.softmax(jnp.where(x > 0, x, -jnp.inf)),
    "mask of inf": lambda x: jax.nn.softmax(jnp.outer(x, x) + MASK),
    "logarithm of a sum": lambda x: jnp.log(jnp.exp(x).sum()),
    "softmax by hand": lambda x: jnp.exp(x) / jnp.exp(x).sum(),
    "sums of other axes": sums_of_columns,
    "largest of other axes": largest_of_columns,
    "steep": lambda x: jnp.exp(1000 * jnp.tanh(x)),
    "product": lambda x: KEYS @ jnp.where(x > 0, x, jnp.inf) * x,
    "norm": jnp.linalg.norm,
    "ratio": lambda x: x / x.sum(),
    "log": jnp.log,
    "root": lambda x: x**0.3,
    "square that underflows": lambda x: jnp.log(jnp.maximum(x, 1e-30) ** 2),
    "product that underflows": lambda x: jnp.log(
        jnp.clip(x, 1e-25, 1.0) * jnp.clip(x[::-1], 1e-25, 1.0)
    ),
    "quotient that underflows": lambda x: jnp.log(
        jnp.clip(x, 1e-25, 1.0) / jnp.clip(x, 1.0, 1e25)
    ),
    "cast that underflows": lambda x: jnp.log(
        jnp.maximum(x, 1e-20).astype(jnp.float16)
    ),
    "below the smallest normal number": lambda x: jnp.log(jnp.maximum(x, 1e-44)),
    "of zero": lambda x: x / jnp.maximum(x, 0.0),
    "masked": lambda x: x / jnp.where(x > 0, jnp.exp(x), 0.0),
    "arc": jnp.arcsin,
    "log, computed again": jax.checkpoint(jnp.log),
    "in a loop": lambda x: jax.lax.scan(lambda c, _: (jnp.sqrt(c), 0), x, None, 2)[0],
}


@pytest.mark.parametrize("name", [*FINITE, *POLES])
def test_poles(name):
    function = (FINITE | POLES)[name]
    graph, _ = trace_cell(lambda params, x: function(x), (), [jnp.ones(4)])
    infinite = infinite_constants(graph.constants)
    found = may_have_poles(equations_of(graph.nodes), graph.outputs, infinite)
    assert found == (name in POLES)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_literal_that_is_no_number_is_no_warning(dtype):
    def above(x):  # as `jnp.var` does for the variance of no elements
        nothing = jax.lax.full_like(x, jnp.nan)
        return jax.lax.rsqrt(jax.lax.select(x > 0, x, nothing))

    body, _ = trace(above, jnp.ones((), dtype))
    assert may_have_poles(body.equations, body.outputs)
