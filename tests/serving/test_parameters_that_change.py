"""A server keeps the parameters as they were when it received them."""

import jax.numpy as jnp
import numpy as np
import pytest
from shared_memory import aligned, keep_busy

import edbatch as eb


@eb.cell
def dot(params, x):
    return jnp.sum(params["w"] * x)


def model(params, x):
    return dot(params, x)


def asking(params, x):
    return dot(params, x) if eb.value(dot(params, x)) > 0 else dot(params, x * 0)


ONES = np.ones(256, np.float32)


@pytest.mark.parametrize("model", [model, asking])
def test_arrays_of_numpy_may_change_later(model):
    first, second = ({"w": aligned(ONES * scale)} for scale in (1, 2))
    keep_busy()
    with eb.Server(eb.batch(model), first) as server:
        first["w"][:] = -7
        assert server.submit_nowait(ONES).result() == 256
        keep_busy()
        server.swap_params(second)
        second["w"][:] = -7
        assert server.submit_nowait(ONES).result() == 512
