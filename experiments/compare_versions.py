"""Did a change make programs slower? Times the programs of two versions in one process.

Times of identical processes differ by a tenth and more, so two versions cannot be
compared by timing each in its own process. This script stores the programs of ready
workloads with their inputs, once with each version; then one process compiles both and
times them alternately. In clones of the two versions, each with its own environment, on
an idle machine:

    python experiments/compare_versions.py --store ../before
    python experiments/compare_versions.py --store ../after
    python experiments/compare_versions.py --before ../before --after ../after

Columns: median elapsed milliseconds of the forward pass and of value and gradient,
before and after; *share* is the median over all rounds of the time after divided by the
time before; *apart* is the largest difference of results, relative to the largest
result. Times of equal programs differ by about 2%. Two workloads with hidden=64 take
a minute and a half on two cores.
"""

import io
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array, export

import edbatch as eb
from edbatch.measuring import loss_of, side_by_side

from arguments import SpeedArguments, option, parse_arguments
from ready_model import ready_model

COLUMNS = ("workload", "hidden", "pass", "before ms", "after ms", "share", "apart")
PASSES = ("forward", "gradient")


@dataclass(frozen=True)
class Arguments(SpeedArguments):
    hidden: str = option("64,256", "Lengths of states, separated by commas.")  # type: ignore[assignment]
    store: str = option("", "Folder for the programs of this version.")
    before: str = option("", "Folder with those of the version before.")
    after: str = option("", "Folder with those of the version after.")
    rounds: int = option(40, "How often each program is timed.")


def store(path: Path, name: str, hidden: int, arguments: Arguments) -> None:
    """Stores the programs of a workload and their input arrays.

    Args:
        path: The file.
        name: The workload.
        hidden: Length of the model's states.
        arguments: The command line; batch size and seed are read.
    """
    model, params, instances = ready_model(
        name, hidden, arguments.batch_size, arguments.seed
    )
    batched = eb.batch(model, params=params)
    inputs = params, batched.plan(instances)
    leaves, tree = jax.tree.flatten(inputs)

    def flat(function: Callable[..., Any]) -> Callable[..., list[Array]]:
        return lambda *leaves: jax.tree.leaves(function(*tree.unflatten(leaves)))

    functions = batched.apply, jax.value_and_grad(loss_of(batched))
    with zipfile.ZipFile(path, "w") as file:
        for what, function in zip(PASSES, functions, strict=True):
            program = export.export(jax.jit(flat(function)))(*leaves)
            file.writestr(what, program.serialize())
        content = io.BytesIO()
        np.savez(content, *leaves)
        file.writestr("inputs", content.getvalue())


def load(path: Path) -> list[Callable[[], list[Array]]]:
    """Loads a file of `store`; returns a function for each of `PASSES`."""
    with zipfile.ZipFile(path) as file:
        arrays = np.load(io.BytesIO(file.read("inputs")))
        leaves = [jax.device_put(arrays[each]) for each in arrays.files]
        programs = [export.deserialize(bytearray(file.read(each))) for each in PASSES]
    return [partial(jax.jit(program.call), *leaves) for program in programs]


def difference(before: list[Array], after: list[Array]) -> float:
    """Returns the largest difference of results, relative to the largest result."""
    apart = scale = 0.0
    for one, other in zip(before, after, strict=True):
        if one.size:
            apart = max(apart, float(np.max(np.abs(np.subtract(one, other)))))
            scale = max(scale, float(np.max(np.abs(one))))
    return apart / scale if apart else 0.0


def compare(before: Path, after: Path, rounds: int) -> list[str]:
    """Compares the programs of two files; returns a row of the table for each pass."""
    rows = []
    for what, *calls in zip(PASSES, load(before), load(after), strict=True):
        apart = difference(*(call() for call in calls))
        times = side_by_side(calls, rounds)
        one, other = np.median(times, axis=1)
        share = np.median(times[1] / times[0])
        rows.append(f"{what} | {one:.2f} | {other:.2f} | {share:.3f} | {apart:.1e}")
    return rows


def main(words: Sequence[str] | None = None) -> None:
    """Stores programs, or prints the table."""
    arguments = parse_arguments(Arguments, __doc__, words)
    names = [
        (name, int(hidden))
        for hidden in arguments.hidden.split(",")
        for name in arguments.workloads.split(",")
    ]
    if arguments.store:
        folder = Path(arguments.store)
        folder.mkdir(parents=True, exist_ok=True)
        for name, hidden in names:
            store(folder / f"{name}-{hidden}.zip", name, hidden, arguments)
    if not (arguments.before and arguments.after):
        if arguments.store:
            return
        raise SystemExit("give --store FOLDER, or --before FOLDER and --after FOLDER")
    eb.keep_memory()
    print(" | ".join(COLUMNS))
    for name, hidden in names:
        paths = [
            Path(each) / f"{name}-{hidden}.zip"
            for each in (arguments.before, arguments.after)
        ]
        for row in compare(*paths, arguments.rounds):
            print(f"{name} | {hidden} | {row}", flush=True)


if __name__ == "__main__":
    main()
