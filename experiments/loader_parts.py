"""What does the training process still do for a minibatch that workers recorded?

`edbatch.Loader(keep=False, workers=2)` reads and records instances in worker processes,
and plans in a thread of this process while the device computes. This script divides the
CPU time of that thread per minibatch into parts and compares it with a step on the
device. Workers could take over the parts that depend on no state of the model: the
structure of the graph and its schedule; their sum is the column *movable*. In a clone,
on an idle machine:

    python experiments/loader_parts.py
    python experiments/loader_parts.py --workloads tree-lstm --hidden 256

Parts are median milliseconds of the thread's CPU time: to receive a recording (with
unpickling), to number its types, to find its structure (which nodes read which), to
schedule, to lay out (with hoisting), to encode, to pad, to fill in external inputs, and
to put the plan on the device. Steps, of the forward pass and of the gradient, are
elapsed milliseconds with a plan that is on the device; *movable* also shows its shares
of them. *waits* are the elapsed milliseconds per minibatch that a loop of either step
over such a loader waits for plans. *waits, kept* are the same for a loader of kept
recordings, which has no workers but as much to plan: if these are small, planning is
not the bottleneck. No plan comes from the cache.
"""

import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

import edbatch as eb
from edbatch import planning
from edbatch.graph.portable_graph import GraphUnpacker, PackedGraph
from edbatch.graph.structure import GraphStructure
from edbatch.loader.fresh import DataSource
from edbatch.loader.processes import Workers
from edbatch.loader.worker import PROTOCOL, SETTINGS, Setup, Task
from edbatch.measuring import loss_of, run_all, side_by_side
from edbatch.schedule.policy import schedules_are_valid
from edbatch.target import CPU

from arguments import SpeedArguments, option, parse_arguments
from ready_model import ready_model

PARTS = (
    "receive",
    "number",
    "structure",
    "schedule",
    "lay out",
    "encode",
    "pad",
    "inputs",
    "send",
)
MOVABLE = ("structure", "schedule")
STEPS = ("forward", "gradient", "movable", "waits", "waits, kept")
COLUMNS = ("workload", *PARTS, "all", *STEPS)
AHEAD = 4  # minibatches requested before the first one is read


@dataclass(frozen=True)
class Arguments(SpeedArguments):
    workloads: str = option("tree-lstm,lattice-lstm", "Which ready workloads.")
    workers: int = option(2, "Processes that record.")
    minibatches: int = option(60, "Minibatches to measure, after ten to begin with.")
    rounds: int = option(15, "How often steps are timed.")
    policy: str = option("", "The policy, a heuristic; the default if empty.")


class Clock:
    """CPU time of this thread, by part."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = {name: [] for name in PARTS}

    def timed(self, name: str, call: Callable[[], Any]) -> Any:
        """Calls a function and adds its time to a part."""
        start = time.thread_time_ns()
        found = call()
        self.parts[name].append((time.thread_time_ns() - start) / 1e6)
        return found


@schedules_are_valid
class Scheduled:
    """A policy that returns a given schedule."""

    name = "scheduled"

    def __init__(self, schedule: eb.Schedule) -> None:
        self._schedule = schedule

    def schedule(self, structure: GraphStructure) -> eb.Schedule:
        """Returns the schedule."""
        return self._schedule


def start_workers(
    batched: eb.Batched, data: Sequence[Any], clock: Clock, count: int
) -> Workers:
    """Starts workers as a loader does; the numbering of types is timed."""
    types = batched.types
    unpacker = GraphUnpacker(types)
    settings = {name: getattr(jax.config, name) for name in SETTINGS}
    source = DataSource(data, None, 0)
    setup = Setup(types.model, types, source, batched.takes_merged, settings)

    def read(answer: list[PackedGraph]) -> list[eb.DataflowGraph]:
        return clock.timed("number", lambda: [unpacker.unpack(each) for each in answer])

    return Workers(count, pickle.dumps(setup, PROTOCOL), read)


def plan_in_parts(batched: eb.Batched, graph: eb.DataflowGraph, clock: Clock) -> Any:
    """Plans a minibatch as a loader does, part by part."""
    options, state = batched.options, batched.states.default().planning
    structure = clock.timed("structure", lambda: graph.structure)
    schedule = clock.timed("schedule", lambda: options.policy.schedule(structure))
    result = graph.outputs.describe(graph.num_instances)
    scheduled = replace(options, policy=Scheduled(schedule))
    laid_out = clock.timed(
        "lay out", lambda: planning.lay_out(graph, state, scheduled, CPU)
    )
    part = clock.timed(
        "encode", lambda: planning.encode_laid_out(laid_out, result, state)
    )
    rows = graph.num_instances
    encoded = clock.timed(
        "pad", lambda: planning.pad_to_bucket(part, state, options, CPU, rows)
    )
    plan = clock.timed("inputs", lambda: encoded.with_externals(graph.externals))
    return clock.timed("send", lambda: jax.device_put(plan))


def host_parts(
    batched: eb.Batched, data: Sequence[Any], arguments: Arguments
) -> tuple[dict[str, float], Any]:
    """Returns the median milliseconds of each part, and the last plan."""
    clock, size = Clock(), arguments.batch_size
    workers = start_workers(batched, data, clock, arguments.workers)
    asked = [list(range(k, k + size)) for k in range(0, len(data), size)]
    try:
        workers.begin()
        tickets = [workers.submit(Task(each, 0)) for each in asked[:AHEAD]]
        for k in range(len(asked)):
            [graph] = clock.timed("receive", tickets[k].result)
            clock.parts["receive"][-1] -= clock.parts["number"][-1]
            tickets += [workers.submit(Task(e, 0)) for e in asked[len(tickets) :][:1]]
            plan = plan_in_parts(batched, graph, clock)
    finally:
        workers.close()
    first = len(asked) - arguments.minibatches
    return {name: np.median(own[first:]) for name, own in clock.parts.items()}, plan


def wait_ms(
    batched: eb.Batched, data: Sequence[Any], size: int, workers: int, step: Any
) -> float:
    """Returns the milliseconds per minibatch that a loop of steps waits for plans.

    Args:
        batched: The batched function.
        data: The instances.
        size: Instances per minibatch.
        workers: Number of processes that record every minibatch; 0 to keep recordings.
        step: The step, a function of a plan.
    """
    fresh = {"keep": False, "workers": workers} if workers else {}
    with eb.Loader(batched, data, size, **fresh) as loader:
        run_all(step, (each.plan for each in loader))  # compiles the programs
        before = loader.wait_ms
        run_all(step, (each.plan for each in loader))
        return (loader.wait_ms - before) / (len(loader) - 1)


def measure(name: str, arguments: Arguments) -> str:
    """Times one workload; returns its row."""
    count = arguments.batch_size * (arguments.minibatches + 10)
    model, params, data = ready_model(name, arguments.hidden, count, arguments.seed)
    policy = {"policy": arguments.policy} if arguments.policy else {}
    batched = eb.batch(model, params=params, cache_bytes=0, **policy)
    parts, plan = host_parts(batched, data, arguments)
    forward, gradient = jax.jit(batched.apply), jax.jit(jax.grad(loss_of(batched)))
    steps = [partial(each, params) for each in (forward, gradient)]
    runs = [partial(step, plan) for step in steps]
    step_ms = np.median(side_by_side(runs, arguments.rounds), axis=1)
    size = arguments.batch_size
    waits = [
        f"{wait_ms(batched, data, size, workers, step):.2f}"
        for workers in (arguments.workers, 0)
        for step in steps
    ]
    movable = sum(parts[each] for each in MOVABLE)
    total = sum(parts.values())
    numbers = [f"{each:.2f}" for each in (*parts.values(), total, *step_ms)]
    shares = ", ".join(f"{100 * movable / each:.0f}%" for each in step_ms)
    moved = f"{movable:.2f} ({shares})"
    waited = ", ".join(waits[:2]), ", ".join(waits[2:])
    return " | ".join([name, *numbers, moved, *waited])


def main(words: Sequence[str] | None = None) -> None:
    """Prints a row per workload."""
    arguments = parse_arguments(Arguments, __doc__, words)
    print(" | ".join(COLUMNS))
    for name in arguments.workloads.split(","):
        print(measure(name, arguments), flush=True)


if __name__ == "__main__":
    main()
