"""What does planning cost per node, in total and by stage?

Minibatches drawn at random from a data set of kept recordings are planned, none twice:
joined, scheduled, laid out, encoded and padded. This is timed in a loop that only
plans, and between calls of the compiled forward pass, which evict the CPU caches. In a
clone, on an idle machine:

    python experiments/planning_speed.py
    python experiments/planning_speed.py --workloads tree-lstm --policy greedy

Microseconds per node: the tenth percentile of all minibatches in the loop, the median
between calls. The stages are those of the loop; *rest* is the code between the stages
and the lookup of the model's state. Inputs are sampled.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import edbatch as eb
from edbatch import planning
from edbatch.graph import merge
from edbatch.models import get_workload
from edbatch.plan.plan import Encoded
from edbatch.target import CPU

from arguments import SpeedArguments, option, parse_arguments

STAGES = ("join", "schedule", "lay out", "encode", "pad")
ROW = "{:16} {:>6} {:>8} {:>8} {:>8} {:>9} {:>9} {:>8} {:>6} {:>6}"
HEAD = ROW.format("workload", "nodes", "loop", "between", *STAGES, "rest")


@dataclass(frozen=True)
class Arguments(SpeedArguments):
    recordings: int = option(1024, "Recordings of the data set.")
    minibatches: int = option(200, "How many minibatches are planned for each number.")
    policy: str = option("greedy", "The policy: a heuristic, or zoo for the learned.")


def elapsed_us(call: Callable[[], Any]) -> float:
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1e3


def stage_times(
    batched: eb.Batched, recordings: Sequence[eb.DataflowGraph]
) -> tuple[Encoded, dict[str, float]]:
    """Plans a minibatch stage by stage; also returns the microseconds of each stage."""
    found: dict[str, float] = {}
    last = time.perf_counter_ns()

    def done(name: str) -> None:
        nonlocal last
        now = time.perf_counter_ns()
        found[name] = (now - last) / 1e3
        last = time.perf_counter_ns()

    options, target = batched.options, CPU
    own = batched.states.default().planning
    graph = merge(recordings)
    done("join")
    options.policy.schedule(graph.structure)
    done("schedule")
    result = graph.outputs.describe(graph.num_instances)
    laid_out = planning.lay_out(graph, own, options, target)
    done("lay out")
    part = planning.encode_laid_out(laid_out, result, own)
    done("encode")
    encoded = planning.pad_to_bucket(part, own, options, target, None)
    done("pad")
    return encoded, found


def measure(name: str, arguments: Arguments) -> str:
    """Times one workload; returns its row."""
    workload = get_workload(name)
    rng = np.random.default_rng(arguments.seed)
    key = jax.random.key(arguments.seed)
    params = workload.init_params(key, arguments.hidden)
    policy = f"zoo:{name}" if arguments.policy == "zoo" else arguments.policy
    batched = eb.batch(workload.model, policy, params=params)
    kept = batched.record_all(workload.sample(rng, arguments.recordings))

    def draw() -> list[eb.DataflowGraph]:
        chosen = rng.permutation(len(kept))[: arguments.batch_size]
        return [kept[k] for k in chosen]

    def sets() -> list[list[eb.DataflowGraph]]:
        return [draw() for _ in range(arguments.minibatches)]

    def run() -> None:
        jax.block_until_ready(batched.apply(params, plan))

    plan = batched.plan(draw(), pad_to=arguments.batch_size)
    for each in sets():
        batched.plan(each)
    nodes = int(np.mean([sum(one.num_nodes for one in each) for each in sets()]))
    loop = np.percentile([elapsed_us(lambda e=e: batched.plan(e)) for e in sets()], 10)
    between = []
    run()
    eb.wait_for_compilations()
    for each in sets():
        run()
        between.append(elapsed_us(lambda e=each: batched.plan(e)))
    stages = [stage_times(batched, each)[1] for each in sets()]
    own = [np.percentile([each[name] for each in stages], 10) for name in STAGES]
    own[2] -= own[1]  # lay_out schedules again
    times = [loop, np.median(between), *own, loop - sum(own)]
    return ROW.format(name, nodes, *(f"{each / nodes:.3f}" for each in times))


def main(arguments: Arguments) -> None:
    """Prints a row per workload."""
    print(HEAD)
    for name in arguments.workloads.split(","):
        print(measure(name, arguments), flush=True)


if __name__ == "__main__":
    main(parse_arguments(Arguments, __doc__))
