"""A loader's plans are on the device before a step needs them."""

import threading
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loaded_data import Trees
from trees import encode, make_params, sample_trees

import edbatch as eb
from edbatch.loader.prefetch import THREAD_NAME
from edbatch.target import CPU

pytestmark = pytest.mark.usefixtures("quick_compiles")

SIZES = eb.Sizes(widths=(4, 16))
KINDS = {
    "no thread": {"prefetch": 0},
    "thread": {},
    "threads": {"threads": 2, "prefetch": 3},
    "read anew": {"keep": False},
    "workers": {"keep": False, "workers": 1},
}


@pytest.fixture(scope="module")
def params():
    return make_params()


@pytest.fixture(scope="module")
def batched(params):
    return eb.batch(encode, params=params, sizes=SIZES)


@pytest.fixture(scope="module")
def step(batched):
    """A training step that computes everything it needs from the plan."""

    def loss(params, plan):
        hidden, _ = batched.apply(params, plan)
        return jnp.sum(hidden**2, where=plan.instance_mask[:, None])

    return jax.jit(jax.value_and_grad(loss))


@pytest.fixture
def own_memory(monkeypatch):
    """Makes all plans target a device with memory of its own."""
    target = replace(CPU, own_memory=True)
    monkeypatch.setattr("edbatch.batched.choose_target", lambda *_, **__: target)


@pytest.fixture
def sent(monkeypatch):
    """Records the thread and the pytree of each call of `jax.device_put`."""
    calls = []
    put = jax.device_put

    def device_put(x, *more, **options):
        calls.append((threading.current_thread().name, x))
        return put(x, *more, **options)

    monkeypatch.setattr(jax, "device_put", device_put)
    return calls


def test_a_step_on_numpy_plans_is_refused_where_transfers_are(batched, params, step):
    plan = batched.plan(sample_trees(0, 4))
    step(params, plan)
    with (
        jax.transfer_guard_host_to_device("disallow"),
        pytest.raises(Exception, match="Disallowed host-to-device transfer"),
    ):
        step(params, plan)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_transfer_nothing(own_memory, batched, params, step, kind):
    with eb.Loader(batched, Trees(9), 4, **KINDS[kind]) as loader:
        expected = [step(params, item.plan) for item in loader]  # compiles
        assert len(expected) == 3
        items = list(loader)
    with jax.transfer_guard_host_to_device("disallow_explicit"):
        for item in items:
            step(params, item.plan)
            batched.apply(params, item.plan)


def test_a_plan_is_sent_once_by_the_thread_that_made_it(own_memory, batched, sent):
    items = list(eb.Loader(batched, sample_trees(0, 9), 4))
    plans = [x for _, x in sent if isinstance(x, type(items[0].plan))]
    assert len(plans) == len(items) == 3
    assert all(name.startswith(THREAD_NAME) for name, _ in sent)
    for item in items:
        assert item.plan.report is not None
        for each in jax.tree.leaves(item.plan):
            # Uncommitted: the parameters, not the plan, decide where a call runs.
            assert isinstance(each, jax.Array) and not each.committed
        assert isinstance(item.mask, np.ndarray)
        np.testing.assert_array_equal(item.mask, item.plan.instance_mask)


def test_plans_for_cpus_stay_where_they_are(batched, sent):
    for item in eb.Loader(batched, sample_trees(0, 4), 4):
        leaves = jax.tree.leaves(item.plan)
        assert all(isinstance(each, np.ndarray | np.generic) for each in leaves)
        assert isinstance(item.mask, np.ndarray)
    assert not sent


def test_plans_of_a_mesh_are_sent_too(batched, params):
    sharded = batched.sharded()
    there = sharded.replicate(params)
    step = jax.jit(lambda params, plan: sharded.apply(params, plan)[0].sum())
    for item in eb.Loader(sharded, sample_trees(0, 8), 4):
        step(there, item.plan)
        with jax.transfer_guard_host_to_device("disallow_explicit"):
            step(there, item.plan)


@pytest.mark.devices
def test_plans_go_to_the_default_device_of_the_loop(own_memory, batched, params):
    _, other = jax.devices()
    loader = eb.Loader(batched, sample_trees(0, 9), 4)
    with jax.default_device(other):
        for item in loader:
            for each in jax.tree.leaves(item.plan):
                assert each.devices() == {other}
    # A call runs on the device of its parameters.
    first, _ = jax.devices()
    [hidden, *_] = jax.tree.leaves(
        batched.apply(jax.device_put(params, first), item.plan)
    )
    assert hidden.devices() == {first}


def test_a_loop_tells_of_its_function(monkeypatch, batched):
    told = []
    monkeypatch.setattr(batched.device_notice, "tell", told.append)
    data = eb.Loader(batched, sample_trees(np.random.default_rng(0), 5), 2)
    assert len(list(data.epochs(2))) == 6
    [plan] = told
    assert plan.shape.program.types is batched.types


def test_functions_that_have_nothing_to_tell_are_fed(monkeypatch, batched):
    monkeypatch.delattr(batched, "device_notice")
    data = eb.Loader(batched, sample_trees(np.random.default_rng(0), 5), 2)
    assert len(list(data)) == 3
