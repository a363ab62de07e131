"""How much memory does a training step take, and does it grow linearly with nodes?

Computes a gradient for tree-LSTM minibatches of increasing size. Prints the bytes per
node that `eb.gradient_memory` counts, without and with `remat`, and the peak memory of
the process; each size runs in a separate process. In a clone:

    python experiments/training_memory.py
    python experiments/training_memory.py --nodes 10000 --hidden 128 --remat

Takes three minutes on two cores for a million nodes.
"""

import resource
import subprocess
import sys
import time
from dataclasses import dataclass

import jax
import numpy as np

import edbatch as eb
from edbatch.measuring import loss_of, timed
from edbatch.models import get_workload

from arguments import option, parse_arguments

ROW = "{:>10} {:>14} {:>18} {:>14} {:>10} {:>8}"
HEAD = ROW.format(
    "nodes", "bytes per node", "with remat, counted", "most GiB", "nodes/s", "plan s"
)


@dataclass(frozen=True)
class Arguments:
    nodes: tuple[str, ...] = option(
        ("10000", "100000", "1000000"), "Nodes of the minibatches, about."
    )
    hidden: int = option(64, "Length of the model's states.")
    remat: bool = option(False, "Recompute products in the backward pass (remat).")
    seed: int = option(0, "Seed of inputs and parameters.")
    alone: bool = option(False, "Measure in this process; for one size.")


def line(nodes: int, arguments: Arguments) -> str:
    workload = get_workload("tree-lstm", vocabulary_size=1000)
    rng = np.random.default_rng(arguments.seed)
    key = jax.random.key(arguments.seed)
    params = workload.init_params(key, arguments.hidden)
    batched = eb.batch(
        workload.model,
        params=params,
        cache_bytes=0,
        compiler=eb.Compiler(remat="always" if arguments.remat else "auto"),
    )
    kept = [batched.record(each) for each in workload.sample(rng, 200)]
    ends = np.cumsum([each.num_nodes for each in kept])
    laps, rest = divmod(nodes, int(ends[-1]))
    minibatch = kept * laps + kept[: int(np.searchsorted(ends, rest)) + 1]
    start = time.perf_counter()
    plan = batched.plan(minibatch)
    plan_s = time.perf_counter() - start
    step = jax.jit(jax.value_and_grad(loss_of(batched)))
    jax.block_until_ready(step(params, plan))
    _, step_ms = timed(step, params, plan)
    assert plan.report is not None, "plans are made with a report"
    real = plan.report.nodes
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    counted = [eb.gradient_memory(plan, remat=each).total for each in (False, True)]
    return ROW.format(
        real,
        *(f"{each / real:.0f}" for each in counted),
        f"{most:.2f}",
        f"{1e3 * real / step_ms:.0f}",
        f"{plan_s:.2f}",
    )


def main(arguments: Arguments) -> None:
    sizes = [int(each) for each in arguments.nodes]
    if arguments.alone:
        print(line(sizes[0], arguments), flush=True)
        return
    print(HEAD, flush=True)
    for nodes in sizes:
        words = ["--nodes", str(nodes), "--hidden", str(arguments.hidden), "--alone"]
        words += ["--seed", str(arguments.seed)]
        words += ["--remat"] if arguments.remat else []
        subprocess.run([sys.executable, __file__, *words], check=True)


if __name__ == "__main__":
    main(parse_arguments(Arguments, __doc__))
