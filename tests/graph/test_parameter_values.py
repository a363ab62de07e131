"""Tests parameters in place of cell outputs: returned, in padded lists, as values."""

import asyncio
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb

pytestmark = pytest.mark.usefixtures("quick_compiles")


@eb.cell
def leaf(params, word):
    return params["table"][word], params["memory"][word]


@eb.cell(padded=("children",))
def node(params, children, mask):
    h, c = children
    total = jnp.sum(jnp.where(mask[:, None], h, 0), 0)
    return jnp.tanh(params["mix"] @ total), jnp.sum(jnp.where(mask[:, None], c, 0), 0)


@eb.cell
def step(params, state, word):
    return jnp.tanh(params["mix"] @ state + params["table"][word])


def encode(params, tree):
    """Tree-LSTM structure in which a learned pair replaces an absent child."""
    if isinstance(tree, int):
        return leaf(params, tree)
    absent = params["absent"][0], params["absent"][1]
    return node(params, [absent if t is None else encode(params, t) for t in tree])


def chain(params, words):
    """Returns the last state, all states (the first a parameter), and parameters."""
    state = params["start"]
    states = [state]
    for word in words:
        state = step(params, state, word)
        states.append(state)
    return state, states, {"absent": params["absent"]}


def until_it_grows(params, words):
    state, first = params["start"], eb.value(params["start"])
    for word in words:
        state = step(params, state, word)
        if eb.value(state)[0] > first[0]:
            break
    asked = eb.value({"absent": params["absent"], "state": state})
    return state, float(asked["absent"][0].sum())


def make_params():
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(0, 0.5, shape), jnp.float32)

    return {
        "table": normal(7, 3),
        "memory": normal(7, 3),
        "mix": normal(3, 3),
        "start": normal(3),
        "absent": (normal(3), normal(3)),
    }


TREES = [((1, None), (2, 3)), (None, 4), (None,), 5, ((None, None, None), 1)]
CHAINS = [[1, 2], [], [3], [1, 2, 3, 4]]
CASES = {
    "padded lists": (encode, TREES),
    "returned": (chain, CHAINS),
    "returned alone": (chain, [[]]),
    "asked for": (until_it_grows, CHAINS),
}


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
@pytest.mark.parametrize("case", ["padded lists", "returned", "returned alone"])
def test_batched_equals_unbatched(case, dtype):
    model, instances = CASES[case]
    batched = eb.batch(model, compute_dtype=dtype)
    found = eb.verify(batched, make_params(), instances)
    assert found.max_gradient_error is not None


def test_values_that_a_model_asks_for():
    found = eb.verify(eb.batch(until_it_grows), make_params(), CHAINS)
    assert found.max_gradient_error is not None
    assert found.close_choices == 0


def test_another_element_type_than_that_of_a_parameter():
    """Elements of a padded list may be parameters themselves, or pytrees of them."""

    @eb.cell(padded=("children",))
    def total(params, children, mask):
        one = jnp.where(mask[:, None], children["absent"][0], 0)
        return jnp.sum(one, 0) + params["start"]

    def model(params, count):
        part = {"absent": params["absent"]}
        return total(params, [part] * count)

    batched = eb.batch(model)
    eb.verify(batched, make_params(), [1, 2, 1, 3])
    assert batched.graph([1, 2, 3]).num_nodes == 6


def test_an_instance_has_one_node_for_each_parameter():
    batched = eb.batch(encode, params=make_params())
    graph = batched.graph([((None, None), (None, 1))])
    names = [str(graph.structure.type_keys[k]) for k in graph.node_type]
    assert names.count("parameter@absent.0/0") == 1
    assert names.count("parameter@absent.1/0") == 1
    assert len(names) == 2 + 1 + 3
    graph = batched.graph([(None,), (None, None)])
    assert graph.num_nodes == 2 * 3


def test_calls_of_a_cell_read_parameters_where_they_are():
    batched = eb.batch(lambda params, word: step(params, params["start"], word))
    batched.bind(make_params())
    assert batched.graph([1]).num_nodes == 1


def test_the_gradient_of_a_parameter_that_is_returned():
    params = make_params()
    batched = eb.batch(chain)
    plan = batched.plan(CHAINS, params=params)

    def loss(params):
        last, states, _ = batched.apply(params, plan)
        return last.sum() + 2 * states.values.sum()

    # One of the four chains has no steps; the lists of all contain the start.
    expected = jax.grad(
        lambda params: sum(
            last.sum() + 2 * sum(each.sum() for each in states)
            for last, states, _ in (chain(params, words) for words in CHAINS)
        )
    )(params)
    found = jax.grad(loss)(params)
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    start = found["start"]
    assert (np.abs(start) > 1).all()


def test_recordings_that_were_pickled():
    params = make_params()
    batched = eb.batch(encode, params=params)
    kept = pickle.loads(pickle.dumps([batched.record(each) for each in TREES]))
    for one, other in zip(
        *map(jax.tree.leaves, (batched(params, kept), batched(params, TREES))),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("case", CASES)
def test_served_requests(case):
    model, instances = CASES[case]
    params = make_params()

    async def serve():
        async with eb.Server(eb.batch(model), params) as server:
            return await asyncio.gather(*map(server.submit, instances))

    for one, instance in zip(asyncio.run(serve()), instances, strict=True):
        expected = jax.tree.leaves(model(params, instance))
        for own, other in zip(jax.tree.leaves(one), expected, strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-6)


@eb.cell(padded=("vectors",))
def total(params, vectors, mask):
    return jnp.sum(jnp.where(mask[:, None], vectors, 0), 0) * params["scale"]


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
@pytest.mark.parametrize(
    "model",
    [
        lambda params, x: total(params, params["list"]),
        lambda params, x: total(params, params["tuple"]),
        lambda params, x: (params["scale"], total(params, params["list"])),
        lambda params, x: (params["nothing"], params["list"][0], {}),
        lambda params, x: float(eb.value(params["list"])[1][0]) + x,
        lambda params, x: (eb.value(params["nothing"]), params["scale"]),
    ],
    ids=["list", "tuple", "Python's float", "empty", "value", "empty value"],
)
def test_parts_of_the_parameters(model, dtype):
    params = {
        "list": [jnp.arange(3.0) / 7, jnp.ones(3) / 3],
        "tuple": (jnp.arange(3.0), jnp.ones(3)),
        "scale": 0.3,
        "nothing": [],
    }
    eb.verify(eb.batch(model, compute_dtype=dtype), params, [1.0, 2.0])


def test_keys_are_no_values():
    params = {"key": jax.random.key(0), "start": jnp.ones(3)}
    with pytest.raises(eb.RecordingError, match=r"\['key'\]\) is a key of JAX"):
        eb.batch(lambda params, x: params["key"])(params, [1])


@pytest.mark.devices
def test_two_devices():
    eb.verify(eb.batch(chain).sharded(), make_params(), CHAINS)
