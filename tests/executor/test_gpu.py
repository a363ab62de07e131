"""GPU tests (run with -m gpu): the same results as on the CPU, and no arena copies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.executor.arenas import compiled_copies
from edbatch.models import get_workload

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def exact_products():
    """Computes products in float32, not in tf32."""
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no GPU here")
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture(params=["tree-lstm", "lattice-lstm", "bilstm-tagger"])
def workload(request):
    return get_workload(request.param)


def loss_of(batched, plan):
    def loss(params):
        return sum(
            jnp.sin(x).sum() for x in jax.tree.leaves(batched.apply(params, plan))
        )

    return loss


def test_outputs_and_gradients_are_those_of_the_cpu(workload):
    instances = workload.sample(np.random.default_rng(0), 12)
    results = []
    for platform in ("gpu", "cpu"):
        with jax.default_device(jax.devices(platform)[0]):
            params = workload.init_params(jax.random.key(0), 32)
            batched = eb.batch(workload.model, params=params)
            plan = batched.plan(instances)
            assert plan.shape.program.options.target.kind == platform
            outputs = batched.apply(params, plan)
            gradient = jax.jit(jax.grad(loss_of(batched, plan)))(params)
            results.append(jax.tree.map(np.asarray, (outputs, gradient)))
    for one, other in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_programs_run_more_than_once_and_copy_no_arena(workload):
    params = workload.init_params(jax.random.key(0), 32)
    batched = eb.batch(workload.model, params=params)
    rng = np.random.default_rng(1)
    run = jax.jit(batched.apply)
    for _ in range(3):
        instances = workload.sample(rng, 8)
        plan = batched.plan(instances)
        found = jax.tree.leaves(run(params, plan))
        again = jax.tree.leaves(run(params, plan))
        for one, other in zip(found, again, strict=True):
            np.testing.assert_array_equal(one, other)
    compiled = run.lower(params, plan).compile()
    copies = compiled_copies(compiled, plan.shape.program, entry=False)
    assert [line for line in copies if "copy(%broadcast" not in line] == []


def test_bfloat16_runs(workload):
    params = workload.init_params(jax.random.key(0), 32)
    half = jax.tree.map(
        lambda x: x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x, params
    )
    batched = eb.batch(workload.model, params=half)
    instances = workload.sample(np.random.default_rng(2), 6)
    for each in jax.tree.leaves(batched(half, instances)):
        assert jnp.isfinite(each.astype(jnp.float32)).all()
