"""A server stays in the process that made it: it cannot be pickled or copied."""

import copy
import pickle

import jax.numpy as jnp
import pytest

import edbatch as eb


@eb.cell
def double(params, x):
    return params * x


@pytest.mark.parametrize("make", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_server_is_neither_pickled_nor_copied(make):
    with eb.Server(eb.batch(double), jnp.float32(2)) as server:
        with pytest.raises(eb.PickleError, match=r"make an eb\.Server of them in"):
            make(server)
        assert server.submit_nowait(3.0).result() == 6
