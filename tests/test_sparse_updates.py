"""Tests optimizer steps on rows of tables."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec
from word_tables import (
    assert_close,
    encode,
    loss_of,
    new_params,
    sample,
    to_dense,
)

import edbatch as eb
from edbatch import sparse
from edbatch.errors import PlanError
from edbatch.training import Trainer

BATCHED = eb.batch(encode, params=new_params(), sizes=eb.Sizes(widths=(8,)))


def random_rows(seed, num_rows=9, width=4):
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, num_rows + 1, 15).astype(np.int32)
    values = rng.normal(size=(15, width)).astype(np.float32)
    values[rows == num_rows] = 0
    return sparse.SparseRows(jnp.asarray(rows), jnp.asarray(values), num_rows)


def test_sum_duplicates():
    found = random_rows(0)
    once = jax.jit(lambda each: each.sum_duplicates())(found)
    assert_close(once.to_dense(), found.to_dense())
    rows = np.asarray(once.rows)
    real = rows[rows < 9]
    assert len(set(real.tolist())) == len(real)
    assert sorted(set(np.asarray(found.rows).tolist()) - {9}) == sorted(real.tolist())


def test_repr():
    assert repr(random_rows(0)) == "SparseRows(15 rows of float32[9, 4])"


def random_gradient(seed):
    rng = np.random.default_rng(seed)
    bias = jnp.asarray(rng.normal(size=4), jnp.float32)
    return {"table": random_rows(seed), "bias": bias, "more": [random_rows(seed + 9)]}


def random_state(optimizer):
    rng = np.random.default_rng(0)
    shapes = {"table": (9, 4), "bias": (4,), "more": [(9, 4)]}
    params = jax.tree.map(
        lambda shape: jnp.asarray(rng.normal(size=shape), jnp.float32),
        shapes,
        is_leaf=lambda each: isinstance(each, tuple),
    )
    return params, optimizer.init(params)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.sgd(0.1),
        optax.adagrad(0.1),
        optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1)),
    ],
    ids=["sgd", "adagrad", "clipped"],
)
def test_where_zeros_change_nothing_it_is_what_dense_gradients_do(optimizer):
    params, state = expected, expected_state = random_state(optimizer)
    update = jax.jit(functools.partial(sparse.update, optimizer))
    for seed in range(4):
        gradient = random_gradient(seed)
        params, state = update(gradient, state, params)
        updates, expected_state = optimizer.update(
            to_dense(gradient), expected_state, expected
        )
        expected = optax.apply_updates(expected, updates)
        assert_close((params, state), (expected, expected_state))


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.adam(0.1),
        optax.adamw(0.1),
        optax.sgd(0.1, 0.9),
        optax.chain(
            optax.add_decayed_weights(
                0.1, mask={"table": True, "bias": False, "more": [False]}
            ),
            optax.adam(optax.linear_schedule(0.1, 0.01, 3)),
        ),
        optax.masked(optax.adam(0.1), {"table": True, "bias": True, "more": [False]}),
    ],
    ids=["adam", "adamw", "momentum", "decayed", "masked"],
)
def test_optimizers_move_only_the_rows_that_were_looked_up(optimizer):
    params, state = expected, expected_state = random_state(optimizer)
    update = jax.jit(functools.partial(sparse.update, optimizer))
    for seed in range(4):
        gradient = random_gradient(seed)
        params, state = update(gradient, state, params)

        def keep(new, old, rows):
            if not isinstance(rows, sparse.SparseRows):
                return new
            touched = np.zeros(10, bool)
            touched[np.asarray(rows.rows)] = True
            return jnp.where(touched[:9, None], new, old)

        updates, after = optimizer.update(to_dense(gradient), expected_state, expected)
        moved = optax.apply_updates(expected, updates)
        expected = jax.tree.map(keep, moved, expected, gradient)
        # Finds the table of each state leaf by its place in a copy of the parameters.
        expected_state = jax.tree_util.tree_map_with_path(
            lambda path, new, old, gradient=gradient: keep(
                new, old, owner_of(path, gradient)
            ),
            after,
            expected_state,
        )
        assert_close((params, state), (expected, expected_state))


def owner_of(path, gradient):
    """The gradient that a leaf of an optimizer's state belongs to."""
    keys = [getattr(key, "key", None) for key in path]
    if "table" in keys:
        return gradient["table"]
    return gradient["more"][0] if "more" in keys else None


def test_an_array_by_itself():
    optimizer, table = optax.adam(0.1), jnp.ones((9, 4))
    gradient = random_rows(1)
    found, _ = sparse.update(optimizer, gradient, optimizer.init(table), table)
    rows = np.asarray(gradient.rows)
    moved = np.zeros(10, bool)
    moved[rows] = True
    assert (np.asarray(found != 1).any(1) == moved[:9]).all()


def test_arrays_of_numpy_as_a_checkpoint_holds_them():
    optimizer, gradient = optax.adagrad(0.1), random_gradient(1)
    params, state = random_state(optimizer)
    expected = sparse.update(optimizer, gradient, state, params)
    found = sparse.update(optimizer, gradient, *jax.device_get((state, params)))
    assert_close(found, expected)


def test_a_gradient_without_rows_moves_nothing():
    batched = eb.batch(encode, params=new_params())
    params, plan = new_params(), batched.plan([1, (2, 3)])  # no bag looks up labels
    step = sparse.value_and_grad(loss_of(batched), ("embedding", "labels"))
    optimizer = optax.adam(0.1)
    moved, _ = sparse.update(
        optimizer, step(params, plan)[1], optimizer.init(params), params
    )
    np.testing.assert_array_equal(moved["labels"], params["labels"])
    assert not np.array_equal(moved["embedding"], params["embedding"])


def test_dense_gradients_alone():
    optimizer = optax.adam(0.1)
    params, state = random_state(optimizer)
    gradient = to_dense(random_gradient(0))
    found = sparse.update(optimizer, gradient, state, params)
    updates, expected = optimizer.update(gradient, state, params)
    assert_close(found, (optax.apply_updates(params, updates), expected))


def test_state_of_other_shapes_is_refused():
    optimizer = optax.adafactor(0.1, min_dim_size_to_factor=2)
    params, state = random_state(optimizer)
    with pytest.raises(PlanError, match="keeps an array like the table"):
        sparse.update(optimizer, random_gradient(0), state, params)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.chain(optax.clip_by_block_rms(0.01), optax.sgd(0.1)),
        optax.chain(optax.adaptive_grad_clip(0.01), optax.sgd(0.1)),
        optax.chain(optax.add_noise(0.1, 0.5, 3), optax.sgd(0.1)),
        optax.lamb(0.1),
        optax.lars(0.1),
        optax.lamb(optax.linear_schedule(0.0, 0.1, 10_000)),
        optax.masked(optax.lamb(0.1), {"table": True, "bias": False, "more": [False]}),
        optax.contrib.prodigy(0.1),
        optax.contrib.prodigy(1e-4),
        optax.contrib.dadapt_adamw(),
        optax.contrib.dowg(),
        optax.contrib.dowg(0.1),
        optax.chain(optax.clip(1.0), optax.contrib.mechanize(optax.sgd(1e-5))),
        optax.contrib.muon(0.1),
        optax.contrib.mechanize(optax.sgd(0.1)),
    ],
)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_what_depends_on_other_rows_is_refused(optimizer, wrap):
    params, state = random_state(optimizer)
    step = wrap(functools.partial(sparse.update, optimizer))
    for _ in range(2):
        with pytest.raises(PlanError, match="updates a row differently than with the"):
            step(random_gradient(1), state, params)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.MultiSteps(optax.sgd(0.1), 2),
        optax.MultiSteps(optax.adam(0.1), 2).gradient_transformation(),
        optax.chain(optax.apply_every(2), optax.sgd(0.1)),
        optax.masked(
            optax.apply_every(2), {"table": True, "bias": False, "more": [False]}
        ),
        optax.MultiSteps(optax.sgd(0.1), lambda step: jnp.where(step > 5, 1, 2)),
        optax.MultiSteps(optax.sgd(0.1), lambda step: jnp.where(step > 5, 2, 1)),
        optax.MultiSteps(optax.apply_every(2), 1),
        optax.MultiSteps(
            optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation(), 1
        ),
    ],
)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_gradients_of_several_steps_are_refused(optimizer, wrap):
    """Rows of the first step would wait until a later step looks them up again."""
    params, state = random_state(optimizer)
    step = wrap(functools.partial(sparse.update, optimizer))
    with pytest.raises(PlanError, match="rows that were looked up in an earlier step"):
        step(random_gradient(1), state, params)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
@pytest.mark.parametrize(
    "make",
    [
        lambda one: optax.chain(optax.apply_every(1), one),
        lambda one: optax.MultiSteps(one, 1),
        lambda one: optax.MultiSteps(one, 1).gradient_transformation(),
        lambda one: optax.MultiSteps(
            one,
            1,
            should_skip_update_fn=functools.partial(
                optax.skip_large_updates, max_squared_norm=1e3
            ),
        ),
    ],
)
def test_gradients_of_one_step_are_not_added_up(wrap, make):
    one = optax.adam(0.1)
    alike = make(one)
    found, expected = random_state(alike), random_state(one)
    for seed in range(3):
        gradient = random_gradient(seed)
        found = wrap(functools.partial(sparse.update, alike))(gradient, *found[::-1])
        expected = wrap(functools.partial(sparse.update, one))(
            gradient, *expected[::-1]
        )
    assert_close(found[0], expected[0])


def test_a_trial_may_transfer_what_the_user_may_not():
    optimizer = optax.sgd(0.1)
    params, state = random_state(optimizer)
    gradient = random_gradient(0)
    with jax.transfer_guard("disallow"):
        step = jax.jit(functools.partial(sparse.update, optimizer))
        step(gradient, state, params)


def test_state_of_another_structure_is_refused():
    optimizer = optax.sm3(0.1)
    params, state = random_state(optimizer)
    with pytest.raises(PlanError, match="cannot tell what this one keeps for which"):
        sparse.update(optimizer, random_gradient(0), state, params)


@pytest.mark.parametrize("state", [None, optax.sgd(0.1).init({"table": 1.0})])
def test_the_state_of_another_optimizer_is_named(state):
    params, _ = random_state(optax.adam(0.1))
    with pytest.raises(PlanError, match=r"pass optimizer\.init\(params\) at first"):
        sparse.update(optax.adam(0.1), random_gradient(0), state, params)


class Optimizers(NamedTuple):
    """Two optimizers in one tuple: hashed by value, without weak references."""

    scale: float

    def step(self, gradient, state, params=None):
        return jax.tree.map(lambda each: -self.scale * each, gradient), state

    def step_by_norm(self, gradient, state, params=None):
        return jax.tree.map(
            lambda each: -self.scale * each / (1 + jnp.linalg.norm(params["table"])),
            gradient,
        ), state


class HashedOptimizers:
    scale = 0.5
    step, step_by_norm = Optimizers.step, Optimizers.step_by_norm


@pytest.mark.parametrize("make", [lambda: Optimizers(0.5), HashedOptimizers])
@pytest.mark.parametrize("first", ["step", "step_by_norm"])
def test_methods_of_one_object_are_tried_by_themselves(make, first):
    own = make()
    params, _ = random_state(optax.sgd(0.1))

    def run(name):
        optimizer = optax.GradientTransformation(lambda _: (), getattr(own, name))
        return sparse.update(optimizer, random_gradient(0), (), params)[0]

    for name in (first, *({"step", "step_by_norm"} - {first})):
        if name == "step":
            moved = optax.sgd(0.5)
            state = moved.init(params)
            expected, _ = sparse.update(moved, random_gradient(0), state, params)
            assert_close(run(name), expected)
        else:
            with pytest.raises(
                PlanError, match="updates a row differently than with the"
            ):
                run(name)


def test_optimizers_that_average_over_a_mesh_are_tried_inside_of_it():
    average = optax.stateless(lambda updates, _: jax.lax.pmean(updates, "data"))
    optimizer = optax.chain(average, optax.adam(0.1))
    params, state = random_state(optimizer)
    step = jax.shard_map(
        functools.partial(sparse.update, optimizer),
        mesh=jax.make_mesh((1,), ("data",)),
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    found = jax.jit(step)(random_gradient(0), state, params)
    own = optax.adam(0.1)
    expected = sparse.update(own, random_gradient(0), own.init(params), params)
    assert_close(found[0], expected[0])


def test_a_learning_rate_that_is_traced_is_named():
    params, state = random_state(optax.sgd(0.1))

    def step(rate):
        return sparse.update(optax.sgd(rate), random_gradient(0), state, params)[0]

    with pytest.raises(PlanError, match=r"learning rate .* optax\.inject_hyperparams"):
        jax.jit(step)(0.1)


def test_optimizers_that_raise_on_small_arrays_say_so():
    optimizer = optax.stateless(lambda updates, _: jnp.ones((9, 4)) + updates["table"])
    params, state = random_state(optimizer)
    with pytest.raises(PlanError, match=r"tried on small arrays.* raised TypeError: "):
        sparse.update(optimizer, random_gradient(0), state, params)


def test_functions_among_what_else_is_passed_stay():
    optimizer = optax.sgd(0.1)
    params, state = random_state(optimizer)
    expected = sparse.update(optimizer, random_gradient(0), state, params)
    found = sparse.update(
        optimizer, random_gradient(0), state, params, value_fn=lambda _: 0.0
    )
    assert_close(found, expected)


def test_alarms_for_nan_are_none_of_the_trial():
    """The trial's gradients have both signs, which a model's need not have."""
    optimizer = optax.stateless(lambda updates, _: jax.tree.map(jnp.sqrt, updates))
    params, state = random_state(optimizer)
    gradient = jax.tree.map(
        lambda each: jnp.abs(each) if each.dtype == jnp.float32 else each,
        random_gradient(0),
    )
    with jax.debug_nans(True):
        sparse.update(optimizer, gradient, state, params)


def test_trainers_take_optimizers_that_add_up_gradients_and_look_at_the_loss():
    trees, targets = sample(2, 8), np.arange(8, dtype=np.float32)

    def loss(params, plan, targets):
        found = BATCHED.apply(params, plan).sum(1) - targets
        return jnp.mean(found**2, where=plan.instance_mask)

    optimizer = optax.MultiSteps(
        optax.chain(optax.sgd(0.05), optax.contrib.reduce_on_plateau(0.5, patience=0)),
        2,
    )
    trainer = Trainer(loss, optimizer, new_params(), targets)
    params, state = new_params(), optimizer.init(new_params())
    for minibatch in eb.Loader(BATCHED, trees, 4, seed=1).epochs(4):
        trainer.step(minibatch)
        own = targets[minibatch.padded_index]
        value, bars = jax.value_and_grad(loss)(params, minibatch.plan, own)
        updates, state = optimizer.update(bars, state, params, value=value)
        params = optax.apply_updates(params, updates)
    assert_close(trainer.finish().params, params)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.masked(optax.lamb(0.1), {"table": False, "bias": True, "more": [False]}),
        optax.amsgrad(0.1),
        optax.nadamw(0.1),
        optax.lion(0.1),
        optax.rmsprop(0.1, momentum=0.5),
        optax.adadelta(0.1),
        optax.adabelief(0.1),
        optax.adamax(0.1),
        optax.yogi(0.1),
        optax.radam(0.1),
        optax.sgd(0.1, 0.9, nesterov=True),
        optax.sign_sgd(0.1),
        optax.chain(optax.clip(0.1), optax.adam(0.1)),
        optax.apply_if_finite(optax.adam(0.1), 3),
        optax.inject_hyperparams(optax.adamw)(0.1),
        optax.adam(0.1, mu_dtype=jnp.bfloat16),
        optax.contrib.schedule_free_adamw(0.1),
        optax.sgd(optax.linear_schedule(0.0, 0.1, 1000)),
        optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.1)),
        optax.contrib.reduce_on_plateau(),
        optax.partition(
            {
                "a": optax.adam(0.1),
                "b": optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation(),
            },
            {"table": "a", "bias": "b", "more": ["a"]},
        ),
        optax.multi_transform(
            {"a": optax.adam(0.1), "b": optax.lamb(0.1)},
            {"table": "a", "bias": "b", "more": ["a"]},
        ),
    ],
)
def test_what_treats_each_element_by_itself_is_taken(optimizer):
    params, state = random_state(optimizer)
    for seed in range(2):
        params, state = sparse.update(
            optimizer, random_gradient(seed), state, params, value=jnp.float32(1)
        )


@pytest.mark.parametrize("tables", [None, "embedding"])
def test_trainers_take_tables(tables):
    """Losses are the same at each step for an optimizer that ignores zero gradients."""
    targets = np.arange(6, dtype=np.float32)
    trees = sample(2, 6)

    def loss(params, plan, targets):
        found = BATCHED.apply(params, plan).sum(1) - targets
        return jnp.mean(found**2, where=plan.instance_mask)

    trainer = Trainer(loss, optax.adagrad(0.05), new_params(), targets, tables=tables)
    for minibatch in eb.Loader(BATCHED, trees, 4, seed=1).epochs(2):
        trainer.step(minibatch)
    trainer.finish()
    params, state = new_params(), optax.adagrad(0.05).init(new_params())
    losses = []
    for minibatch in eb.Loader(BATCHED, trees, 4, seed=1).epochs(2):
        own = targets[minibatch.padded_index]
        value, bars = jax.value_and_grad(loss)(params, minibatch.plan, own)
        updates, state = optax.adagrad(0.05).update(bars, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(float(value))
    np.testing.assert_allclose(trainer.losses, losses, rtol=1e-4)
