"""Compares gradients of a batched model with those of the unbatched model."""

import jax
import jax.numpy as jnp
import numpy as np

import edbatch as eb
from edbatch.graph.context import jitted_cells


def assert_same_gradient(model, params, instances, read=lambda output: output, **how):
    """Compares gradients of a loss over `read(output)`; returns the plan."""
    batched = eb.batch(model, params=params, **how)
    plan = batched.plan(instances)

    def total(output):
        return sum(jnp.sin(each).sum() for each in jax.tree.leaves(read(output)))

    found = jax.grad(lambda params: total(batched.apply(params, plan)))(params)
    with jitted_cells():  # without it, a cell's loops are compiled for each call
        expected = jax.grad(
            lambda params: sum(total(model(params, each)) for each in instances)
        )(params)
    for name in expected:
        assert np.isfinite(expected[name]).all(), "the model itself has a gradient"
        np.testing.assert_allclose(
            found[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=name
        )
    return plan
