"""Tests the choice of targets by the device that runs, and the effect of each field."""

from dataclasses import fields, replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import poisoned
import pytest
from trees import encode, make_params, sample_trees

import edbatch as eb
from edbatch.target import (
    CPU,
    CPU_OF_ONE_CORE,
    GPU,
    TPU,
    _cpu,
    choose_target,
    target_of,
)

TREES = sample_trees(0, 8)


def array_on(platform, committed=True):
    device = SimpleNamespace(platform=platform)
    return SimpleNamespace(committed=committed, devices=lambda: [device])


def mesh_of(platform):
    return SimpleNamespace(devices=np.array([[SimpleNamespace(platform=platform)]]))


@pytest.fixture
def gpu_host(monkeypatch):
    """A host whose default backend is a GPU, although all arrays are on the CPU."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


# ---- which target ----


@pytest.fixture
def cores(monkeypatch):
    """Sets how many cores this process may use; several by default."""

    def use(count):
        _cpu.cache_clear()
        monkeypatch.setattr("edbatch.target.usable_cores", lambda: count)

    use(2)
    yield use
    _cpu.cache_clear()


@pytest.fixture(autouse=True)
def _several_cores(cores):
    """Uses the target of several cores on any machine."""


@pytest.mark.parametrize(
    ("count", "target"), [(1, CPU_OF_ONE_CORE), (2, CPU), (64, CPU)]
)
def test_one_core_has_a_target_of_its_own(cores, count, target):
    cores(count)
    assert choose_target() is target_of("cpu") is target


@pytest.mark.parametrize(
    ("platform", "target"),
    [("cpu", CPU), ("gpu", GPU), ("cuda", GPU), ("rocm", GPU), ("tpu", TPU)],
)
def test_platforms(platform, target):
    assert target_of(platform) is target
    assert choose_target({"w": [array_on(platform)]}) is target
    assert choose_target(mesh=mesh_of(platform)) is target


def test_what_decides_before_what(gpu_host):
    assert choose_target() is GPU
    with jax.default_device(jax.devices("cpu")[0]):
        assert choose_target() is CPU
        assert choose_target(array_on("tpu")) is TPU
        assert choose_target(array_on("tpu", committed=False)) is CPU
    with jax.default_device("cpu"):
        assert choose_target() is CPU
    assert choose_target([np.ones(3), jnp.ones(3), 2.0, array_on("tpu")]) is TPU
    assert choose_target(array_on("tpu"), mesh_of("cpu")) is CPU


def test_what_is_traced_is_nowhere_yet(gpu_host):
    seen = []
    committed = jax.device_put(jnp.ones(3), jax.devices("cpu")[0])

    def choose(x):
        for arrays in (x, (committed, x), (x, committed)):
            seen.append(choose_target(arrays))
            seen.append(choose_target(arrays, unknown=TPU))

    jax.jit(choose)(committed)
    assert seen == [GPU, TPU, CPU, TPU, CPU, TPU]
    assert choose_target(committed, unknown=TPU) is CPU


def targets_run(batched):
    """A list to which each program that the function traces adds its target."""
    seen, run = [], batched._counted_run_packed

    def counted(packed, plan, rng):
        seen.append(plan.shape.program.options.target)
        return run(packed, plan, rng)

    batched._run_packed = jax.jit(counted)
    return seen


def test_plans_and_calls_follow_the_parameters(gpu_host):
    params = make_params()
    there = jax.device_put(params, jax.devices("cpu")[0])
    sizes = eb.Sizes(widths=(4, 16), chunk_overhead=10.0)
    batched = eb.batch(encode, cache_bytes=2**20, sizes=sizes)
    options = [
        batched.plan(TREES, params=each).shape.program.options
        for each in (params, there)
    ]
    assert [each.target for each in options] == [GPU, CPU]
    seen = targets_run(batched)
    plan = batched.bind(params).plan(TREES)
    assert plan.shape.program.options.target is GPU
    expected = jax.tree.leaves(batched.apply(params, plan))
    for found in (batched(there, TREES), batched.apply(there, plan)):
        for one, other in zip(jax.tree.leaves(found), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)
    assert seen == [GPU, CPU]


def test_a_sharded_plan_is_for_the_devices_of_its_mesh(gpu_host):
    params = make_params()
    sharded = eb.batch(encode, params=params).sharded()
    plan = sharded.plan(TREES)
    assert plan.shards.shape.program.options.target is CPU


def test_programs_of_two_targets_are_two():
    batched = eb.batch(encode, params=make_params())
    plan = batched.plan(TREES)
    assert plan.on(CPU) is plan
    other = plan.on(GPU).shape.program
    assert other != plan.shape.program
    assert other == plan.on(replace(GPU)).shape.program


# ---- effects of a target ----


def planned(target, monkeypatch, **options):
    monkeypatch.setattr("edbatch.batched.choose_target", lambda *_: target)
    batched = eb.batch(encode, params=make_params(), **options)
    plan = batched.plan(TREES)
    monkeypatch.undo()
    return batched, plan


def lowered(target, monkeypatch, *, sizes=None, gradient=False):
    """The lowered program, as JAX passes it to XLA."""
    sizes = sizes or eb.Sizes(widths=(4, 16))
    batched, plan = planned(target, monkeypatch, sizes=sizes)
    assert plan.shape.program.options.target is target

    def total(params):
        return sum(x.sum() for x in jax.tree.leaves(batched.apply(params, plan)))

    function = jax.grad(total) if gradient else total
    return jax.jit(function).lower(make_params()).as_text()


def whiles(text):
    return text.count("stablehlo.while")


def barriers(text):
    return text.count("stablehlo.optimization_barrier")


def test_widths(monkeypatch):
    wide = replace(CPU, widths=(5, 7))
    batched, plan = planned(wide, monkeypatch)
    widths = {loop.width for loop in plan.shape.program.loops}
    assert widths and widths <= {5, 7}
    # The same function on another target: buckets are kept apart.
    widths = {loop.width for loop in batched.plan(TREES).shape.program.loops}
    assert widths <= {*CPU.widths}
    _, plan = planned(wide, monkeypatch, sizes=eb.Sizes(widths=(3,)))
    assert {loop.width for loop in plan.shape.program.loops} == {3}


def test_the_overhead_of_a_chunk():
    dear = replace(CPU, chunk_overhead=1000.0)
    assert len(eb.Sizes().on(dear).cut(130)) == 1 < len(eb.Sizes().on(CPU).cut(130))
    given = eb.Sizes(chunk_overhead=1.0)
    assert given.on(dear) == given


@pytest.mark.parametrize("gradient", [False, True])
def test_fences(monkeypatch, gradient):
    loops = lowered(CPU, monkeypatch, gradient=gradient)
    barrier = replace(CPU, fence="barrier")
    found = lowered(barrier, monkeypatch, gradient=gradient)
    assert barriers(loops) == 0 < barriers(found)
    assert whiles(found) == whiles(loops) - barriers(found)


def test_slices_that_are_fenced():
    params = poisoned.make_params()
    batched = eb.batch(poisoned.chain, params=params, sizes=eb.Sizes(widths=(4,)))
    plan = batched.plan(poisoned.sample_chains(1, (3, 5, 2, 4), 0))
    assert any(loop.sliced for loop in plan.shape.program.loops)

    def count(elements):
        own = plan.on(replace(CPU, fenced_slice=elements))
        return whiles(jax.jit(lambda p: batched.apply(p, own)).lower(params).as_text())

    assert count(None) == count(2**30) < count(1)


def test_groups_of_loops(monkeypatch):
    sizes = eb.Sizes(widths=(1, 2, 4, 8, 16))

    def count(most):
        target = replace(CPU, ungrouped_loops=most)
        return whiles(lowered(target, monkeypatch, sizes=sizes))

    assert count(1) == count(2) > count(100)


def test_results_are_those_of_every_target(monkeypatch):
    params = make_params()
    expected = jax.tree.leaves(eb.batch(encode)(params, TREES))
    for target in (
        GPU,
        replace(CPU, fence="barrier", fenced_slice=1, ungrouped_loops=0),
        replace(CPU, widths=(3, 10), pretransposed_bytes=0, page_bytes=8),
        CPU_OF_ONE_CORE,
    ):
        batched, plan = planned(target, monkeypatch)
        found = jax.tree.leaves(jax.jit(batched.apply)(params, plan))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_every_field_has_a_test():
    """Other fields: `tests/cell`, `stream`, `executor`, `compilation`, `loader`."""
    here = {"widths", "chunk_overhead", "fence", "fenced_slice", "ungrouped_loops"}
    columns = {"page_bytes", "line_bytes", "padded_bytes"}
    named = {each.name for each in fields(CPU)}
    elsewhere = {
        "kind",
        "control",
        "taped_contraction",
        "pretransposed_bytes",
        "coarse_options",
        "small_product",
        "wide_chunk",
        "small_product_options",
        "member_widths",
        "own_memory",
        "integer_rows",
    }
    # Costs that planning compares, tested in `tests/memory_planner` and `tests/stream`.
    costs = {"gather_row_ns", "align_node_ns"}
    assert named == elsewhere | here | columns | costs
