"""Tests names of operations in compiled programs, and that names cost nothing."""

import re
from contextlib import ContextDecorator, nullcontext
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trees import encode, make_params, sample_trees

import edbatch as eb
from edbatch.executor.coarse import type_loops
from edbatch.executor.loop_name import loop_name
from edbatch.models import get_workload
from edbatch.target import CPU

HIDDEN = 24
SWITCH = replace(CPU, control="switch")


@pytest.fixture(params=["loops", "switch", "coarse"])
def control(request, monkeypatch):
    """How the program selects the code of a chunk."""
    if request.param == "switch":
        monkeypatch.setattr("edbatch.batched.choose_target", lambda *_, **__: SWITCH)
    return request.param


def forward(batched, tier):
    return lambda params, plan: batched.apply(params, plan.in_tier(tier))


def gradient(batched, tier):
    def loss(params, plan):
        found = batched.apply(params, plan.in_tier(tier))
        return sum(jnp.sin(each).sum() for each in jax.tree.leaves(found))

    return jax.grad(loss)


def scopes(op_name):
    """The names of loops and types in an operation's metadata."""
    return [each for each in op_name.split("/") if re.fullmatch(r".*\[\w+\]", each)]


def products(text):
    """Name scopes and shape of each product in a compiled program."""
    found = []
    for line in text.splitlines():
        if re.search(r"= \S+ (dot|custom-call)\(", line) and "dot_general" in line:
            shape = re.search(r"= \w+\[([\d,]*)\]", line)[1]
            name = re.search(r'op_name="([^"]*)"', line)[1]
            found.append((scopes(name), [int(each) for each in shape.split(",")]))
    return found


@pytest.mark.parametrize("make", [forward, gradient])
def test_each_operation_names_its_cell_and_width(control, make):
    params, rng = make_params(HIDDEN), np.random.default_rng(0)
    batched = eb.batch(encode, params=params, compiler=eb.Compiler(slices="never"))
    plan = batched.plan(sample_trees(rng, 12))
    tier = "coarse" if control == "coarse" else "fine"
    run = jax.jit(make(batched, tier)).lower(params, plan)
    text = run.compile().as_text()
    program = plan.shape.program
    types = program.types.types
    names = {loop_name(types[each.type_id], each) for each in program.loops}
    named = {
        name for each in re.findall(r'op_name="([^"]*)"', text) for name in scopes(each)
    }
    if control == "coarse":  # one body for all widths of a type
        names = {
            loop_name(types[each.common.type_id], each.common)
            for each in type_loops(program.loops)
        }
        assert len(names) == 2
    assert names <= named
    if make is gradient:
        assert any(each.endswith("[weights]") for each in named)
    found = products(text)
    if control == "switch":
        assert "conditional" in text, "the program is one of switches"
    in_loops = [(own, shape) for own, shape in found if own and own[-1] in names]
    assert in_loops, "there are products in loops"
    for own, shape in in_loops:
        width = int(own[-1].split("[")[1][:-1])
        assert width in shape, (own, shape)
        assert len(own) == 1, "a loop is in no other"
    outside = [own for own, _ in found if not own or own[-1] not in names]
    assert all(own and own[-1].endswith("[weights]") for own in outside)


class Unnamed(nullcontext, ContextDecorator):
    """A stand-in for `jax.named_scope` that adds no name."""

    def __init__(self, name):
        super().__init__()


@pytest.mark.parametrize(
    ("workload", "make"),
    [("tree-lstm", forward), ("tree-lstm", gradient), ("lattice-lstm", forward)],
)
def test_names_change_nothing_else(control, make, workload, monkeypatch):
    ready = get_workload(workload)
    params = ready.init_params(jax.random.key(0), 8)
    instances = ready.sample(np.random.default_rng(1), 3)
    tier = "coarse" if control == "coarse" else "fine"

    def lower():
        batched = eb.batch(ready.model, params=params)
        plan = batched.plan(instances)
        return jax.jit(make(batched, tier)).lower(params, plan)

    def counted(lowered):
        text = lowered.as_text()
        return len(text), text.count("func.func"), text.count("call @")

    named = lower()
    monkeypatch.setattr(jax, "named_scope", Unnamed)
    unnamed = lower()
    assert counted(named) == counted(unnamed)
    texts = [each.as_text(debug_info=True) for each in (named, unnamed)]
    assert [bool(re.search(r"/\w+({[\w.]+})?\[\d+\]", each)) for each in texts] == [
        True,
        False,
    ]


def test_names_compile_nothing_more():
    """A second minibatch of the same sizes runs the first one's program."""
    params, rng = make_params(HIDDEN), np.random.default_rng(0)
    batched = eb.batch(encode, params=params)
    minibatches = [sample_trees(rng, 12) for _ in range(2)]
    for each in minibatches:
        batched.plan(each)  # sets the bucket's final size
    run = jax.jit(batched.apply)
    for each in minibatches:
        run(params, batched.plan(each))
    assert batched.compiles == 1


@pytest.mark.parametrize(
    "name", ['say "hi"', "a/b", "<lambda>", "größer", "a\nb", "%s{}"]
)
def test_cells_of_any_name(name):
    twice = eb.cell(lambda params, x: jnp.tanh(params * x), name=name)
    batched = eb.batch(twice, params=jnp.float32(2))
    plan = batched.plan([1.0, 3.0])
    expected = np.tanh(np.float32([2, 6]))
    np.testing.assert_allclose(batched.apply(jnp.float32(2), plan), expected, rtol=1e-6)


def test_layers_and_families_are_told_apart():
    """A loop's name has the path of the type's parameters, or a star for a family."""

    @eb.cell
    def layer(weight, x):
        return jnp.tanh(weight @ x)

    def model(params, x):
        for weight in params["layers"]:
            x = layer(weight, x)
        return x

    params = {"layers": [jnp.eye(4)] * 5}
    for sharing, expected in [
        ("never", {f"layer{{layers.{k}}}" for k in range(5)}),
        ("auto", {"layer{layers.0}", "layer{*}"}),  # the first layer reads no value
    ]:
        batched = eb.batch(model, compiler=eb.Compiler(sharing=sharing), params=params)
        plan = batched.plan([np.ones(4, np.float32)] * 3)
        types = plan.shape.program.types.types
        loops = plan.shape.program.loops
        names = {loop_name(types[each.type_id], each) for each in loops}
        assert {each.split("[")[0] for each in names} == expected
        text = jax.jit(batched.apply).lower(params, plan).compile().as_text()
        for each in names:
            assert f"/{each}/" in text
