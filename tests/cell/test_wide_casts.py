"""Tests the removal of casts to half precision from functions of parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from edbatch.cell.jaxpr import trace
from edbatch.cell.wide_casts import without_casts


@pytest.mark.parametrize(
    ("function", "dtypes"),
    [
        (lambda x: x.T, ["float32"]),
        (lambda x: (x[1:], jnp.concatenate([x, x])), ["float32", "float32"]),
        # Operations that bring in their own numbers or compute keep the cast.
        (lambda x: jnp.pad(x, ((1, 0), (0, 2))), ["bfloat16"]),
        (lambda x: jnp.maximum(x, 0.0).T, ["bfloat16"]),
        (lambda x: (x + x, -x), ["bfloat16", "float32"]),
    ],
    ids=["moved", "cut and joined", "padded", "maximum", "sum"],
)
def test_what_moves_casts_is_wide_and_what_computes_is_not(function, dtypes):
    def cast(x):
        return function(x.astype(jnp.bfloat16))

    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2)), jnp.float32)
    body, _ = trace(cast, jax.ShapeDtypeStruct(x.shape, x.dtype))
    found = without_casts(body.inputs, body.equations, body.outputs, body.constants)(x)
    assert [each.dtype.name for each in found] == dtypes
    for own, other in zip(found, jax.tree.leaves(cast(x)), strict=True):
        narrow = np.asarray(own.astype(jnp.bfloat16), np.float32)
        np.testing.assert_array_equal(narrow, np.asarray(other, np.float32))
        if own.dtype == jnp.float32:  # not rounded in between
            assert not np.array_equal(np.asarray(own), narrow)
