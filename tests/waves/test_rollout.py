"""Compares minibatches of models that ask for values with the unbatched models."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from asking_models import (
    embed,
    grow_tree,
    join,
    make_params,
    noisy,
    sample_words,
    score,
    shift_reduce,
    turn,
    wander,
)

import edbatch as eb
from edbatch.graph.context import jitted_cells
from edbatch.instance_results import split_instances
from edbatch.policies.registry import get_policy

MODELS = {
    "parser": (shift_reduce, sample_words(13)),
    "decoder": (grow_tree, list(range(11))),
    "program": (wander, list(range(17))),
}


def assert_same(found, expected, tolerance=2e-5):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(
        jax.tree.leaves(found), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@functools.cache
def unbatched(name):
    """The unbatched model's result for each instance."""
    model, instances = MODELS[name]
    with jitted_cells():
        found = [model(make_params(), each) for each in instances]
    return jax.tree.map(np.asarray, found)


@functools.cache
def batched_once(name):
    return eb.batch(MODELS[name][0])


def random_loss(result, seed=0):
    """A random linear function of all floating outputs of an instance or minibatch."""
    leaves = [
        each
        for each in jax.tree.leaves(result)
        if jnp.issubdtype(jnp.asarray(each).dtype, jnp.floating)
    ]
    weights = np.random.default_rng(seed).normal(size=64).astype(np.float32)
    return sum((each @ weights[: each.shape[-1]]).sum() for each in leaves)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("policy", ["agenda", "greedy", "depth"])
def test_a_call_equals_the_model_run_on_each_instance(name, policy):
    _, instances = MODELS[name]
    batched = batched_once(name)
    batched.policy = get_policy(policy)
    found = split_instances(batched(make_params(), instances), len(instances))
    for one, other in zip(found, unbatched(name), strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("name", MODELS)
def test_recordings_run_again_with_the_gradients_of_the_model(name):
    model, instances = MODELS[name]
    params = make_params()
    batched = batched_once(name)
    found = batched.rollout(params, instances)
    plan = batched.plan(found.recordings)
    again = batched.apply(params, plan)
    expected = unbatched(name)
    for results in (found.outputs, again):
        own = split_instances(results, len(instances))
        for one, other in zip(own, expected, strict=True):
            assert_same(one, other)

    def loss(params):
        result = batched.apply(params, plan)
        # Sums over instances as well as over elements of lists.
        return random_loss(
            jax.tree.map(
                lambda each: each.values if isinstance(each, eb.Ragged) else each,
                result,
                is_leaf=lambda each: isinstance(each, eb.Ragged),
            )
        )

    gradient = jax.grad(loss)(params)
    with jitted_cells():
        reference = jax.grad(
            lambda params: sum(random_loss(model(params, each)) for each in instances)
        )(params)
    assert_same(gradient, reference, 1e-3)


def test_recordings_equal_those_of_a_model_that_knows_the_values():
    """Replayed with its own actions, a parser records what the rollout recorded."""
    params, sentences = make_params(), sample_words(5)
    batched = eb.batch(shift_reduce)
    found = batched.rollout(params, sentences)

    def forced(params, instance):
        words, actions = instance
        stack, rest = [], list(words)
        for push in actions:
            if push:
                stack.append(embed(params, rest.pop(0)))
            else:
                right, left = stack.pop(), stack.pop()
                stack.append(join(params["join"], left, right))
        return stack[0][0]

    actions = found.outputs[1]
    own = [
        np.asarray(actions.values)[np.asarray(actions.segment_ids) == k].tolist()
        for k in range(len(sentences))
    ]
    expected = eb.batch(forced)(params, list(zip(sentences, own, strict=True)))
    np.testing.assert_allclose(found.outputs[0], expected, rtol=1e-5, atol=1e-6)


def test_no_instance_has_to_ask():
    """Without questions the minibatch is planned whole, whatever ran before."""
    params = make_params()
    batched = eb.batch(shift_reduce)
    first = batched(params, [[1], [2, 3]])[0]
    batched(params, sample_words(4))
    again = batched(params, [[1], [2, 3]])[0]
    assert first.tolist() == again.tolist()
    assert batched.rollout(params, [[1], [2, 3]]).report.waves == 1


def test_keys_do_not_depend_on_the_minibatch():
    def model(params, word):
        state = noisy(embed(params, word)[0])
        while eb.value(score(params, state))[0] > 0:
            state = noisy(turn(params, state, 1.5))
        return state

    params, key = make_params(), jax.random.key(3)
    batched = eb.batch(model)
    found = batched(params, [1, 2, 3, 4], rng=key)
    rollout = batched.rollout(params, [1, 2, 3, 4], rng=key)
    again = batched.apply(params, batched.plan(rollout.recordings), rng=key)
    for k, word in enumerate([1, 2, 3, 4]):
        with eb.cell_keys(key, instance=k):
            expected = model(params, word)
        for each in (found, rollout.outputs, again):
            np.testing.assert_allclose(each[k], expected, rtol=1e-5, atol=1e-5)


def test_any_depth_of_calls():
    class Walker:
        def __init__(self, params):
            self.params = params

        def look(self, state):
            return [float(each[0]) for each in eb.value([state, state])]

        def steps(self, state, depth):
            if depth:
                yield from self.steps(state, depth - 1)
            while sum(self.look(state)) > 0.2:
                state = turn(self.params, state, 0.9)
                yield state

    def model(params, word):
        walker = Walker(params)
        found = [
            max(walker.look(each)) for each in walker.steps(embed(params, word)[0], 5)
        ]
        return embed(params, word)[0], found

    params = make_params()
    found = split_instances(eb.batch(model)(params, list(range(9))), 9)
    for one, word in zip(found, range(9), strict=True):
        assert_same(one, jax.tree.map(np.asarray, model(params, word)))


def test_one_output_of_a_cell_may_be_asked_for():
    def model(params, word):
        hidden, memory = embed(params, word)
        if eb.value(memory)[0] > 0:
            return hidden
        return turn(params, hidden, 1.0)

    params = make_params()
    found = eb.batch(model)(params, list(range(12)))
    for one, word in zip(found, range(12), strict=True):
        assert_same(one, model(params, word))


def test_a_value_may_be_asked_for_again_later():
    def model(params, word):
        first = embed(params, word)[0]
        before = eb.value(first)
        state = turn(params, first, 2.0)
        eb.value(state)
        assert (eb.value(first) == before).all()
        return state

    params = make_params()
    assert eb.batch(model)(params, [1, 2, 3]).shape == (3, 6)


def test_values_are_numpy_arrays_of_their_own_shapes():
    @eb.cell
    def shapes(x):
        return {"scalar": x.sum(), "vector": x, "whole": x.argmax()}

    def model(params, x):
        found = eb.value([shapes(x), 3.0, np.ones(2)])
        assert all(type(each) is np.ndarray for each in jax.tree.leaves(found))
        assert found[0]["scalar"].shape == () and found[0]["vector"].shape == (4,)
        assert found[0]["whole"].dtype == np.int32
        assert found[1] == 3 and found[2].tolist() == [1, 1]
        return shapes(x)["vector"]

    eb.batch(model)({}, [np.ones(4, np.float32), np.zeros(4, np.float32)])


def test_traced_parameters_name_the_way_to_gradients():
    batched = eb.batch(shift_reduce)
    with pytest.raises(eb.PlanError, match=r"batched\.rollout"):
        jax.grad(lambda params: batched(params, sample_words(3))[0].sum())(
            make_params()
        )


def test_recordings_and_instances_are_two_minibatches():
    batched = eb.batch(shift_reduce)
    params, sentences = make_params(), sample_words(3)
    recordings = batched.rollout(params, sentences).recordings
    with pytest.raises(eb.RecordingError, match="instances, none of them a recording"):
        batched(params, [*recordings, sentences[0]])
    with pytest.raises(eb.PlanError, match="two minibatches"):
        batched.rollout(params, [*recordings, sentences[0]])


@pytest.mark.parametrize("asks", [False, True])
def test_arrays_that_a_model_fills_again_and_again(asks):
    """Results, asked values and arguments of cells keep their values at that time."""
    scratch = np.zeros(3, np.float32)
    double = eb.cell(lambda x: 2 * x)

    def model(params, x):
        seen = []
        for k in range(2):
            scratch[:] = x + k
            doubled = double(scratch)
            seen.append(eb.value((doubled, scratch))[1] if asks else scratch * 1)
        # If the model asks, other instances fill the array meanwhile.
        return doubled, x if asks else scratch, seen

    doubled, returned, seen = eb.batch(model)({}, [3.0, 7.0])
    assert doubled[:, 0].tolist() == [8, 16]
    if not asks:
        assert returned[:, 0].tolist() == [4, 8]
    assert [np.stack(each)[:, 0].tolist() for each in split_instances(seen, 2)] == [
        [3, 4],
        [7, 8],
    ]
