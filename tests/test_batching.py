"""The front door: calls, recordings, plans, their cache, and what bad input gets."""

from collections import namedtuple
from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
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
from edbatch.policies import BeamSearch, BestOfHeuristics, MachineState, StateMachine
from edbatch.verify import split_instances

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
    """An array that two calls read is one row of a pool, here of two."""

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


def test_gradients_under_jit():
    params, trees = make_params(), sample_trees(4, 3)
    batched = eb.batch(encode, sizes=SIZES)

    def loss(params, plan):
        hidden, cell = batched.apply(params, plan)
        return (hidden**2).sum() + cell.sum()

    plan = batched.bind(params).plan(trees)
    value, grads = jax.jit(jax.value_and_grad(loss))(params, plan)

    def reference(params):
        states = [encode(params, each) for each in trees]
        return sum((h**2).sum() + c.sum() for h, c in states)

    assert_equal((value, grads), jax.value_and_grad(reference)(params))


def test_gradients_with_respect_to_external_inputs():
    @eb.cell
    def scale(params, x):
        return params * x

    def model(params, x):
        return scale(params, x)

    batched = eb.batch(model, params=jnp.float32(2.0))
    plan = batched.plan([np.float32([1, 2]), np.float32([3, 4])])
    grads = jax.grad(
        lambda plan: batched.apply(jnp.float32(2.0), plan).sum(), allow_int=True
    )(plan)
    (pool,) = grads.pools.values()
    assert pool[1:3].tolist() == [[2, 2], [2, 2]]


def test_integer_external_inputs_have_no_gradient():
    batched = eb.batch(encode, params=make_params(), sizes=SIZES)
    plan = batched.plan([(1, 2)])

    def total(pools):
        return batched.apply(make_params(), replace(plan, pools=pools))[0].sum()

    with pytest.raises(TypeError, match="requires real- or complex-valued inputs"):
        jax.grad(total)(plan.pools)


def test_parameters_may_be_an_nnx_module():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.table = nnx.Embed(10, 3, rngs=rngs)
            self.layers = nnx.List([nnx.Linear(3, 3, rngs=rngs) for _ in range(2)])
            self.depth = 2

    @eb.cell
    def look(table, word):
        return table(word)

    @eb.cell
    def dense(layer, x):
        return jnp.tanh(layer(x))

    def model(params, words):
        states = [look(params.table, word) for word in words]
        for k in range(params.depth):
            states = [dense(params.layers[k], each) for each in states]
        return states

    module = Model(nnx.Rngs(0))
    batched = eb.batch(model, sizes=SIZES)
    found = eb.verify(batched, module, [[1, 2, 3], [4]])
    assert found.outputs == 12 and found.max_gradient_error is not None
    assert [str(each.key) for each in batched.types.types] == [
        "look@table/0",
        "dense@layers.0/1",
        "dense@layers.1/1",
    ]


def test_parameters_may_be_linen_variables():
    module = nn.Dense(3)

    @eb.cell
    def dense(variables, x):
        return jnp.tanh(module.apply(variables, x))

    def model(variables, count):
        x = source(variables)
        for _ in range(count):
            x = dense(variables, x)
        return x

    @eb.cell
    def source(variables):
        return variables["params"]["bias"] + 1

    variables = module.init(jax.random.key(0), jnp.ones(3))
    eb.verify(eb.batch(model, sizes=SIZES), variables, [1, 2, 5])


def test_parameters_may_be_any_pytree_class():
    @jax.tree_util.register_pytree_node_class
    class Scale:
        def __init__(self, gain):
            self.gain = gain

        def tree_flatten(self):
            return (self.gain,), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

    @eb.cell
    def scale(module, x):
        return module.gain * x

    def model(module, x):
        return scale(module, scale(module, x))

    eb.verify(eb.batch(model, sizes=SIZES), Scale(jnp.float32(3)), [1.0, 2.0])


def test_parameters_of_other_shapes_get_their_own_program():
    batched = eb.batch(encode, sizes=SIZES)
    trees = sample_trees(5, 3)
    for hidden in (3, 5, 3):
        eb.verify(batched, make_params(hidden), trees, gradients=False)
    assert batched.compiles == 2


def test_python_numbers_are_strong_arrays_in_both_ways_of_running():
    @eb.cell
    def scale(params, x):
        return params["half"] * x

    def model(params, x):
        return scale(params, x)

    params = {"half": jnp.bfloat16(0.5)}
    assert model(params, 3.0).dtype == jnp.float32
    assert eb.batch(model, sizes=SIZES)(params, [3.0]).dtype == jnp.float32


class Backwards(eb.FrontierPolicy):
    """Runs the last type that is ready: a poor policy."""

    name = "backwards"

    def choose(self, frontier):
        return int(np.flatnonzero(frontier.sizes)[-1])


@eb.cell
def start(x):
    return x * 1.0


@eb.cell
def half(x):
    return x / 2


@eb.cell
def more(x):
    return x + 1


def walk(params, letters):
    """Goes through letters, m for `more` and h for `half`."""
    state = start(1.0)
    for letter in letters:
        state = more(state) if letter == "m" else half(state)
    return state


# To run `more` first takes batches of start, m, hh, mm.
LETTERS = ["mhm", "hm"]


def poor_machine():
    """A learned policy that runs `half` first, which takes start, h, mm, h, m."""
    keys = eb.batch(walk, params={}).graph(LETTERS).structure.type_keys
    at = {key.cell: t for t, key in enumerate(keys)}
    both = tuple(sorted((at["half"], at["more"])))
    states = [MachineState((t,), t) for t in at.values()]
    return StateMachine(keys, "base", (*states, MachineState(both, at["half"])))


def test_learned_and_searched_policies_are_guarded():
    machine = poor_machine()
    assert eb.batch(encode, machine).policy == BestOfHeuristics(machine)
    assert eb.batch(encode, machine, guard=False).policy is machine
    searched = BeamSearch(machine, 5)
    assert eb.batch(encode, machine, search=5).policy == BestOfHeuristics(searched)
    assert eb.batch(encode, searched).policy == BestOfHeuristics(searched)
    assert eb.batch(encode, machine, search=5, guard=False).policy == searched
    policy = eb.batch(encode, "greedy", search=5).policy
    assert isinstance(policy, BestOfHeuristics) and isinstance(
        policy.policy, BeamSearch
    )
    assert isinstance(eb.batch(encode, "zoo:tree-lstm").policy, BestOfHeuristics)


@pytest.mark.parametrize("policy", ["greedy", "agenda", "depth", Backwards()])
def test_heuristics_and_policies_of_ones_own_run_as_they_are(policy):
    found = eb.batch(encode, policy).policy
    assert not isinstance(found, BestOfHeuristics)
    assert found.name == (policy if isinstance(policy, str) else "backwards")


def test_a_plan_says_whose_schedule_won():
    machine = poor_machine()
    poor = eb.batch(walk, machine, sizes=SIZES, guard=False)
    guarded = eb.batch(walk, machine, sizes=SIZES)
    assert poor({}, LETTERS).tolist() == guarded({}, LETTERS).tolist() == [2, 1.5]
    for _ in range(2):
        reports = [each.plan(LETTERS).report for each in (poor, guarded)]
    assert [(each.policy, each.batches) for each in reports] == [
        ("fsm-base", 5),
        ("greedy", 4),
    ]
    assert reports[1].cached  # and still says so
    searched = eb.batch(walk, BeamSearch(machine, width=8), params={})
    assert searched.plan(LETTERS).report.policy == "search"
    assert guarded.plan(["mh"]).report.policy == "fsm-base"


def test_only_new_structures_are_searched(monkeypatch):
    searched = []
    schedule = BeamSearch.schedule

    def count(self, structure):
        searched.append(structure.num_nodes)
        return schedule(self, structure)

    monkeypatch.setattr(BeamSearch, "schedule", count)
    batched = eb.batch(encode, params=make_params(), sizes=SIZES, search=1)
    batched.plan([(1, 2), 3])
    batched.plan([(4, 5), 6])  # other words, the same structure
    assert searched == [4]
    batched.plan([(1, 2), (3, 4)])
    assert searched == [4, 6]


@pytest.mark.parametrize("search", [-1, -0.5, float("nan"), "5", None])
def test_a_negative_time_to_search(search):
    with pytest.raises(
        eb.PolicyError, match=rf"or an eb\.Search\(...\), but this is {search!r}"
    ):
        eb.batch(encode, search=search)


def test_a_search_of_a_width():
    policy = eb.batch(encode, search=eb.Search(width=8), guard=False).policy
    assert isinstance(policy, BeamSearch) and policy.width == 8
    assert not isinstance(eb.batch(encode, search=0).policy, BestOfHeuristics)


@pytest.mark.parametrize("costs", [3, {"a": 1}])
def test_costs_that_are_none(costs):
    with pytest.raises(eb.PolicyError, match=r"costs are a file of .*; give the"):
        eb.batch(encode, costs=costs)


def test_the_compilation_cache_is_switched_on(tmp_path):
    names = "compilation_cache_dir", "persistent_cache_min_compile_time_secs"
    before = {f"jax_{name}": getattr(jax.config, f"jax_{name}") for name in names}
    compilation_cache.reset_cache()  # JAX opens a folder once
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

    with pytest.raises(eb.PlanError, match="instance 1 of the minibatch calls no cell"):
        eb.batch(model)(make_params(), [1, None])


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
    """As Python's numbers, they have their own dtype with and without batching."""

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
    # The order of a dict that it does not list is nothing to it.
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
    # A model may ask for the order later: it is that of the parameters at hand.
    assert list(batched.bind(backwards).types.params) == list(backwards)
