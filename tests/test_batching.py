"""Tests `eb.batch`: calls, recordings, plans and their cache, errors on bad input."""

from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from trees import (
    all_states,
    assert_equal,
    encode,
    join,
    leaf,
    make_params,
    sample_trees,
)

import edbatch as eb
from edbatch.instance_results import split_instances

pytestmark = pytest.mark.default_flags

SIZES = eb.Sizes(widths=(4, 16))


def test_calling_gives_what_vmap_would_give():
    params, trees = make_params(), sample_trees(0, 5)
    hidden, cell = eb.batch(encode, sizes=SIZES)(params, trees)
    assert hidden.shape == cell.shape == (5, 4)
    for k, tree in enumerate(trees):
        assert_equal((hidden[k], cell[k]), encode(params, tree))


def test_record_plan_apply_give_the_same_as_calling():
    params, trees = make_params(), sample_trees(1, 4)
    batched = eb.batch(encode, "depth", params=params, sizes=SIZES)
    recordings = [batched.record(each) for each in trees]
    expected = batched(params, trees)
    assert_equal(batched.apply(params, batched.plan(recordings)), expected)
    mixed = [recordings[0], trees[1], recordings[2], trees[3]]
    assert_equal(batched(params, mixed), expected)
    assert_equal(jax.jit(batched.apply)(params, batched.plan(trees)), expected)


def test_one_recording_may_appear_several_times():
    params, (tree,) = make_params(), sample_trees(2, 1)
    batched = eb.batch(encode, params=params, sizes=SIZES)
    recording = batched.record(tree)
    hidden, _ = batched(params, [recording] * 3)
    np.testing.assert_allclose(hidden[0], hidden[2], rtol=1e-5, atol=1e-6)


def test_values_of_external_inputs_are_not_cached():
    params = make_params()
    batched = eb.batch(encode, sizes=SIZES)
    for words in ((1, 2), (3, 4), (3, 3)):
        assert_equal(
            jax.tree.map(lambda x: x[0], batched(params, [words])),
            encode(params, words),
        )
    assert batched.cache_info.hits == 2
    assert batched.cache_info.misses == 1


def test_which_call_reads_which_input_is_part_of_the_key_of_a_plan():
    """An array that two calls read is a single row of a pool, here one of two rows."""

    @eb.cell
    def start(x):
        return x

    @eb.cell
    def step(state, x):
        return 2 * state + x

    def model(params, xs):
        return step(step(start(xs[0]), xs[1]), xs[2])

    one, two = np.ones(2, np.float32), np.full(2, 3, np.float32)
    batched = eb.batch(model, sizes=eb.Sizes(widths=(1,)))
    for xs in ([one, two, one], [one, two, two], [one, one, two]):
        np.testing.assert_array_equal(batched(None, [xs])[0], model(None, xs))
    assert (batched.cache_info.hits, batched.cache_info.misses) == (0, 3)


def test_a_plan_says_whether_it_came_from_the_cache():
    batched = eb.batch(encode, params=make_params(), sizes=SIZES)
    trees = sample_trees(3, 4)
    first, again = batched.plan(trees), batched.plan(trees)
    assert not first.report.cached and again.report.cached
    assert first.report.batches == again.report.batches > 1
    np.testing.assert_array_equal(first.stream, again.stream)


def test_the_cache_is_bounded():
    batched = eb.batch(encode, params=make_params(), sizes=SIZES, cache_bytes=20_000)
    for seed in range(30):
        batched.plan(sample_trees(seed, 4))
        assert batched.cache_info.num_bytes <= 20_000
    assert 0 < batched.cache_info.entries < 30
    assert batched.cache_info.misses == 30


def test_no_cache():
    batched = eb.batch(encode, params=make_params(), cache_bytes=0)
    for _ in range(2):
        assert not batched.plan([(1, 2)]).report.cached
    assert batched.cache_info.entries == 0


def test_all_instances_of_a_data_set_are_recorded():
    params, trees = make_params(), sample_trees(1, 4)
    batched = eb.batch(encode, params=params, sizes=SIZES)
    recordings = batched.record_all(trees)
    assert_equal(batched(params, recordings), batched(params, trees))
    again = batched.record_all([recordings[0], trees[1]])
    assert again[0] is recordings[0]
    assert again[1].num_nodes == recordings[1].num_nodes
    assert batched.record_all([]) == []


def test_recording_a_data_set_names_what_is_wrong():
    batched = eb.batch(encode, params=make_params(), sizes=SIZES)
    with pytest.raises(TypeError, match="not iterable") as caught:
        batched.record_all([1, (2, None)])
    assert caught.value.__notes__[-1] == (
        "instances are recorded one by one; this is number 1"
    )
    with pytest.raises(eb.PlanError, match=r"holds one instance, .* this one holds 2;"):
        batched.record_all([batched.graph([1, 2])])
    other = eb.batch(all_states, params=make_params(), sizes=SIZES)
    with pytest.raises(eb.PlanError, match="a recording was made by another model"):
        batched.record_all([other.record(1)])


def test_lists_of_differing_length_are_ragged():
    params, trees = make_params(), [(1, 2), 3, ((4, 5), 6)]
    result = eb.batch(all_states, sizes=SIZES)(params, trees)
    assert isinstance(result, eb.Ragged)
    assert result.lengths.tolist() == [3, 1, 5]
    assert result.segment_ids[:9].tolist() == [0, 0, 0, 1, 2, 2, 2, 2, 2]
    assert result.mask.sum() == 9 and not result.mask[9:].any()
    for own, tree in zip(result.to_list(), trees, strict=True):
        assert_equal(own, np.stack(all_states(params, tree)))
    padded, mask = result.to_padded(6)
    assert padded.shape == (3, 6, 4)
    assert mask.sum(1).tolist() == [3, 1, 5]
    assert not padded[~np.asarray(mask)].any()


def test_lists_are_ragged_in_every_minibatch():
    params = make_params()
    batched = eb.batch(all_states, sizes=SIZES)
    structures = set()
    for trees in ([(1, 2), (3, 4)], [1, (3, 4)], [(1, 2), (3, 4)], [1], [((1, 2), 3)]):
        result = batched(params, trees)
        assert isinstance(result, eb.Ragged)
        structures.add(jax.tree.structure(result))
        for own, tree in zip(split_instances(result, len(trees)), trees, strict=True):
            assert_equal(own, all_states(params, tree))
    assert len(structures) == 1


def test_lists_of_any_length_share_programs():
    params = make_params()
    batched = eb.batch(all_states, sizes=SIZES)
    for tree in (1, (1, 2), (1, (2, 3)), ((1, 2), (3, 4))):
        (found,) = split_instances(batched(params, [tree]), 1)
        assert_equal(found, all_states(params, tree))
    assert batched.compiles <= 3


def test_any_pytree_may_be_returned():
    Both = namedtuple("Both", "hidden rest")

    def model(params, tree):
        hidden, cell = encode(params, tree)
        return Both(hidden, {"cell": [cell, cell], "n": 3, "none": None, "t": ()})

    params, trees = make_params(), [(1, 2), 3]
    result = eb.batch(model, sizes=SIZES)(params, trees)
    assert isinstance(result, Both)
    assert isinstance(result.rest["cell"], eb.Ragged)
    assert result.rest["cell"].lengths.tolist() == [2, 2]
    assert result.rest["t"] == ()
    assert result.rest["n"].tolist() == [3, 3]
    eb.verify(eb.batch(model, sizes=SIZES), params, trees)


def test_nested_lists():
    def model(params, trees):
        return [
            {"states": all_states(params, each), "root": encode(params, each)[0]}
            for each in trees
        ]

    batched = eb.batch(model, sizes=SIZES)
    minibatch = [[(1, 2), 3], [4], [((1, 2), 3)]]
    eb.verify(batched, make_params(), minibatch)
    assert batched(make_params(), minibatch).lengths.tolist() == [2, 1, 1]


def test_50_minibatches_compile_at_most_3_programs():
    batched = eb.batch(encode, sizes=SIZES)
    params = make_params()
    for seed in range(50):
        batched(params, sample_trees(seed, 64, leaves=40))
    assert batched.compiles <= 3


def test_the_compilation_cache_is_switched_on(tmp_path):
    names = "compilation_cache_dir", "persistent_cache_min_compile_time_secs"
    before = {f"jax_{name}": getattr(jax.config, f"jax_{name}") for name in names}
    compilation_cache.reset_cache()  # JAX opens its cache folder only once
    try:
        assert eb.use_compilation_cache(tmp_path) == tmp_path
        eb.batch(encode, sizes=SIZES)(make_params(), [(1, 2)])
        assert any(tmp_path.iterdir())
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def test_a_chain_of_depth_100000_runs_in_every_stage():
    @eb.cell
    def start(x):
        return x

    @eb.cell
    def step(gain, state):
        return gain * state + 1

    def model(gain, x):
        state = start(x)
        for _ in range(100_000):
            state = step(gain, state)
        return state

    batched = eb.batch(model, sizes=SIZES, params=jnp.float32(1))
    plan = batched.plan([0.0, 7.0])
    assert plan.report.batches == 100_001
    result, grads = jax.value_and_grad(
        lambda gain: batched.apply(gain, plan)[1] / 100_000
    )(jnp.float32(1))
    assert result == pytest.approx(1.00007)
    assert grads == pytest.approx(7 + 99_999 / 2, rel=1e-4)


def test_recording_before_the_shapes_are_known():
    with pytest.raises(eb.PlanError, match=r"pass params= to eb\.batch"):
        eb.batch(encode).plan([(1, 2)])


def test_an_empty_minibatch():
    with pytest.raises(eb.PlanError, match="at least one instance but is empty"):
        eb.batch(encode)(make_params(), [])


def test_an_instance_without_nodes():
    def model(params, tree):
        return [encode(params, tree)] if tree else []

    params = make_params()
    batched = eb.batch(model, params=params, sizes=SIZES)
    for minibatch in ([(1, 2), None, 3], [None, None], [None]):
        found = batched(params, minibatch)
        assert found.lengths.tolist() == [int(each is not None) for each in minibatch]
        eb.verify(batched, params, minibatch)
        kept = batched(params, batched.record_all(minibatch))
        assert kept.lengths.tolist() == found.lengths.tolist()
        plan = batched.plan(minibatch, pad_to=4)
        assert eb.jit(batched.apply)(params, plan).lengths.shape == (4,)
        gradient = jax.grad(lambda p: _total(batched.apply(p, plan)))(params)  # noqa: B023
        assert all(np.isfinite(each).all() for each in jax.tree.leaves(gradient))


def _total(tree):
    """Sums all values; there are no leaves if every list is empty."""
    leaves = jax.tree.leaves(tree.values)
    return sum((jnp.sum(each) for each in leaves), jnp.float32(0))


def test_a_model_that_calls_no_cell():
    batched = eb.batch(lambda params, x: {"x": x, "two": np.float32(2)})
    found = batched(make_params(), [1.0, 5.0])
    assert {name: each.tolist() for name, each in found.items()} == {
        "x": [1, 5],
        "two": [2, 2],
    }
    assert batched.plan([1.0, 2.0]).report.batches == 0
    eb.verify(batched, make_params(), [1.0, 5.0])


def test_a_plan_of_another_model():
    params = make_params()
    models = encode, all_states
    one, other = (eb.batch(each, params=params, sizes=SIZES) for each in models)
    with pytest.raises(eb.PlanError, match="plan was made by another model"):
        one.apply(params, other.plan([(1, 2)]))


def test_a_recording_of_another_model():
    params = make_params()
    models = encode, all_states
    one, other = (eb.batch(each, params=params) for each in models)
    with pytest.raises(eb.PlanError, match="recording was made by another model"):
        one.plan([other.record((1, 2)), (1, 2)])


def test_apply_takes_plans_only():
    with pytest.raises(eb.PlanError, match=r"apply takes a plan .* received list"):
        eb.batch(encode).apply(make_params(), [(1, 2)])


def test_apply_with_parameters_of_other_shapes():
    batched = eb.batch(encode, params=make_params(3), sizes=SIZES)
    plan = batched.plan([(1, 2)])
    with pytest.raises(eb.PlanError, match=r"params\['join'\] is float32\[10, 5\] but"):
        batched.apply(make_params(5), plan)
    with pytest.raises(eb.PlanError, match=r"differ in params\['more'\]"):
        batched.apply(make_params(3) | {"more": 1.0}, plan)


def test_a_model_that_is_no_function():
    with pytest.raises(eb.EdbatchError, match=r"takes a function .* received dict"):
        eb.batch({})


def test_a_minibatch_of_more_rows_than_int32_counts():
    params = make_params()
    batched = eb.batch(encode, params=params)
    recording = batched.record((1, 2))
    huge = type(recording)(**{**vars_of(recording), "num_values": 2**30})
    with pytest.raises(eb.PlanError, match="at most 2,147,483,647 values"):
        batched.plan([huge, huge])


def vars_of(recording):
    return {name: getattr(recording, name) for name in recording.__dataclass_fields__}


def test_cells_work_outside_recordings():
    params = make_params()
    state = leaf(params, 3)
    np.testing.assert_allclose(
        join(params["join"], state, state)[0], encode(params, (3, 3))[0]
    )
    jitted = jax.jit(lambda params, word: leaf(params, word))
    assert_equal(jitted(params, 3), state)


def test_weakly_typed_arrays_are_like_others():
    """Like Python's numbers, they have the same dtype with and without batching."""

    @eb.cell
    def scale(params, vector):
        return params["w"] @ vector * params["factor"]

    params = {"w": jnp.eye(2, dtype=jnp.bfloat16) / 3, "factor": jnp.asarray(0.3)}
    assert params["factor"].weak_type
    vector = jnp.ones(2, jnp.bfloat16)
    found = eb.batch(scale)(params, [vector])
    expected = scale(params, vector)
    assert found.dtype == expected.dtype == jnp.float32
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)


def test_the_order_of_keys_counts_for_models_that_list_them():
    @eb.cell
    def layer(weight, vector):
        return jnp.tanh(weight @ vector + 1)

    def model(params, vector):
        for name in params["layers"]:
            vector = layer(params["layers"][name], vector)
        return vector

    own = {"layers": {"up": jnp.eye(2) * 2, "down": -jnp.ones((2, 2))}}
    sorted_keys = jax.tree.map(lambda each: each, own)  # as an optimizer returns them
    vector = np.array([0.1, -0.2], np.float32)
    batched = eb.batch(model)
    for params in (own, sorted_keys, own):
        np.testing.assert_allclose(
            batched(params, [vector])[0], model(params, vector), rtol=1e-6
        )
    assert batched.compiles == 2
    # The order of a dict that the model does not list does not matter.
    both = {"z": 0.0, "layers": own["layers"]}
    for params in (both, dict(reversed(both.items()))):
        batched(params, [vector])
    assert batched.compiles == 3


def test_the_order_of_keys_does_not_count_for_others():
    params = make_params()
    backwards = dict(reversed(params.items()))
    assert list(params) != list(backwards)
    batched = eb.batch(encode, sizes=SIZES)
    trees = sample_trees(4, 3)
    for each in (params, backwards, params):
        batched(each, trees)
    assert batched.compiles == 1
    assert batched.bind(backwards).types is batched.bind(params).types
    # A model may list keys later; it sees the order of the parameters bound last.
    assert list(batched.bind(backwards).types.params) == list(backwards)
