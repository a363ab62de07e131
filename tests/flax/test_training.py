"""Training with Flax cells equals unbatched training, step for step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from flax_trees import SIZES, TREES, LinenTree, NnxTree, tree_model

import edbatch as eb
import edbatch.flax

pytestmark = pytest.mark.usefixtures("quick_compiles")

STEPS, RATE = 4, 0.05
TARGETS = np.float32([0.5, -0.5, 0.2])
METHODS = ("leaf", "compose")


def error_of(hidden):
    return jnp.mean((hidden.sum(-1) - TARGETS) ** 2)


def unbatched_error(encode, params, key):
    hidden = []
    for place, tree in enumerate(TREES):
        with eb.cell_keys(key, place):
            hidden.append(encode(params, tree)[1])
    return error_of(jnp.stack(hidden))


def train(loss, params):
    """Runs Adam with a new key per step; returns the losses and the parameters."""
    optimizer = optax.adam(RATE)
    state, losses = optimizer.init(params), []
    gradient = jax.jit(jax.value_and_grad(loss))
    for step in range(STEPS):
        value, grads = gradient(params, jax.random.key(step))
        updates, state = optimizer.update(grads, state)
        params = optax.apply_updates(params, updates)
        losses.append(float(value))
    return losses, params


def assert_same(found, expected):
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def linen():
    """The linen model, its batched function and parameters, and a training result."""
    module = LinenTree()
    cells = [eb.flax.cell(module, each, rngs=("dropout",)) for each in METHODS]
    encode = tree_model(*cells)
    params = module.init(jax.random.key(1), np.int32(0))
    batched = eb.batch(encode, params=params, sizes=SIZES)
    plan = batched.plan(TREES)
    losses, trained = train(
        lambda params, key: error_of(batched.apply(params, plan, rng=key)[1]), params
    )
    return encode, batched, params, losses, trained


def test_linen_and_optax(linen):
    encode, batched, params, losses, trained = linen
    expected = train(lambda params, key: unbatched_error(encode, params, key), params)
    assert_same((losses, trained), expected)
    plan = batched.plan(TREES)
    start, end = (error_of(batched.apply(p, plan)[1]) for p in (params, trained))
    assert end < 0.7 * start


def test_a_checkpoint_of_orbax(linen, tmp_path):
    _, batched, params, _, trained = linen
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "step", trained)
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(
            tmp_path / "step", jax.eval_shape(lambda: params)
        )
    plan = batched.plan(TREES)
    jax.tree.map(
        np.testing.assert_array_equal,
        batched.apply(restored, plan),
        batched.apply(trained, plan),
    )


def test_nnx_and_its_optimizer(tmp_path):
    module = NnxTree(nnx.Rngs(1))
    encode = tree_model(*(eb.flax.cell(module, each) for each in METHODS))
    start = jax.tree.map(jnp.copy, nnx.state(module, nnx.Param))
    optimizer = nnx.Optimizer(module, optax.adam(RATE), wrt=nnx.Param)
    batched = eb.batch(encode, params=module, sizes=SIZES)

    @nnx.jit
    def step(module, optimizer, plan, key):
        def loss(module):
            return error_of(batched.apply(module, plan, rng=key)[1])

        value, grads = nnx.value_and_grad(loss)(module)
        optimizer.update(module, grads)
        return value

    plan = batched.plan(TREES)
    losses = [
        float(step(module, optimizer, plan, jax.random.key(k))) for k in range(STEPS)
    ]
    trained = nnx.state(module, nnx.Param)
    expected = train(lambda params, key: unbatched_error(encode, params, key), start)
    assert_same((losses, trained), expected)
    assert batched.compiles == 1
    end = error_of(batched(trained, TREES)[1])
    assert end < 0.7 * error_of(batched(start, TREES)[1])
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "step", trained)
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(tmp_path / "step", start)
    assert_same(restored, trained)


def test_what_a_call_changes_in_place_needs_the_jit_of_nnx():
    """JAX would pass a copy, and the change would be silently lost."""
    module = NnxTree(nnx.Rngs(1))
    optimizer = nnx.Optimizer(module, optax.adam(RATE), wrt=nnx.Param)
    average = nnx.metrics.Average()
    step = eb.jit(lambda module, state: 1.0)
    with eb.use_tiers("auto"):
        for state, name in ((optimizer, "Optimizer"), ({"m": average}, "Average")):
            with pytest.raises(eb.ArgumentError, match=rf"an nnx.{name} at state"):
                step(module, state)
        assert step(module, 1.0) == 1.0
