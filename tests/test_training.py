"""Tests `edbatch.training`: the same steps as an explicit loop, and its errors."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from trees import encode, make_params, sample_trees

import edbatch as eb
from edbatch.errors import TrainingError
from edbatch.training import Learned, Trainer

TREES = sample_trees(0, 9)
TARGETS = np.linspace(-1, 1, 9, dtype=np.float32)


@pytest.fixture(scope="module")
def batched():
    return eb.batch(encode, params=make_params(), sizes=eb.Sizes(widths=(4, 16)))


@pytest.fixture(scope="module")
def loss(batched):
    def loss(params, plan, targets):
        return jnp.mean((batched.apply(params, plan)[0] - targets[:, None]) ** 2)

    return loss


def minibatches(batched, epochs):
    return eb.Loader(batched, TREES, 2, drop_last=True).epochs(epochs)


def test_it_makes_the_steps_of_an_explicit_loop(batched, loss):
    optimizer = optax.adam(0.03)
    trainer = Trainer(loss, optimizer, make_params(), TARGETS)
    params, state = make_params(), optimizer.init(make_params())
    losses = []
    for item in minibatches(batched, 2):
        trainer.step(item)
        value, grads = jax.value_and_grad(loss)(params, item.plan, TARGETS[item.index])
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(float(value))
    assert len(trainer.losses) == len(losses) - 1  # the last step may still run
    learned = trainer.finish()
    np.testing.assert_allclose(trainer.losses, losses, rtol=1e-4)
    assert learned is trainer.learned
    for one, other in zip(
        jax.tree.leaves(learned), jax.tree.leaves((params, state)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
    assert trainer.finish() is learned
    assert len(trainer.losses) == len(losses) == 8


def test_an_optimizer_that_searches_along_a_line(batched, loss):
    optimizer = optax.chain(optax.clip(10.0), optax.lbfgs())
    trainer = Trainer(loss, optimizer, make_params(), TARGETS)
    params, state = make_params(), optimizer.init(make_params())

    @jax.jit
    def explicit(params, state, plan, targets):
        def of(params):
            return loss(params, plan, targets)

        value, grads = jax.value_and_grad(of)(params)
        updates, state = optimizer.update(
            grads, state, params, value=value, grad=grads, value_fn=of
        )
        return optax.apply_updates(params, updates), state, value

    losses = []
    for item in minibatches(batched, 1):
        trainer.step(item)
        params, state, value = explicit(params, state, item.plan, TARGETS[item.index])
        losses.append(float(value))
    trainer.finish()
    np.testing.assert_allclose(trainer.losses, losses, rtol=1e-3)


def test_instances_may_hold_their_targets(batched):
    def without_targets(params, plan, targets):
        assert targets is None
        return jnp.mean(batched.apply(params, plan)[0] ** 2)

    trainer = Trainer(without_targets, optax.sgd(0.1), make_params())
    for item in minibatches(batched, 1):
        trainer.step(item)
    trainer.finish()
    assert len(trainer.losses) == 4


def test_a_step_that_is_not_finite_is_named(batched, loss):
    targets = np.where(np.arange(9) == 4, np.float32("nan"), TARGETS)
    trainer = Trainer(loss, optax.sgd(0.1), make_params(), targets)
    with pytest.raises(TrainingError, match=r"finite, but the loss is nan .*large"):
        for item in minibatches(batched, 5):
            trainer.step(item)
            assert len(trainer.losses) == item.epoch * 4 + item.step
            found = item
    assert 4 in found.index


def test_a_loss_or_an_optimizer_that_is_none(loss):
    with pytest.raises(TrainingError, match=r"loss\(params, .*\) but this is 3"):
        Trainer(3, optax.sgd(0.1), make_params())
    with pytest.raises(TrainingError, match="the optimizer of a Trainer is a Gradient"):
        Trainer(loss, 0.1, make_params())


def padded(batched):
    return eb.Loader(batched, TREES, 4, shuffle=False)  # 4, 4 and 1 instances


def test_a_loss_that_leaves_out_padding_is_that_of_the_instances(batched, loss):
    def masked(params, plan, targets):
        errors = (batched.apply(params, plan)[0] - targets[:, None]) ** 2
        return jnp.mean(errors, where=plan.instance_mask[:, None])

    own, other = (
        Trainer(each, optax.sgd(0.1), make_params(), TARGETS) for each in (masked, loss)
    )
    for item in padded(batched):
        own.step(item)
    for item in eb.Loader(batched, TREES, 4, shuffle=False, pad=False):
        other.step(item)
    own.finish(), other.finish()
    np.testing.assert_allclose(own.losses, other.losses, rtol=1e-5)


def test_a_loss_that_counts_padding_is_told(batched, loss):
    trainer = Trainer(loss, optax.sgd(0.1), make_params(), TARGETS)
    with pytest.raises(TrainingError, match=r"padding, .* where=plan\.instance_mask"):
        for item in padded(batched):
            trainer.step(item)
    assert len(trainer.finish().params) == len(make_params())


def test_parameters_in_half_precision_are_finite_though_their_squares_are_not():
    @eb.cell
    def product(params, x):
        return (params @ x).astype(jnp.float32)

    params = jnp.full((600, 600), 0.5, jnp.float16)
    batched = eb.batch(product, params=params)

    def loss(params, plan, targets):
        return jnp.mean(batched.apply(params, plan) ** 2)

    trainer = Trainer(loss, optax.sgd(1e-3), params)
    for item in eb.Loader(batched, np.full((4, 600), 1e-3, np.float16), 2):
        trainer.step(item)
    trainer.finish()
    assert np.isfinite(trainer.losses).all()


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_an_instance_without_a_target_is_told_about(batched, loss, kind):
    """JAX would use the last target for all out-of-range instances."""
    trainer = Trainer(loss, optax.adam(0.03), make_params(), kind(TARGETS[:4]))
    with pytest.raises(TrainingError, match="have 4 rows but the loader has an inst"):
        for item in minibatches(batched, 1):
            trainer.step(item)


@pytest.mark.parametrize("targets", [[1.0] * 9, {"score": TARGETS}, tuple(TARGETS)])
def test_targets_are_an_array(loss, targets):
    with pytest.raises(TrainingError, match=r"array of it with np\.asarray, or"):
        Trainer(loss, optax.adam(0.03), make_params(), targets)


def test_one_number_is_no_array_of_targets(loss):
    with pytest.raises(TrainingError, match=r"single number .*let a loss"):
        Trainer(loss, optax.adam(0.03), make_params(), np.array(1.0))


def test_a_step_takes_a_minibatch_and_what_was_learned(batched, loss):
    trainer = Trainer(loss, optax.sgd(0.1), make_params(), TARGETS)
    [item, *_] = minibatches(batched, 1)
    with pytest.raises(
        TrainingError, match=r"a step of a Trainer is a Minibatch of eb"
    ):
        trainer.step(item.plan)
    trainer.learned = tuple(trainer.learned)  # as some file formats restore it
    with pytest.raises(TrainingError, match=r"is edbatch\.training\.Learned\(params"):
        trainer.step(item)
    trainer.learned = Learned(*trainer.learned)
    trainer.step(item)
    assert len(trainer.finish()) == 2


@pytest.mark.parametrize("tables", [None, "table"])
def test_integers_among_the_parameters_are_named(tables):
    params = {"table": jnp.ones((3, 2)), "sizes": [jnp.ones(2), jnp.arange(2)]}
    with pytest.raises(TrainingError, match=r"params\['sizes'\]\[1\] has the .* int32"):
        Trainer(lambda params, plan, _: 0.0, optax.sgd(0.1), params, tables=tables)
