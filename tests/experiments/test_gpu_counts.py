"""Counts of what programs do on a GPU, compiled for it without having one."""

import functools
import importlib.util
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb

PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


def missing_plugin():
    return not any(importlib.util.find_spec(each) for each in PLUGINS)


@pytest.fixture(scope="module")
def compiled(experiment):
    """From the script's modules: `Module`, `read_thunks` and `executed`."""
    import gpu_execution
    import gpu_thunks

    import gpu_module

    return SimpleNamespace(
        Module=gpu_module.Module,
        executed=gpu_execution.executed,
        read_thunks=gpu_thunks.read_thunks,
    )


THUNKS = """
000: kCommandBuffer [source | next=001 (1)]
    001: kCopy         [source | sink] kCopy
002: kWhile         [prev=000 (1) | sink]
condition:
    003: kCustomKernel [source | sink] compare grid: [1, 1, 1]
  body:
    000: kCommandBuffer [source | next=004 (1)]
        004: kConditional [source | sink]
          branch_0:
            005: kCustomKernel [source | sink] first grid: [1, 1, 1]
          branch_1:
            006: kCustomKernel [source | sink] second grid: [1, 1, 1]
            007: kCustomKernel [source | sink] third grid: [1, 1, 1]
    008: kWhile [prev=000 (1) | sink]
condition:
        009: kCustomKernel [source | sink] compare_1 grid: [1, 1, 1]
      body:
        010: kCustomKernel [source | sink] inner grid: [1, 1, 1]
    011: kCustomKernel [prev=008 (1) | sink] last grid: [1, 1, 1]
"""


def alternating(x, count):
    def step(carry):
        k, x = carry
        x = jax.lax.cond(k % 2 == 0, lambda x: x + 1, lambda x: x * 2, x)
        return k + 1, jax.lax.fori_loop(0, k, lambda _, x: x + 3, x)

    return jax.lax.while_loop(lambda carry: carry[0] < count, step, (0, x))[1]


def test_loops_and_branches_are_counted_as_they_run(experiment):
    [found], [loop] = experiment.run_counted(alternating, jnp.float32(1), 5)
    assert found == alternating(jnp.float32(1), 5)
    assert (loop.kind, loop.runs, loop.iterations) == ("while", 1, 5)
    conditional, inner = loop.inner[1]
    assert (conditional.runs, sum(conditional.branches)) == (5, 5)
    assert sorted(conditional.branches) == [2, 3]
    assert (inner.runs, inner.iterations) == (5, 0 + 1 + 2 + 3 + 4)


def test_what_runs_is_counted_in_the_tree_of_thunks(experiment, compiled):
    thunks = compiled.read_thunks(THUNKS)
    assert [each.kind for each in thunks] == ["kCommandBuffer", "kWhile"]
    _, places = experiment.run_counted(alternating, jnp.float32(1), 5)
    conditional = places[0].inner[1][0]
    names = {2: "while.1", 8: "while.2"}
    module = compiled.Module(thunks, names, "", 0.0, 0, None)
    done = compiled.executed(module, places)
    # Conditions: 6 of the outer loop, 5 indices, 10 + 5 of the inner loop.
    assert done.conditions == 6 + 5 + 15
    # The conditional is in a command buffer, where the device decides.
    assert done.round_trips == 6 + 15
    first, second = conditional.branches
    assert done.kernels == 6 + first + 2 * second + 15 + 10 + 5
    assert done.copies == 1
    assert done.launches == 1 + 6 + 5 + 15 + 10 + 5
    # A loop whose trip count the host knows needs no round trip.
    text = '%while.2 = f32[] while(%x), backend_config={"known_trip_count":{"n":"2"}}'
    module = compiled.Module(thunks, names, text, 0.0, 0, None)
    assert compiled.executed(module, places).round_trips == 6


def test_arrays_that_are_cleared_are_added_up(compiled):
    text = """
%inner {
  %a = f32[999]{0} fusion(), kind=kLoop, calls=%b
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %one = f32[8,2]{1,0} fusion(), kind=kLoop, calls=%b, metadata={op_name="zeros"}
  %two = (bf16[4]{0}, pred[3]{0}) fusion(), kind=kLoop, calls=%b
  %three = f32[8]{0} fusion(%x), kind=kLoop, calls=%b
  %four = s32[] fusion(), kind=kLoop, calls=%b
}
"""
    module = compiled.Module([], {}, text, 0.0, 0, None)
    assert module.cleared_bytes == 8 * 2 * 4 + 4 * 2 + 3 + 4


def test_loops_that_xla_made_are_no_match(experiment, compiled):
    _, places = experiment.run_counted(alternating, jnp.float32(1), 5)
    module = compiled.Module(
        compiled.read_thunks(THUNKS), {2: "while.1", 8: "while.2"}, "", 0.0, 0, None
    )
    with pytest.raises(ValueError, match="it made some"):
        compiled.executed(module, places[:0])


def test_loops_of_operations_turn_as_often_as_xla_says(experiment, compiled):
    text = """
000: kWhile         [source | sink]
condition:
    001: kCustomKernel [source | sink] compare grid: [1, 1, 1]
  body:
    002: kConditional [source | sink]
      branch_0:
        003: kCustomKernel [source | sink] first grid: [1, 1, 1]
      branch_1:
        004: kCustomKernel [source | sink] second grid: [1, 1, 1]
005: kWhile         [source | sink]
condition:
    006: kCustomKernel [source | sink] less grid: [1, 1, 1]
  body:
    007: kCustomKernel [source | sink] search grid: [1, 1, 1]
"""

    def conditional(x):
        def step(k, x):
            return jax.lax.cond(k % 2 == 0, lambda x: x + 1, lambda x: x * 2, x)

        return jax.lax.fori_loop(0, 5, step, x)

    _, places = experiment.run_counted(conditional, jnp.float32(1))
    hlo = "".join(
        f'%while.{k} = f32[] while(%x), backend_config={{"known_trip_count":{{"n":"{n}"'
        for k, n in ((1, 5), (2, 7))
    ).replace("%while.2", "\n%while.2")
    hlo = hlo.replace("%while.1", "%wide.while.1").replace('"5"', '"9"') + f"\n{hlo}"
    thunks = compiled.read_thunks(text)
    module = compiled.Module(thunks, {0: "while.1", 5: "while.2"}, hlo, 0.0, 0, None)
    done = compiled.executed(module, places)
    assert done.kernels == 5 + 7
    assert done.round_trips == done.conditions == 5  # the conditional's


def test_twenty_types_are_twenty(experiment):
    import gpu_cases

    model, params, instances = gpu_cases.load("twenty-types", 8, 16)
    batched = eb.batch(model, params=params)
    plan = batched.plan(instances)
    assert len({loop.type_id for loop in plan.shape.program.loops}) == 20
    for one, instance in zip(batched(params, instances), instances, strict=True):
        np.testing.assert_allclose(one, model(params, instance), rtol=1e-5, atol=1e-4)


LIMIT_S = 540  # for both passes of a model, which take 20 to 50 CPU seconds


@pytest.fixture(scope="module")
def counted(script):
    """Counts of a model on a device, by pass; each is compiled once."""
    if missing_plugin():
        pytest.skip("needs JAX's plugin for CUDA: pip install edbatch[gpu-aot]")

    @functools.cache
    def count(model, device, passes="forward,gradient"):
        command = [sys.executable, "-P", script, "--json", "--models", model]
        command += ["--passes", passes]
        command += ["--devices", device, "--hidden", "32", "--batch-size", "8"]
        environment = os.environ | {"PYTHONPATH": str(script.parent)}
        for name in ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS"):
            environment.pop(name, None)
        found = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=environment,
            check=False,
            timeout=LIMIT_S,
        )
        assert found.returncode == 0, found.stderr
        rows = [json.loads(line) for line in found.stdout.splitlines()]
        return {each["way"]: each for each in rows}

    return count


@pytest.mark.gpu_aot
@pytest.mark.parametrize("way", ["forward", "gradient"])
@pytest.mark.parametrize(
    ("model", "device"),
    [
        ("tree-lstm", "H200"),
        pytest.param("tree-lstm", "A100", marks=pytest.mark.slow),
        ("lattice-lstm", "H200"),
        ("twenty-types", "H200"),
    ],
)
def test_the_host_is_not_asked_and_no_arena_is_copied(counted, model, device, way):
    found = counted(model, device)[way]
    passes = 1 if way == "forward" else 2
    assert found["round_trips"] == 0, found
    # At most 2 launches per chunk of the bucket and pass, and some before and after.
    assert found["launches"] <= passes * (2 * found["chunks"] + 32), found
    assert found["conditionals"] == passes, found
    assert found["arena_copies"] == 0, found
    assert found["kernels_per_chunk"] <= (30 if way == "forward" else 90), found
    assert found["error"] < 1e-4, found
    if way == "forward":  # arenas are allocated, and only their first row is cleared
        assert found["cleared_mib"] <= 0.1, found


@pytest.mark.gpu_aot
def test_a_wave_asks_nothing_and_copies_no_donated_arena(counted):
    found = counted("parser", "H200", "wave")["wave"]
    assert found["round_trips"] == found["arena_copies"] == 0, found
    assert found["conditionals"] == 1 and found["chunks"] > 8, found
    assert found["launches"] <= 2 * 2 * found["chunks"] + 32, found
    assert found["error"] < 1e-4, found
