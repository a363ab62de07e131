"""What does recording cost per node, in addition to the model's own Python?

A workload is recorded in a loop that only records, and between calls of the batched
function on instances, which evict the CPU caches. Then the model runs with cells that
do nothing, to measure the time of its own code. In a clone, on an idle machine:

    python experiments/recording_speed.py
    EDBATCH_NO_EXTENSIONS=1 python experiments/recording_speed.py

Microseconds of CPU time per node: the minimum of all rounds in the loop, the median
between calls. Inputs are sampled.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

import jax
import numpy as np

import edbatch as eb
from edbatch.graph.call_memory import CallMemory
from edbatch.graph.parameter_structure import abstract
from edbatch.graph.recorder import record
from edbatch.graph.type_table import TypeTable

from arguments import SpeedArguments, option, parse_arguments
from ready_model import cpu_ms, ready_model

ROW = "{:16} {:>6} {:>10} {:>10} {:>12} {:>12} {:>10}"
HEAD = ROW.format(
    "workload", "nodes", "loop ms", "loop", "between ms", "between", "own"
)


@dataclass(frozen=True)
class Arguments(SpeedArguments):
    rounds: int = option(25, "How often everything is timed.")


Put = Callable[[Any], None]  # replaces the content of a place


def find_cells(model: Any) -> Iterator[tuple[Put, eb.Cell]]:
    """Finds the cells that a ready model calls, each with a function to replace it."""
    seen: set[int] = set()
    waiting = [model]
    while waiting:
        function = waiting.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        for put, content in places_in(function):
            if isinstance(content, eb.Cell):
                yield put, content
            else:
                waiting.append(content)


def places_in(function: Any) -> list[tuple[Put, Any]]:
    """Lists the objects that a model's function can name, each with its `Put`."""
    if isinstance(function, partial):
        found = [(partial_put(function, k), x) for k, x in enumerate(function.args)]
        return [*found, (lambda new: None, function.func)]
    if not isinstance(function, FunctionType):
        return []
    if not function.__module__.startswith("edbatch.models"):
        return []
    names = function.__globals__
    return [
        (lambda new, place=each: setattr(place, "cell_contents", new), content)
        for each in function.__closure__ or ()
        for content in [each.cell_contents]
    ] + [
        (lambda new, key=key: names.update({key: new}), content)
        for key, content in list(names.items())
    ]


def partial_put(function: Any, position: int) -> Put:
    def put(new: Any) -> None:
        func, args, kwargs, rest = function.__reduce__()[2]
        args = (*args[:position], new, *args[position + 1 :])
        function.__setstate__((func, args, kwargs, rest))

    return put


@contextmanager
def empty_cells(model: Any, outputs: dict[str, Any]) -> Iterator[None]:
    """Replaces the cells of a model by functions that return the same each time."""
    found = list(find_cells(model))
    for put, cell in found:
        put(lambda *_, result=outputs[cell.name]: result)
    try:
        yield
    finally:
        for put, cell in found:
            put(cell)


def measure(name: str, arguments: Arguments) -> str:
    """Times one workload; returns its row."""
    model, params, instances = ready_model(
        name, arguments.hidden, arguments.batch_size, arguments.seed
    )
    batched = eb.batch(model)
    types, memory = TypeTable(abstract(params), model), CallMemory()
    nodes = record(model, types, instances, memory).num_nodes
    outputs = {
        each.key.cell: jax.tree.unflatten(
            each.output_tree, [None] * len(each.output_kinds)
        )
        for each in types.types
    }

    def own() -> None:
        for each in instances:
            model(types.params, each)

    def recorded() -> None:
        record(model, types, instances, memory)

    def run() -> None:
        jax.block_until_ready(batched(params, instances))

    run()
    eb.wait_for_compilations()
    loop = min(cpu_ms(recorded) for _ in range(arguments.rounds))
    between, alone = [], []
    with empty_cells(model, outputs):
        own_loop = min(cpu_ms(own) for _ in range(arguments.rounds))
    for _ in range(arguments.rounds):
        run()
        between.append(cpu_ms(recorded))
        run()
        with empty_cells(model, outputs):
            alone.append(cpu_ms(own))
    cold, own_cold = np.median(between), np.median(alone)
    return ROW.format(
        name,
        nodes,
        f"{loop:.2f}",
        f"{1e3 * (loop - own_loop) / nodes:.2f}",
        f"{cold:.2f}",
        f"{1e3 * (cold - own_cold) / nodes:.2f}",
        f"{1e3 * own_loop / nodes:.2f}",
    )


def main(arguments: Arguments) -> None:
    """Prints a row per workload; ``loop`` and ``between`` exclude ``own``."""
    print("recording is", "compiled" if eb.recording_is_compiled() else "in Python")
    print(HEAD)
    for name in arguments.workloads.split(","):
        print(measure(name, arguments), flush=True)


if __name__ == "__main__":
    main(parse_arguments(Arguments, __doc__))
