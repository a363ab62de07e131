"""Tests minibatches padded to a number of instances: same results, few programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trees import encode, make_params, sample_trees

import edbatch as eb
from edbatch.benchmark.compile_counter import count_compiles
from edbatch.errors import PlanError

SIZES = (64, 64, 63, 62, 61, 32, 64, 63, 1, 1, 2, 3)  # minibatch sizes
TREES = sample_trees(5, 64)


@eb.cell
def leaf(params, x):
    return jnp.tanh(params["scale"] * x)


@eb.cell
def join(params, total, x):
    return jnp.tanh(params["scale"] * total + x)


def sums(params, numbers):
    """Returns all partial sums as a list, the last one, and its inputs."""
    found, total = [], leaf(params, numbers[0])
    for x in numbers[1:]:
        total = join(params, total, leaf(params, x))
        found.append({"total": total, "both": [total, leaf(params, x)]})
    return {"last": total, "found": found, "input": numbers[0]}


PARAMS = {"scale": jnp.float32(0.7)}
NUMBERS = [
    np.linspace(-1, 1, n, dtype=np.float32).reshape(n, 1) for n in (3, 1, 5, 2, 4)
]


@pytest.fixture(scope="module")
def trees():
    return eb.batch(encode, params=make_params(), sizes=eb.Sizes(widths=(8,)))


@pytest.fixture(scope="module")
def lists():
    return eb.batch(sums, params=PARAMS, sizes=eb.Sizes(widths=(8,)))


def few(params, instances):
    return encode(params, instances)


def test_minibatches_of_many_sizes_share_programs():
    batched = eb.batch(few, params=make_params(), sizes=eb.Sizes(widths=(8,)))
    for size in SIZES:
        hidden, _ = batched(make_params(), TREES[:size])
        assert hidden.shape[0] == size
    assert batched.compiles <= 2


def test_random_sizes_share_programs_forward_and_gradient():
    params, draw = make_params(), np.random.default_rng(0)
    batched = eb.batch(few, params=params, sizes=eb.Sizes(widths=(8,)))
    recordings = batched.record_all(TREES)

    @jax.jit  # one program for each size; without it JAX compiles each operation
    def sum_of_squares(hidden):
        return jnp.sum(hidden**2)

    def loss(params, chosen):
        return sum_of_squares(batched(params, chosen)[0])

    for call in (batched, jax.grad(loss)):
        before = batched.compiles
        for size in draw.integers(1, 65, 60):
            call(params, [recordings[k] for k in draw.permutation(64)[:size]])
        assert batched.compiles - before <= 4


@pytest.mark.slow
def test_five_hundred_random_sizes_share_programs_of_all_widths():
    """The same as the test before, with default widths."""

    def encode_tree(params, instance):
        return encode(params, instance)

    params, draw = make_params(), np.random.default_rng(0)
    batched = eb.batch(encode_tree, params=params)
    recordings = batched.record_all(TREES)

    def loss(params, chosen):
        return jnp.sum(batched(params, chosen)[0] ** 2)

    for call in (batched, jax.grad(loss)):
        before = batched.compiles
        for size in draw.integers(1, 65, 500):
            call(params, [recordings[k] for k in draw.permutation(64)[:size]])
        assert batched.compiles - before <= 4


def test_growing_sizes_share_programs():
    batched = eb.batch(few, params=make_params(), sizes=eb.Sizes(widths=(8,)))
    recordings = batched.record_all(TREES)
    for size in range(1, 65):
        batched(make_params(), recordings[:size])
    assert batched.compiles <= 6  # the trees differ as well


def test_direct_calls_compile_nothing_else(trees):
    recordings, params = trees.record_all(TREES[:16]), make_params()
    for size in (16, 8):
        trees(params, recordings[:size])
    with count_compiles() as count:
        for size in range(3, 17):
            trees(params, recordings[:size])
    assert count.programs == 0


@pytest.mark.parametrize("size", [1, 2, 5])
def test_direct_calls_return_the_instances_alone(lists, size):
    found = lists(PARAMS, NUMBERS[:size])
    expected = lists.apply(PARAMS, lists.plan(NUMBERS[:size]))
    assert found["last"].shape == (size, 1)
    for name in ("last", "input"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)
    ragged = found["found"]
    assert ragged.lengths.tolist() == [len(each) - 1 for each in NUMBERS[:size]]
    assert (ragged.segment_ids[~ragged.mask] == size).all()
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6),
        ragged.to_list(),
        expected["found"].to_list(),
    )


def test_the_mask_tells_instances_from_padding(trees):
    plan = trees.plan(TREES[:3], pad_to=5)
    assert plan.instance_mask.tolist() == [True] * 3 + [False] * 2
    hidden, cell = trees.apply(make_params(), plan)
    assert hidden.shape[0] == 5
    assert not hidden[3:].any() and not cell[3:].any()
    traced = jax.jit(lambda plan: plan.instance_mask)(plan)
    assert traced.tolist() == plan.instance_mask.tolist()
    assert trees.plan(TREES[:3]).instance_mask.tolist() == [True] * 3


def masked_loss(result, plan):
    """Without the mask, value and derivative would be infinite in rows of zeros."""
    hidden, _ = result
    losses = jnp.sum(jnp.sqrt(jnp.abs(hidden)) + jnp.log(jnp.abs(hidden)), axis=-1)
    return jnp.mean(losses, where=plan.instance_mask)


@pytest.mark.parametrize("size", [1, 3, 6])
def test_a_masked_loss_is_that_without_padding(trees, size):
    def loss(params, plan):
        return masked_loss(trees.apply(params, plan), plan)

    compute = jax.jit(jax.value_and_grad(loss))
    own = compute(make_params(), trees.plan(TREES[:size]))
    padded = compute(make_params(), trees.plan(TREES[:size], pad_to=6))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), own, padded
    )
    assert all(np.isfinite(each).all() for each in jax.tree.leaves(padded))


def test_lists_of_padding_are_empty(lists):
    def loss(params, plan):
        result = lists.apply(params, plan)
        values, mask = result["found"].values["total"], result["found"].mask
        return jnp.mean(values, where=mask[:, None]) + jnp.sum(
            result["last"], where=plan.instance_mask[:, None]
        )

    compute = jax.jit(jax.value_and_grad(loss))
    own = compute(PARAMS, lists.plan(NUMBERS))
    plan = lists.plan(NUMBERS, pad_to=9)
    assert lists.apply(PARAMS, plan)["found"].lengths.tolist() == [2, 0, 4, 1, 3] + (
        [0] * 4
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5),
        own,
        compute(PARAMS, plan),
    )


def test_padded_minibatches_have_one_program(trees):
    compiled = 0

    def loss(params, plan):
        nonlocal compiled
        compiled += 1
        return masked_loss(trees.apply(params, plan), plan)

    step = jax.jit(jax.grad(loss))
    draw = np.random.default_rng(1)
    recordings = trees.record_all(TREES)
    for size in (64, 1, 63, *draw.integers(1, 65, 40)):
        chosen = [recordings[k] for k in draw.permutation(64)[:size]]
        step(make_params(), trees.plan(chosen, pad_to=64))
    assert compiled <= 2


def test_a_padded_minibatch_takes_the_program_of_full_ones():
    batched = eb.batch(few, params=make_params(), sizes=eb.Sizes(widths=(8,)))
    batched.plan(TREES[:12])  # its program would also hold the last minibatch
    full, last = (batched.plan(TREES[:n], pad_to=64) for n in (64, 8))
    assert last.shape == full.shape


def test_cached_plans_know_what_they_are_padded_to(trees):
    for pad_to in (None, 7, 9, 7):
        plan = trees.plan(TREES[:4], pad_to=pad_to)
        assert len(plan.instance_mask) == (pad_to or 4)
        assert plan.instance_mask.sum() == 4


@pytest.mark.parametrize(
    ("pad_to", "message"),
    [
        (2, r"at least the number of instances, 3, but is 2; pad to the largest"),
        (-1, r"3, but is -1"),
        (3.5, r"pad_to of a plan .*3\.5"),
        ("any", r"pad_to of a plan .*'any'"),
        (True, r"pad_to of a plan .*True"),
    ],
)
def test_pad_to_is_checked(trees, pad_to, message):
    with pytest.raises(PlanError, match=message):
        trees.plan(TREES[:3], pad_to=pad_to)


def test_verify_takes_a_padded_function(trees):
    assert eb.verify(trees, make_params(), TREES[:3])
