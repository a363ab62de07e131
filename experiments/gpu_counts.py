"""Counts a minibatch's kernels, copies and round trips on a GPU, without having a GPU.

Compiles the program of a minibatch for an H200 or A100 (see `gpu_module`) and counts,
for that minibatch: kernels per chunk, copies of arenas, evaluated conditions, and *host
round trips*, which are the conditions that the host waits for. Seconds are CPU seconds
of XLA without ptxas; autotuning is off. Needs the extra ``gpu-aot``:

    pip install -e ".[gpu-aot]"
    python experiments/gpu_counts.py
    python experiments/gpu_counts.py --models parser --passes wave
    python experiments/gpu_counts.py --devices A100 --models twenty-types --hidden 64
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gpu_cases import make_case
from gpu_execution import executed

from edbatch.executor.arenas import compiled_copies

import gpu_module
from arguments import option, parse_arguments
from loop_counts import run_counted

# Maximum error relative to the largest entry, as in the tests of gradients.
_MOST_ERROR = 1e-2


@dataclass(frozen=True)
class Arguments:
    models: str = option(
        "tree-lstm,lattice-lstm,twenty-types",
        "Ready workloads, twenty-types, or parser, which has waves.",
    )
    passes: str = option(
        "forward,gradient", "Which to compile; wave, of a model that has them."
    )
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
        way: ``"forward"``, ``"gradient"`` or ``"wave"``.
        loops: Loops of the program, each for a type, width and set of slices.
        chunks: Chunks of the minibatch.
        whiles: While loops in the compiled module.
        conditionals: Conditionals in the compiled module.
        kernels_per_chunk: Kernels that the minibatch runs, divided by its chunks.
        copies_per_chunk: Copies that the minibatch runs, mostly of scalars, divided by
            its chunks.
        arena_copies: Copies of a whole arena inside loops; of a donated arena anywhere.
        conditions: Evaluated loop conditions and conditional indices.
        round_trips: Conditions and indices that the host waits for.
        launches: Launches by the host.
        cleared_mib: Arrays filled with a constant in each call, MiB.
        temporary_mib: Memory besides arguments and results, MiB.
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
    cleared_mib: float
    temporary_mib: float
    compile_s: float
    error: float


def measure(name: str, way: str, arguments: Arguments) -> list[Counts]:
    """Counts one program on each device."""
    case = make_case(name, way, arguments.hidden, arguments.batch_size)
    found, places = run_counted(case.run, *case.arguments)
    errors = list(map(_difference, jax.tree.leaves(found), case.expected))
    error = float(np.max(errors))  # Python's max would lose a NaN
    if not error < _MOST_ERROR:
        raise SystemExit(
            f"{name}, {way}: outputs differ from those of the program that JAX compiles"
            f" for the CPU by {error:.1e} of the largest entry; counts of a wrong"
            " program say nothing"
        )
    options: dict[str, Any] = {}
    if arguments.commands:
        options["xla_gpu_enable_command_buffer"] = arguments.commands
    counts = []
    for device in arguments.devices.split(","):
        module = gpu_module.compile_for(
            device, case.run, *case.arguments, donated=case.donated, options=options
        )
        done = executed(module, places)
        # Donated arguments must not be copied outside of loops either.
        copies = compiled_copies(
            module.compiled, case.program, entry=bool(case.donated)
        )
        # Fusions that clear two arrays at once contain a copy of the constant.
        own = [line for line in copies if "copy(%broadcast" not in line]
        counts.append(
            Counts(
                device=device,
                model=name,
                way=way,
                loops=len(case.program.loops),
                chunks=case.chunks,
                whiles=module.text.count(" while("),
                conditionals=module.text.count(" conditional("),
                kernels_per_chunk=round(done.kernels / case.chunks, 1),
                copies_per_chunk=round(done.copies / case.chunks, 1),
                arena_copies=len(own),
                conditions=done.conditions,
                round_trips=done.round_trips,
                launches=done.launches,
                cleared_mib=round(module.cleared_bytes / 2**20, 1),
                temporary_mib=round(module.temporary_bytes / 2**20, 1),
                compile_s=round(module.seconds, 1),
                error=error,
            )
        )
    return counts


def _difference(found: Any, expected: Any) -> float:
    """Returns the largest difference of two arrays, relative to the largest entry."""
    if not expected.size:
        return 0.0
    scale = max(float(jnp.abs(expected).max()), np.finfo(np.float32).tiny)
    return float(jnp.abs(found - expected).max()) / scale


COLUMNS = {
    "device": "device", "model": "model", "way": "pass", "loops": "loops",
    "chunks": "chunks", "whiles": "whiles", "conditionals": "switches",
    "kernels_per_chunk": "kernels/chunk", "copies_per_chunk": "copies/chunk",
    "arena_copies": "arena copies", "conditions": "conditions",
    "round_trips": "round trips", "launches": "launches",
    "cleared_mib": "cleared MiB", "temporary_mib": "temporary MiB",
    "compile_s": "XLA s",
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
