"""Tests types with more operands than an integer has bits."""

import importlib

import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.memory_planner.layout import plan_layout
from edbatch.policies import Greedy
from edbatch.stream.encode import encode
from edbatch.stream.format import find_chunks, record_formats

encode_module = importlib.import_module("edbatch.stream.encode")
SIZES = eb.Sizes(widths=(4,))
PARAMS = {"a": jnp.float32([0.5, -0.5, 0.7]), "b": jnp.float32([1.5, 0.2, -0.3])}


@eb.cell
def leaf(params, x):
    return jnp.tanh(params["a"] * x)


@eb.cell(padded=("items",), lengths=(40, 80, 140))
def attend(params, h, items, mask):
    return jnp.tanh(params["b"] * h + jnp.mean(items, axis=0, where=mask[:, None]))


def model(params, numbers):
    items = [leaf(params, each) for each in numbers]
    state = items[0]
    for _ in range(3):
        state = attend(params, state, items)
    return state


@pytest.fixture
def instances(request):
    rng = np.random.default_rng(0)
    return [rng.normal(size=(request.param - k, 3)).astype("f") for k in range(4)]


@pytest.mark.parametrize("instances", [40, 80, 140], indirect=True)
def test_the_state_is_read_as_a_slice_and_the_list_is_gathered(instances):
    batched = eb.batch(model, params=PARAMS, sizes=SIZES)
    graph = batched.graph(instances)
    layout = plan_layout(graph, Greedy().schedule(graph.structure), SIZES)
    variants = ((), (0,))
    chosen = np.ones(len(layout.chunk_start), np.int32)
    chosen[graph.node_type[layout.order[layout.chunk_start]] == 0] = 0  # leaves
    stream = encode(graph, layout, variants, chosen)
    formats = record_formats(graph.types.types, stream.loops)
    trips = np.zeros((len(stream.chunk_loop), len(formats)), np.int32)
    trips[np.arange(len(trips)), stream.chunk_loop] = 1
    assert find_chunks(formats, trips).start[-1] == len(stream.records)


@pytest.mark.parametrize("tier", ["coarse", "fine"])
@pytest.mark.parametrize("instances", [80, 140], indirect=True)
def test_numbers(instances, tier, quick_compiles):
    batched = eb.batch(
        model, params=PARAMS, sizes=SIZES, compiler=eb.Compiler(slices="always")
    )
    loops = batched.plan(instances).shape.program.loops
    assert any(each.sliced for each in loops)
    eb.verify(batched, PARAMS, instances, tier=tier)


@eb.cell
def scale(weight, x):
    return weight * x


def test_more_types_than_a_number_of_16_bits_counts():
    compiler = eb.Compiler(sharing="never", hoisting="never")
    params = {"w": [jnp.float32(k) for k in range(10)]}
    batched = eb.batch(
        lambda params, each: scale(params["w"][each[0]], each[1]),
        params=params,
        compiler=compiler,
    )
    types = batched.graph([(k, np.float32(1)) for k in range(5)]).types
    for _ in range(40_000 - len(types)):  # stand-ins for types of other experts
        types.add(types.types[len(types) % 5])
    plan = batched.plan([(k, np.float32(1)) for k in range(10)])
    assert max(loop.type_id for loop in plan.shape.program.loops) > 40_000
    assert batched.apply(params, plan).tolist() == list(range(10))


def test_more_types_than_there_may_be(monkeypatch):
    monkeypatch.setattr(encode_module, "_TYPE_BITS", 1)
    batched = eb.batch(model, params=PARAMS, sizes=SIZES)
    numbers = [np.ones(3, np.float32)] * 41
    with pytest.raises(eb.PlanError, match=r"at most 2 types of nodes but .* has 3"):
        batched.plan([numbers, numbers[:9]])
