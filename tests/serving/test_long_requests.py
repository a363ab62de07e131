"""Requests that run in so many parts that edbatch watches their handles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.waves.in_flight import LONG


@eb.cell
def step(params, state):
    return jnp.tanh(params @ state)


def decode(params, count):
    """Reads every state with `eb.value`; returns one more that it did not read."""
    state = np.ones(8, np.float32)
    for _ in range(count):
        state = step(params, state)
        eb.value(state)
    return step(params, state)


def decode_and_return_what_it_saw(params, count):
    state = np.ones(8, np.float32)
    for _ in range(count):
        state = step(params, state)
        eb.value(state)
    return state


@pytest.mark.parametrize("model", [decode, decode_and_return_what_it_saw])
@pytest.mark.parametrize("many", [1, 3, 21])
def test_long_requests_end_beside_others(model, many, quick_compiles):
    params = jax.random.normal(jax.random.key(0), (8, 8)) / 8**0.5
    lengths = [LONG - 1, *[LONG + 12 - k % 3 for k in range(many - 1)]]
    with eb.Server(eb.batch(model), params) as server:
        for _ in range(2):  # the second time on the rows of the first
            futures = [server.submit_nowait(each) for each in lengths]
            found = [each.result(60) for each in futures]
            for one, count in zip(found, lengths, strict=True):
                np.testing.assert_allclose(
                    one, model(params, count), rtol=1e-5, atol=1e-6
                )
        stats = server.stats()
        assert stats.answered == 2 * many and stats.failed == 0
