"""Arrays of NumPy whose memory JAX reads, at a time of its own."""

import jax
import jax.numpy as jnp
import numpy as np


def aligned(array):
    """A copy that JAX need not copy, since it begins at a multiple of 64 bytes."""
    others = []
    while (copied := np.array(array)).ctypes.data % 64:
        others.append(copied)
    return copied


@jax.jit
def _square_often(matrix):
    return jax.lax.fori_loop(0, 200, lambda _, each: jnp.tanh(each @ each), matrix)


def keep_busy():
    """Gives JAX work of some tenths of a second; what it does later, it does after."""
    matrix = _square_often(jnp.ones((200, 200))).block_until_ready()
    for _ in range(8):
        _square_often(matrix)
