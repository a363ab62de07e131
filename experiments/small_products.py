"""Which library runs a CPU's products faster: YNNPACK with its threads, or Eigen?

XLA runs the products of a program with YNNPACK unless an option forbids it. A fine
program is compiled with that option if all its cells have few multiply-adds per row and
most multiply-adds are in types with wide chunks (`small_product` of
`edbatch/target.py`). This script compiles programs of ready workloads both ways and
runs them alternately. In a clone, on an idle machine:

    python experiments/small_products.py
    python experiments/small_products.py --workloads tree-lstm --hidden 128
    python experiments/small_products.py --workloads tree-lstm --hidden 256 --cores 1

Columns: *work*, the multiply-adds per row of the largest cell; *small*, whether
programs get the option; then median elapsed milliseconds of the forward pass and of
value and gradient, each with YNNPACK and with Eigen, and the ratio of Eigen to YNNPACK.
Takes ten minutes on two cores, most of it to compile.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import numpy as np

import edbatch as eb
from edbatch.measuring import loss_of, side_by_side
from edbatch.models import get_workload
from edbatch.target import CPU, target_of

from arguments import option, parse_arguments

COLUMNS = ("workload", "hidden", "work", "small", "forward ms", "gradient ms")
ALWAYS = 2**62


@dataclass(frozen=True)
class Arguments:
    workloads: str = option(
        "tree-lstm,tree-lstm-childsum,lattice-lstm,bilstm-tagger,bilstm-tagger-char,"
        "lstm-nmt,transition-parser,mv-rnn",
        "Workloads, separated by commas.",
    )
    hidden: str = option("64", "Lengths of states, separated by commas.")
    batch_size: int = option(64, "Instances of a minibatch.")
    rounds: int = option(15, "How often each program is timed.")
    cores: int = option(0, "Cores to use, the first ones; 0 for all.")
    seed: int = option(0, "Seed of inputs and parameters.")


def measure(name: str, hidden: int, arguments: Arguments) -> str:
    """Measures one workload; returns a row of the table."""
    workload = get_workload(name)
    params = workload.init_params(jax.random.key(arguments.seed), hidden)
    batched = eb.batch(workload.model, params=params)
    rng = np.random.default_rng(arguments.seed)
    plan = batched.plan(workload.sample(rng, arguments.batch_size))
    program = plan.shape.program
    work = max(program.products().values())
    eigen = replace(target_of("cpu"), small_product=ALWAYS, wide_chunk=0)
    ynnpack = replace(CPU, small_product_options=())
    ways = [jax.device_put(plan.on(each)) for each in (ynnpack, eigen)]
    value_and_grad = jax.value_and_grad(loss_of(batched))
    steps = [eb.jit(each) for each in (batched.apply, value_and_grad)]
    runs = [partial(step, params, own) for step in steps for own in ways]
    times = np.median(side_by_side(runs, arguments.rounds), axis=1)
    small = "yes" if program.compiler_options() else "no"
    pairs = (
        f"{ynnpack:.2f}, {eigen:.2f}: {eigen / ynnpack:.2f}"
        for ynnpack, eigen in times.reshape(2, 2)
    )
    return " | ".join((name, str(hidden), f"{work:,.0f}", small, *pairs))


def main(words: Sequence[str] | None = None) -> None:
    """Prints a row per workload and hidden size."""
    arguments = parse_arguments(Arguments, __doc__, words)
    if arguments.cores:
        cores = sorted(os.sched_getaffinity(0))[: arguments.cores]
        os.sched_setaffinity(0, cores)  # before XLA starts its threads
    eb.use_tiers("fine")
    eb.keep_memory()
    print(" | ".join(COLUMNS))
    for name in arguments.workloads.split(","):
        for hidden in arguments.hidden.split(","):
            print(measure(name, int(hidden), arguments), flush=True)


if __name__ == "__main__":
    main()
