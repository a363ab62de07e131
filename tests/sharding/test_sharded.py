"""Minibatches on two devices, compared with one device and the unbatched model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trees import all_states, encode, make_params, sample_trees

import edbatch as eb
from edbatch.instance_results import split_instances

pytestmark = [pytest.mark.devices, pytest.mark.usefixtures("quick_compiles")]

SIZES = eb.Sizes(widths=(4, 16))
COUNT = 7  # most tests use 7 trees, so that they share compiled programs


def batch(model, params):
    return eb.batch(model, "depth", params=params, sizes=SIZES)


def assert_same(found, expected, tolerance=1e-5):
    for own, other in zip(
        jax.tree.leaves(found), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(own, other, rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def params():
    return make_params()


@pytest.fixture(scope="module")
def batched(params):
    return batch(encode, params)


@pytest.fixture(scope="module")
def sharded(batched):
    found = batched.sharded()
    assert found.mesh.devices.size == 2
    return found


def loss(params, plan, targets, apply):
    """A loss that depends on the order of the instances, as a user's loss may."""
    hidden, memory = apply(params, plan)
    return (targets[:, None] * hidden).sum() + (memory**2).mean()


def test_outputs_and_gradients_are_those_of_the_model(sharded, params):
    found = eb.verify(sharded, params, sample_trees(seed=0, count=COUNT))
    assert found.instances == COUNT
    assert found.max_gradient_error is not None


def test_loss_and_gradients_are_those_of_one_device(batched, sharded, params):
    trees = sample_trees(seed=1, count=COUNT)
    targets = jnp.arange(float(COUNT))

    def step(function, params, plan):
        return jax.value_and_grad(loss)(params, plan, targets, function.apply)

    jitted = jax.jit(step, static_argnums=0)
    found = jitted(sharded, sharded.replicate(params), sharded.plan(trees))
    assert_same(found, jitted(batched, params, batched.plan(trees)))


def test_results_follow_the_users_order(sharded, params):
    trees = sample_trees(seed=2, count=COUNT)
    forth = sharded(params, trees)
    back = sharded(params, trees[::-1])
    assert_same(forth, jax.tree.map(lambda each: each[::-1], back))


def test_the_result_is_on_every_device(sharded, params):
    hidden, _ = sharded(params, sample_trees(seed=2, count=COUNT))
    assert hidden.sharding.is_fully_replicated
    assert len(hidden.sharding.device_set) == 2


def test_a_device_without_instances(sharded, params):
    trees = [(1, (2, 3))]
    report = sharded.plan(trees).report
    assert report.instances == (1, 0)
    assert report.shards[1] is None
    eb.verify(sharded, params, trees)


def test_instances_are_split_by_work(sharded):
    trees = sample_trees(seed=3, count=6, leaves=2)
    wide = tuple((1, 2) for _ in range(2))
    report = sharded.plan([(wide, wide), *trees]).report
    assert report.instances[0] != report.instances[1]
    assert report.imbalance < 1.2
    assert report.nodes == sum(each.nodes for each in report.shards)
    assert report.batches == max(each.batches for each in report.shards)


def test_many_minibatches_need_one_compilation(params):
    # No slice variants: they are decided by the first minibatches.
    compiler = eb.Compiler(slices="never")
    sharded = eb.batch(encode, params=params, sizes=SIZES, compiler=compiler).sharded()
    minibatches = [sample_trees(seed, COUNT) for seed in range(4)]
    minibatches += [[each[0], *range(COUNT - 1)] for each in minibatches]
    most = set()
    for each in minibatches:
        plan = sharded.plan(each)
        sharded.apply(params, plan)
        most.add(max(plan.report.instances))
    assert len(most) > 1  # otherwise one compilation would prove little
    assert sharded.compiles == 1


def test_recordings_need_no_instances(batched, sharded, params):
    trees = sample_trees(seed=4, count=COUNT)
    kept = [batched.record(each) for each in trees]
    mixed = [*kept[:3], *trees[3:]]
    assert_same(sharded(params, mixed), batched(params, trees))


def test_lists_of_differing_length(params):
    trees = sample_trees(seed=5, count=COUNT, leaves=5)
    batched = batch(all_states, params)
    found = batched.sharded()(params, trees)
    expected = batched(params, trees)
    assert isinstance(found, eb.Ragged)
    assert_same(found.to_list(), expected.to_list())
    assert_same(found.lengths, expected.lengths)
    total = int(expected.lengths.sum())
    assert found.mask.sum() == total
    assert not np.asarray(found.values[total:]).any()  # padding is zero


@eb.cell
def scale(params, x):
    return {"scaled": params * x, "rounded": jnp.round(x).astype(int)}


def nested(params, lists):
    own = [[scale(params, x) for x in each] for each in lists]
    return {"lists": own, "pair": [scale(params, len(lists) + 0.5)] * 2, "none": None}


@pytest.mark.parametrize(
    "instances",
    [
        [[[1.0, 2.0], [3.0]], [], [[4.0], [5.0, 6.0, 7.0]], [[8.0]]],
        [[[1.0, 2.0, 3.0, 4.0]], [], []],  # all lists of one device are empty
        [[[], []], [[1.0], [2.0]]],
        [[[1.0, 2.0]], [[3.0, 4.0]], [[5.0, 6.0]]],  # all lengths are equal
    ],
)
def test_lists_in_lists(instances):
    two = jnp.float32(2)
    batched = batch(nested, two)
    sharded = batched.sharded()
    found, expected = sharded(two, instances), batched(two, instances)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    count = len(instances)
    for own, other in zip(
        split_instances(found, count), split_instances(expected, count), strict=True
    ):
        assert jax.tree.structure(own) == jax.tree.structure(other)
        assert_same(own, other)
    eb.verify(sharded, two, instances)


def test_gradients_of_external_inputs():
    batched = batch(lambda params, x: scale(params, x)["scaled"], jnp.float32(3))
    sharded = batched.sharded()
    plan = sharded.plan([1.0, 2.0, 3.0])
    gradient = jax.grad(
        lambda plan: sharded.apply(jnp.float32(3), plan).sum(), allow_int=True
    )(plan)
    (pool,) = gradient.shards.pools.values()
    assert float(pool.sum()) == 9.0
    assert sorted(np.count_nonzero(pool, axis=1)) == [1, 2]


@pytest.mark.parametrize("shape", [(2, 1), (1, 2)])
def test_a_mesh_of_two_axes(batched, params, shape):
    """Devices along the other axis repeat the work; no gradient is counted twice."""
    mesh = jax.make_mesh(shape, ("data", "model"))
    sharded = batched.sharded(mesh, axis="data")
    trees = sample_trees(seed=0, count=COUNT)
    assert len(sharded.plan(trees).report.shards) == shape[0]
    eb.verify(sharded, params, trees)


def test_some_devices_only(batched, params):
    """Uses only the second of two devices; the parameters are on the first."""
    trees = sample_trees(seed=0, count=COUNT)
    second = jax.devices()[1]
    sharded = batched.sharded(jax.sharding.Mesh(np.array([second]), ("data",)))
    found = sharded(params, trees)
    assert {each.device for each in jax.tree.leaves(found)} == {second}
    assert_same(found, batched(params, trees))


@eb.cell
def noise(params, x, rng):
    return params * x + jax.random.normal(rng)


def test_random_numbers_are_those_of_one_device():
    batched = batch(lambda params, xs: [noise(params, x) for x in xs], jnp.float32(2))
    sharded = batched.sharded()
    instances, key = [[1.0], [2.0, 3.0, 4.0], [5.0], [6.0, 7.0]], jax.random.key(0)
    found = sharded(jnp.float32(2), instances, rng=key)
    expected = batched(jnp.float32(2), instances, rng=key)
    assert_same(found.to_list(), expected.to_list())
    eb.verify(sharded, jnp.float32(2), instances, rng=key)


def test_a_loader_plans_for_all_devices(batched, sharded, params):
    trees = sample_trees(seed=8, count=2 * COUNT)
    for item in eb.Loader(sharded, trees, COUNT, seed=1):
        chosen = [trees[k] for k in item.index]
        assert_same(sharded.apply(params, item.plan), batched(params, chosen))


def test_parameters_that_a_checkpoint_committed_to_one_device(params, batched):
    trees = sample_trees(3, COUNT)
    sharded = batched.sharded()
    committed = jax.device_put(params, jax.devices()[0])
    assert_same(sharded(committed, trees), sharded(params, trees))
    plan = sharded.plan(trees)

    def loss(own, plan):
        return sum(jnp.sum(each) for each in jax.tree.leaves(sharded.apply(own, plan)))

    expected = jax.grad(loss)(params, plan)
    assert_same(jax.grad(loss)(committed, plan), expected)
    assert_same(jax.grad(loss)(sharded.replicate(params), plan), expected)
