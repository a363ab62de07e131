"""Compares a server's answers with the results of the unbatched model."""

import jax
import numpy as np


def assert_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(
        jax.tree.leaves(found), jax.tree.leaves(expected), strict=True
    ):
        if isinstance(other, str):
            assert one == other
        else:
            np.testing.assert_allclose(one, np.asarray(other), rtol=1e-4, atol=1e-5)
