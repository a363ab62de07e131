"""Tests products of GPU programs: their widths, and JAX's precision settings."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.models import get_workload
from edbatch.target import CPU, GPU

pytestmark = pytest.mark.usefixtures("quick_compiles")

WORKLOADS = ("tree-lstm", "lattice-lstm", "bilstm-tagger")


@pytest.fixture
def planned(monkeypatch):
    """Plans a workload for a target, under the default precision settings."""

    def plan(name, target, count):
        monkeypatch.setattr("edbatch.batched.choose_target", lambda *_, **__: target)
        workload = get_workload(name)
        params = workload.init_params(jax.random.key(0), 8)
        batched = eb.batch(workload.model, params=params)
        instances = workload.sample(np.random.default_rng(0), count)
        return batched, params, batched.plan(instances)

    return plan


@pytest.mark.parametrize("name", WORKLOADS)
def test_widths_are_multiples_of_sixteen_and_few(planned, name):
    loops = {}
    for target in (CPU, GPU):
        _, _, plan = planned(name, target, 64)
        loops[target] = plan.shape.program.loops
    widths = {each.width for each in loops[GPU]}
    assert all(width % 16 == 0 and width & (width - 1) == 0 for width in widths)
    assert len(loops[GPU]) < len(loops[CPU])
    assert len(widths) <= len(GPU.widths) == 7


@eb.cell
def expert(own, state):
    return jnp.tanh(state @ own["weight"])


def stack(params, instance):
    state, numbers = instance
    for number in numbers:
        state = expert(params[number], state)
    return state


def test_families_have_no_other_widths(monkeypatch):
    monkeypatch.setattr("edbatch.batched.choose_target", lambda *_, **__: GPU)
    rng = np.random.default_rng(0)
    params = [{"weight": jnp.ones((4, 4))} for _ in range(6)]
    instances = [
        (np.ones(4, np.float32), rng.integers(0, 6, k % 9 + 1).tolist())
        for k in range(64)
    ]
    program = eb.batch(stack, params=params).plan(instances).shape.program
    assert {program.types.types[each.type_id].family for each in program.loops} - {None}
    assert {each.width % 16 for each in program.loops} == {0}


def products(text):
    """The precision attributes of the products in a lowered program."""
    lines = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    found = [re.search(r"precision = \[([^]]*)\]", line) for line in lines]
    return {
        (each[1] if each else "", "algorithm" in line)
        for each, line in zip(found, lines, strict=True)
    }


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        (None, ("DEFAULT, DEFAULT", False)),
        ("highest", ("HIGHEST, HIGHEST", False)),
        ("tensorfloat32", ("HIGH, HIGH", False)),
        ("TF32_TF32_F32", ("DEFAULT, DEFAULT", True)),
    ],
)
def test_products_have_the_precision_that_jax_is_set_to(
    planned, precision, expected, gradient
):
    batched, params, plan = planned("tree-lstm", GPU, 4)

    def total(params):
        return sum(x.sum() for x in jax.tree.leaves(batched.apply(params, plan)))

    with jax.default_matmul_precision(precision):
        traced = jax.jit(jax.grad(total) if gradient else total).trace(params)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "stablehlo.case" in text
    assert products(text) == {expected}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_products_have_the_dtype_of_the_parameters(planned, dtype):
    batched, params, _ = planned("tree-lstm", GPU, 4)
    params = jax.tree.map(lambda x: x.astype(dtype), params)
    workload = get_workload("tree-lstm")
    plan = batched.plan(workload.sample(np.random.default_rng(0), 4), params=params)
    text = jax.jit(batched.apply).lower(params, plan).as_text()
    lines = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    name = "bf16" if dtype == jnp.bfloat16 else "f32"
    assert lines
    for line in lines:
        operands = line.rpartition(" : ")[2].partition("->")[0]
        assert operands.count(f"x{name}>") == 2, line
