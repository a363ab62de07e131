"""Tests one batched function with parameters of several shapes or dtypes."""

import threading

import jax
import jax.numpy as jnp
import pytest
from trees import all_states, assert_equal, encode, make_params, sample_trees

import edbatch as eb

SIZES = eb.Sizes(widths=(4, 16))


def in_bfloat16(params):
    return jax.tree.map(lambda each: each.astype(jnp.bfloat16), params)


def evaluated(batched, params, trees):
    """Calls the function with parameters of another dtype, as between two steps."""
    assert batched(in_bfloat16(params), trees)[0].dtype == jnp.bfloat16


@pytest.mark.parametrize("bound", [True, False])
def test_recordings_find_their_types_after_a_call_with_other_parameters(bound):
    params, trees = make_params(), sample_trees(0, 4)
    batched = eb.batch(encode, sizes=SIZES, params=params if bound else None)
    expected = batched(params, trees)
    kept = batched.record_all(trees)
    evaluated(batched, params, trees)
    assert_equal(batched.apply(params, batched.plan(kept)), expected)
    assert batched.graph(kept).types is kept[0].types
    assert batched.record_all(kept) == kept


@pytest.mark.parametrize("bound", [True, False])
def test_calls_do_not_change_what_fresh_instances_are_recorded_for(bound):
    params, trees = make_params(), sample_trees(1, 4)
    batched = eb.batch(encode, sizes=SIZES, params=params if bound else None)
    expected = batched(params, trees)
    evaluated(batched, params, trees)
    assert_equal(batched.apply(params, batched.plan(trees)), expected)
    assert batched.record(trees[0]).types is batched.types


def test_the_parameters_of_the_first_run_are_bound():
    params, trees = make_params(), sample_trees(9, 2)
    half = in_bfloat16(params)
    recording = eb.batch(encode, params=half).record(trees[0])
    for run in (
        lambda batched: batched(half, trees),
        lambda batched: batched.apply(half, batched.plan(trees, params=half)),
        lambda batched: batched.apply(half, batched.plan([recording])),
    ):
        batched = eb.batch(encode, sizes=SIZES)
        run(batched)
        batched.plan(trees, params=params)
        assert batched.record(trees[1]).types.params_spec["join"].dtype == jnp.bfloat16


def test_bind_changes_what_fresh_instances_are_recorded_for():
    params, trees = make_params(), sample_trees(2, 3)
    batched = eb.batch(encode, sizes=SIZES, params=params)
    kept = batched.record_all(trees)
    half = in_bfloat16(params)
    assert batched.bind(half) is batched
    assert batched.apply(half, batched.plan(trees))[0].dtype == jnp.bfloat16
    assert batched.apply(params, batched.plan(kept))[0].dtype == jnp.float32


def test_params_say_what_fresh_instances_are_recorded_for():
    params, trees = make_params(), sample_trees(3, 3)
    half = in_bfloat16(params)
    batched = eb.batch(encode, sizes=SIZES, params=params)
    for graph in (
        batched.record(trees[0], params=half),
        batched.record_all(trees, params=half)[0],
        batched.graph(trees, params=half),
    ):
        assert graph.types is not batched.types
    plan = batched.plan(trees, params=half)
    assert batched.apply(half, plan)[0].dtype == jnp.bfloat16
    assert batched.types is batched.record(trees[0]).types


def test_a_minibatch_of_recordings_for_two_signatures():
    params, trees = make_params(), sample_trees(4, 2)
    half = in_bfloat16(params)
    batched = eb.batch(encode, sizes=SIZES, params=params)
    one, other = batched.record(trees[0]), batched.record(trees[0], params=half)
    mixed = r"parameters of one structure, .* is bfloat16\[8, 4\] there and float32"
    for make in (batched.plan, batched.graph, batched.record_all):
        with pytest.raises(eb.PlanError, match=mixed):
            make([one, other])
    for wrong in ([other], [other, trees[0]]):
        with pytest.raises(eb.PlanError, match=mixed):
            batched(params, wrong)
        with pytest.raises(eb.PlanError, match=mixed):
            batched.plan(wrong, params=params)
    # Fresh instances are recorded with the types of the recordings in their minibatch.
    assert batched.graph([other, trees[1]]).types is other.types


def test_running_loaders_keep_their_types():
    params, trees = make_params(), sample_trees(5, 8)
    batched = eb.batch(encode, sizes=SIZES, params=params)
    for prefetch in (0, 2):
        loader = eb.Loader(batched, trees, 2, prefetch=prefetch, shuffle=False)
        count = 0
        for item in loader:
            evaluated(batched, params, trees)
            batched.bind(in_bfloat16(params))
            assert batched.apply(params, item.plan)[0].dtype == jnp.float32
            batched.bind(params)
            count += 1
        assert count == 4


def test_threads_plan_while_others_evaluate():
    params = make_params()
    batched = eb.batch(all_states, sizes=SIZES, params=params)
    minibatches = [sample_trees(seed, 3) for seed in range(6)]
    kept = [batched.record_all(each) for each in minibatches]
    found, done = [], threading.Event()

    def evaluate():
        while not done.is_set():
            batched(in_bfloat16(params), minibatches[0])

    def plan():
        for each, recordings in zip(minibatches, kept, strict=True):
            found.append((batched.plan(each), batched.plan(recordings)))

    threads = [threading.Thread(target=evaluate), threading.Thread(target=plan)]
    for each in threads:
        each.start()
    threads[1].join()
    done.set()
    threads[0].join()
    assert len(found) == len(minibatches)
    for plans in found:
        for each in plans:
            assert each.shape.program.types is found[0][0].shape.program.types
            batched.apply(params, each)


def test_sharded_functions_find_the_types_of_recordings():
    params, trees = make_params(), sample_trees(6, 5)
    batched = eb.batch(encode, sizes=SIZES, params=params)
    sharded = batched.sharded()
    expected = sharded(params, trees)
    kept = sharded.record_all(trees)
    half = sharded(in_bfloat16(params), trees)
    assert half[0].dtype == jnp.bfloat16
    assert_equal(sharded.apply(params, sharded.plan(kept)), expected)
    assert_equal(sharded.apply(params, sharded.plan(trees)), expected)
    plan = sharded.plan(trees, params=in_bfloat16(params))
    assert sharded.apply(in_bfloat16(params), plan)[0].dtype == jnp.bfloat16


def test_plans_are_cached_for_each_signature():
    params, trees = make_params(), sample_trees(7, 3)
    batched = eb.batch(encode, sizes=SIZES, params=params)
    half = in_bfloat16(params)
    one, other = batched.plan(trees), batched.plan(trees, params=half)
    assert not other.report.cached
    assert batched.plan(trees).report.cached
    assert batched.plan(trees, params=half).report.cached
    assert one.shape != other.shape


def test_verifying_does_not_change_what_fresh_instances_are_recorded_for():
    params, trees = make_params(), sample_trees(8, 2)
    batched = eb.batch(encode, sizes=SIZES, params=params)
    eb.verify(batched, in_bfloat16(params), trees, gradients=False, tolerance=0.1)
    assert batched.record(trees[0]).types.params_spec["join"].dtype == jnp.float32


@pytest.mark.parametrize(
    "use", ["record", "record_all", "graph", "plan", "fit", "explain", "warm_up"]
)
def test_parameters_of_host_methods_are_not_bound(use):
    batched = eb.batch(eb.cell(lambda params, x: params * x))
    half, single = jnp.bfloat16(2), jnp.float32(2)
    getattr(batched, use)(1.0 if use == "record" else [1.0, 2.0], params=half)
    with pytest.raises(eb.PlanError, match="not known yet"):
        batched.record(1.0)
    batched(single, [1.0])
    assert batched.types.params_spec.dtype == jnp.float32
    batched(half, [1.0])
    assert batched.types.params_spec.dtype == jnp.float32


def test_the_first_plan_that_is_applied_binds():
    batched = eb.batch(eb.cell(lambda params, x: params * x))
    params = jnp.float32(2)
    plan = batched.plan([1.0], params=params)
    batched.apply(params, plan)
    assert batched.record(1.0).num_instances == 1
