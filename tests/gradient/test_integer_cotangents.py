"""Tests that integers on a gradient's path have no cotangents, at no cost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb


@eb.cell
def start(params, word, feature):
    return params["table"][word] * feature, word + params["shift"]


@eb.cell
def follow(params, state, count, rng):
    """Reads an integer operand and parameter and a key; one derivative has a pole."""
    noise = jax.random.normal(rng, state.shape)
    row = params["table"][(count + params["shift"]) % 3]
    length = jnp.sqrt(jnp.sum(state**2))
    return jnp.tanh(state @ params["w"] + row) + 0.1 * noise * length, count + 1


def model(params, instance):
    word, feature, steps = instance
    state, count = start(params, word, feature)
    for _ in range(steps):
        state, count = follow(params, state, count)
    return {"state": state, "count": count}


@pytest.mark.parametrize("remat", ["auto", "always"])
@pytest.mark.parametrize("packing", ["auto", "never"])
def test_beside_poles_and_keys(packing, remat, quick_compiles):
    rng = np.random.default_rng(0)
    params = {
        "table": jnp.asarray(rng.normal(size=(3, 8)), jnp.float32),
        "w": jnp.asarray(rng.normal(size=(8, 8)), jnp.float32),
        "shift": jnp.int32(1),
    }
    instances = [
        (k % 3, rng.normal(size=8).astype(np.float32), k % 4) for k in range(6)
    ]
    compiler = eb.Compiler(packing=packing, remat=remat)
    batched = eb.batch(model, compiler=compiler, sizes=eb.Sizes(widths=(4,)))
    eb.verify(batched, params, instances, rng=jax.random.key(3))
