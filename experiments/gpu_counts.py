"""What a minibatch does on a GPU, counted on a machine without one.

Compiles the program of a minibatch for an H200 or A100 (see `gpu_module`) and counts,
for that minibatch: kernels per chunk, copies of arenas, the conditions that are asked
for, and *host round trips*, the conditions that the host waits for. Seconds are CPU
seconds of XLA without ptxas; autotuning is off. Needs the extra ``gpu-aot``:

    pip install -e ".[gpu-aot]"
    python experiments/gpu_counts.py
    python experiments/gpu_counts.py --devices A100 --models twenty-types --hidden 64
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from gpu_execution import executed

import edbatch as eb
from edbatch.benchmark.loss import half_squares
from edbatch.executor.arenas import compiled_copies
from edbatch.models import get_workload
from edbatch.plan import Plan
from edbatch.target import GPU

import gpu_module
from arguments import option, parse_arguments
from loop_counts import run_counted


@dataclass(frozen=True)
class Arguments:
    models: str = option(
        "tree-lstm,lattice-lstm,twenty-types", "Ready workloads, or twenty-types."
    )
    passes: str = option("forward,gradient", "Which to compile.")
    devices: str = option("H200,A100", "For which devices.")
    hidden: int = option(256, "Length of the models' states.")
    batch_size: int = option(64, "Instances per minibatch.")
    commands: str = option("", "Value of xla_gpu_enable_command_buffer; XLA's default.")
    json: bool = option(False, "One line of JSON per program in place of a table.")


@dataclass(frozen=True)
class Counts:
    """Counts of one program and minibatch.

    Attributes:
        device: The device.
        model: The model.
        way: ``"forward"`` or ``"gradient"``.
        loops: Loops of the program: a type, width and set of slices each.
        chunks: Chunks of the minibatch.
        whiles: While loops in what XLA compiled.
        conditionals: Conditionals.
        kernels_per_chunk: Kernels that run, all of the minibatch's, per chunk.
        copies_per_chunk: Copies that run, most of them of scalars, per chunk.
        arena_copies: Copies of a whole arena inside loops.
        conditions: Conditions and indices that are asked for.
        round_trips: Those that the host waits for.
        launches: What the host launches.
        temporary_mib: Memory beside arguments and results, MiB.
        compile_s: CPU seconds of XLA.
        error: Largest difference from the program that JAX compiles for the CPU,
            relative to the largest entry of its array.
    """

    device: str
    model: str
    way: str
    loops: int
    chunks: int
    whiles: int
    conditionals: int
    kernels_per_chunk: float
    copies_per_chunk: float
    arena_copies: int
    conditions: int
    round_trips: int
    launches: int
    temporary_mib: float
    compile_s: float
    error: float


def _cell(number: int) -> Any:
    """Makes one of twenty cells, no two of which have the same equations."""
    share = number / 20  # states stay near 1 however many cells follow

    def unary(params: Any, state: Any) -> Any:
        return jnp.tanh(state @ params["weight"] + share)

    def binary(params: Any, left: Any, right: Any) -> Any:
        both = jnp.concatenate([left, right])
        return jnp.tanh(both @ params["weight"]) + share * left

    function = binary if number % 2 else unary
    function.__name__ = f"{function.__name__}_{number}"
    return eb.cell(function)


_CELLS = [_cell(number) for number in range(20)]


def twenty_types(params: Any, instance: Any) -> Any:
    """Runs cells by their numbers; those of odd numbers join the last two states."""
    numbers, first = instance
    before = state = _CELLS[0](params[0], first)
    for number in numbers:
        own = params[number]
        if number % 2:
            before, state = state, _CELLS[number](own, state, before)
        else:
            before, state = state, _CELLS[number](own, state)
    return state


def load(name: str, hidden: int, count: int) -> tuple[Any, Any, list[Any]]:
    """Returns a model, its parameters and a minibatch."""
    rng = np.random.default_rng(0)
    if name != "twenty-types":
        workload = get_workload(name)
        params = workload.init_params(jax.random.key(0), hidden)
        return workload.model, params, workload.sample(rng, count)

    def array(*shape: int) -> Any:
        return jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[0]), jnp.float32)

    params = [
        {"weight": array(hidden * (1 + number % 2), hidden)} for number in range(20)
    ]
    instances = [
        (rng.integers(1, 20, 12).tolist(), rng.normal(size=hidden).astype(np.float32))
        for _ in range(count)
    ]
    return twenty_types, params, instances


def function_of(batched: Any, way: str) -> Callable[[Any, Plan], Any]:
    """Returns the forward pass or the gradient of a batched function."""
    if way == "forward":
        run: Callable[[Any, Plan], Any] = batched.apply
        return run

    def gradient(params: Any, plan: Plan) -> Any:
        return jax.grad(lambda own: half_squares(batched.apply(own, plan)))(params)

    return gradient


def measure(name: str, way: str, arguments: Arguments) -> list[Counts]:
    """Counts one program on each device."""
    model, params, instances = load(name, arguments.hidden, arguments.batch_size)
    batched = eb.batch(model, params=params)
    plan = plan_for_gpu(batched, instances)
    run = function_of(batched, way)
    found, places = run_counted(run, params, plan)
    expected = jax.tree.leaves(jax.jit(run)(params, batched.plan(instances)))
    error = max(map(_difference, found, expected))
    options: dict[str, Any] = {}
    if arguments.commands:
        options["xla_gpu_enable_command_buffer"] = arguments.commands
    counts = []
    for device in arguments.devices.split(","):
        module = gpu_module.compile_for(device, run, params, plan, options=options)
        done = executed(module, places)
        chunks = int(plan.trips.sum())
        copies = compiled_copies(module.compiled, plan.shape.program, entry=False)
        # Fusions that clear two arrays at once hold a copy of the constant.
        inner = [line for line in copies if "copy(%broadcast" not in line]
        counts.append(
            Counts(
                device=device,
                model=name,
                way=way,
                loops=len(plan.shape.program.loops),
                chunks=chunks,
                whiles=module.text.count(" while("),
                conditionals=module.text.count(" conditional("),
                kernels_per_chunk=round(done.kernels / chunks, 1),
                copies_per_chunk=round(done.copies / chunks, 1),
                arena_copies=len(inner),
                conditions=done.conditions,
                round_trips=done.round_trips,
                launches=done.launches,
                temporary_mib=round(module.temporary_bytes / 2**20, 1),
                compile_s=round(module.seconds, 1),
                error=error,
            )
        )
    return counts


def _difference(found: Any, expected: Any) -> float:
    """The largest difference of two arrays, relative to the largest entry."""
    if not expected.size:
        return 0.0
    scale = max(float(jnp.abs(expected).max()), np.finfo(np.float32).tiny)
    return float(jnp.abs(found - expected).max()) / scale


def plan_for_gpu(batched: Any, instances: list[Any]) -> Plan:
    """Plans a minibatch as on a host whose default backend is a GPU."""
    with patch("edbatch.batched.choose_target", lambda *_: GPU):
        plan: Plan = batched.plan(instances)
    return plan


COLUMNS = {
    "device": "device", "model": "model", "way": "pass", "loops": "loops",
    "chunks": "chunks", "whiles": "whiles", "conditionals": "switches",
    "kernels_per_chunk": "kernels/chunk", "copies_per_chunk": "copies/chunk",
    "arena_copies": "arena copies", "conditions": "conditions",
    "round_trips": "round trips", "launches": "launches",
    "temporary_mib": "temporary MiB", "compile_s": "XLA s",
}  # fmt: skip


def main(arguments: Arguments) -> None:
    gpu_module.prepare_plugin()
    if not arguments.json:
        print("| " + " | ".join(COLUMNS.values()) + " |")
        print("|" + " --- |" * len(COLUMNS), flush=True)
    for name in arguments.models.split(","):
        for way in arguments.passes.split(","):
            for each in measure(name, way, arguments):
                row = asdict(each)
                if arguments.json:
                    print(json.dumps(row), flush=True)
                else:
                    cells = [str(row[column]) for column in COLUMNS]
                    print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(parse_arguments(Arguments, __doc__))
