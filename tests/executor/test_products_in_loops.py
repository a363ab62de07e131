"""No product of a ready workload is computed outside the loop over its chunks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.models import WORKLOADS, get_workload

pytestmark = [pytest.mark.slow, pytest.mark.default_flags]


@pytest.mark.parametrize("count", [4, 32])
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", WORKLOADS)
def test_no_product_is_computed_outside_of_its_loop(name, gradient, count):
    """XLA hoists operations that it finds to be loop-invariant."""
    workload = get_workload(name)
    params = workload.init_params(jax.random.key(0), 64)
    batched = eb.batch(workload.model, "greedy", params=params)
    plan = batched.plan(workload.sample(np.random.default_rng(0), 32)[:count])

    def loss(params, plan):
        results = jax.tree.leaves(batched.apply(params, plan))
        floats = [x for x in results if jnp.issubdtype(x.dtype, jnp.floating)]
        return sum(jnp.square(each).sum() for each in floats)

    run = jax.jit(jax.grad(loss) if gradient else loss)
    entry = run.lower(params, plan).compile().as_text().partition("ENTRY")[2]
    assert " while(" in entry
    assert "dot" not in entry
