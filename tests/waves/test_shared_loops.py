"""Tests that layers and experts share a loop in models that ask for values."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layered_models import (
    DEPTH,
    SHARED,
    WIDTH,
    attend,
    embed,
    gain,
    project,
    scale,
    step,
)
from layered_models import make_params as make_layers

import edbatch as eb
from edbatch.cell import shared_types
from edbatch.graph.context import jitted_cells
from edbatch.instance_results import split_instances
from edbatch.target import CPU
from edbatch.waves import wave_execution
from edbatch.waves.wave import Wave

SIZES = eb.Sizes(widths=(1, 4, 8), max_waste=1e9)
CELLS = ("gain", "project", "step", "scale", "attend")

pytestmark = pytest.mark.usefixtures("quick_compiles")


@eb.cell
def route(params, state):
    return params["router"] @ state


@eb.cell
def shake(layer, state, rng):
    return state + 0.1 * layer["b"] * jax.random.normal(rng, state.shape)


def routed(params, instance):
    """Layers over words; each layer's scores choose the next layer."""
    words, first, steps = instance
    states = [embed(params["table"], word) for word in words]
    k = first
    for _ in range(steps):
        layer = params["layers"][k]
        before, above = gain(layer), []
        for state in states:
            hidden = project(layer, state, before)
            hidden, gate = step(layer, state, hidden)
            before = scale(params["common"], layer, hidden, 2)
            above.append(before)
            before = attend(layer, gate, above)
        states = above
        k = int(np.argmax(eb.value(route(params, before))))
    return states[-1], k


def noisy(params, instance):
    words, k, steps = instance
    state = embed(params["table"], words[0])
    for _ in range(steps):
        state = shake(params["layers"][k], state)
        k = int(np.argmax(eb.value(route(params, state))))
    return state


def stack(params, x):
    """Runs the layers in order of their names until a value exceeds a threshold."""
    depth = 0
    for name in sorted(params["stack"]):
        x = gate_of(params["stack"][name], x)
        depth += 1
        if eb.value(x)[0] > 0.97:
            break
    return x, depth


@eb.cell
def gate_of(layer, x):
    return jnp.tanh(layer["W"] @ x + layer["b"])


def make_params(seed=0, depth=DEPTH):
    router = np.random.default_rng(seed + 1).normal(0, 1, (depth, WIDTH))
    return make_layers(seed, depth) | {"router": router.astype(np.float32)}


def make_stack(depth, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "stack": {
            f"layer {k:02d}": {
                "W": rng.normal(0, 0.6, (WIDTH, WIDTH)).astype(np.float32),
                "b": rng.normal(0, 0.1, WIDTH).astype(np.float32),
            }
            for k in range(depth)
        }
    }


def not_a_number(array):
    return np.full_like(array, np.nan)


def sample(count, seed=0, depth=DEPTH):
    rng = np.random.default_rng(seed)
    return [
        (
            rng.integers(0, 7, int(rng.integers(1, 4))).tolist(),
            int(rng.integers(depth)),
            int(rng.integers(1, 5)),
        )
        for _ in range(count)
    ]


def vectors(count, seed=0):
    return list(np.random.default_rng(seed).normal(0, 1, (count, WIDTH)))


@pytest.fixture
def shapes(monkeypatch):
    """The shapes that the running waves are compiled for."""
    found = []

    def wave(shape, *arrays):
        found.append(shape)
        return Wave(shape, *arrays)

    monkeypatch.setattr(wave_execution, "Wave", wave)
    return found


def loops_by_cell(shape):
    """For each cell, the family sizes of its types with loops."""
    types = shape.program.types.types
    found = {}
    for type_id in sorted({loop.type_id for loop in shape.program.loops}):
        own = types[type_id]
        size = 1 if own.family is None else own.family.size
        found.setdefault(own.key.cell, []).append(size)
    return found


def check(outputs, model, params, instances):
    found = split_instances(outputs, len(instances))
    for one, instance in zip(found, instances, strict=True):
        with jitted_cells():
            expected = jax.tree.leaves(model(params, instance))
        for own, leaf in zip(jax.tree.leaves(one), expected, strict=True):
            np.testing.assert_allclose(own, leaf, rtol=2e-5, atol=2e-5)


TARGETS = {
    "loops": CPU,
    "switch": replace(CPU, control="switch", fence="barrier", fenced_slice=None),
}


@pytest.mark.parametrize(
    ("target", "policy"), [("loops", "agenda"), ("switch", "greedy")]
)
def test_a_call_equals_the_model_run_on_each_instance(
    monkeypatch, shapes, target, policy
):
    chosen = TARGETS[target]
    monkeypatch.setattr("edbatch.batched.choose_target", lambda *_, **__: chosen)
    params, instances = make_params(), sample(9)
    batched = eb.batch(routed, policy, sizes=SIZES)
    check(batched(params, instances), routed, params, instances)
    found = loops_by_cell(shapes[-1])
    assert {cell: found[cell] for cell in CELLS} == {cell: [DEPTH] for cell in CELLS}
    again = sample(14, seed=1)
    check(batched(params, again), routed, params, again)


def test_coarse_programs_compute_the_same():
    params, instances = make_params(), sample(6)
    with eb.use_tiers("auto"):
        outputs = eb.batch(routed, sizes=SIZES)(params, instances)
    check(outputs, routed, params, instances)


def test_padding_reads_no_other_member():
    """Parameters of a layer that does not run may be NaN."""
    params = make_params()
    instances = [([1, 2], 0, 1), ([3], 2, 1), ([4, 5, 6], 0, 1)]
    params["layers"][1] = jax.tree.map(not_a_number, params["layers"][1])
    params["layers"][3] = jax.tree.map(not_a_number, params["layers"][3])
    outputs = eb.batch(routed, sizes=SIZES)(params, instances)
    assert all(np.isfinite(each).all() for each in jax.tree.leaves(outputs))
    check(outputs, routed, params, instances)


def test_random_numbers_are_those_of_each_node():
    params, instances = make_params(), sample(6)
    key = jax.random.key(3)
    batched = eb.batch(noisy, sizes=SIZES)
    whole = batched(params, instances, rng=key)
    apart = eb.batch(noisy, sizes=SIZES, compiler=replace(SHARED, sharing="never"))
    np.testing.assert_allclose(whole, apart(params, instances, rng=key), rtol=1e-5)


@pytest.mark.parametrize("depth", [8, 24])
def test_a_deeper_stack_compiles_no_more(shapes, depth):
    """Each wave meets one layer; after the second, no wave compiles a program."""
    params, instances = make_stack(depth), vectors(5)
    batched = eb.batch(stack, sizes=SIZES)
    check(batched(params, instances), stack, params, instances)
    assert len(batched.types) == depth  # to the policy, each layer is a type
    # The first layer reads an external input, the others read a layer's output.
    assert len({each.program.loops for each in shapes}) == 2
    assert loops_by_cell(shapes[-1]) == {"gate_of": [depth, depth]}


def test_few_layers_and_large_ones_have_loops_of_their_own(shapes, monkeypatch):
    params, instances = make_stack(3), vectors(4)
    check(eb.batch(stack, sizes=SIZES)(params, instances), stack, params, instances)
    assert loops_by_cell(shapes[-1]) == {"gate_of": [1, 1, 1]}
    monkeypatch.setattr(shared_types, "_STACKED", 8)
    params = make_stack(6)
    check(eb.batch(stack, sizes=SIZES)(params, instances), stack, params, instances)
    assert loops_by_cell(shapes[-1]) == {"gate_of": [1] * 6}


def test_types_that_come_to_share_lose_their_own_loops(shapes, monkeypatch):
    """The parameters are too large to stack for four types, but not for five."""
    bytes_of_all = 6 * 4 * (WIDTH * WIDTH + WIDTH)
    monkeypatch.setattr(shared_types, "_STACKED", -(-bytes_of_all // 5))
    params, instances = make_stack(6), vectors(7)
    batched = eb.batch(stack, sizes=SIZES)
    check(batched(params, instances), stack, params, instances)
    assert loops_by_cell(shapes[0]) == {"gate_of": [1]}
    assert loops_by_cell(shapes[-2]) == {"gate_of": [1] * 5}
    assert loops_by_cell(shapes[-1]) == {"gate_of": [1, 6]}
    check(batched(params, instances), stack, params, instances)


def test_sharing_can_be_switched_off(shapes):
    params, instances = make_stack(6), vectors(4)
    apart = eb.batch(stack, sizes=SIZES, compiler=replace(SHARED, sharing="never"))
    check(apart(params, instances), stack, params, instances)
    assert loops_by_cell(shapes[-1]) == {"gate_of": [1] * 6}


def test_other_parameters_of_one_structure_in_later_calls():
    instances = vectors(4)
    batched = eb.batch(stack, sizes=SIZES)
    for seed in (0, 1):
        params = make_stack(5, seed)
        check(batched(params, instances), stack, params, instances)
