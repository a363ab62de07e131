"""How long does a new model wait for its first gradient?

For each model, a separate process measures the time from the instances to the gradient
of all outputs: recording, planning, tracing, lowering, compiling and running. Then it
measures a step of the coarse and of the fine program, and how long the fine program
took to compile in the background. Imports, parameters and, with ``--warm-up-host``,
Numba's kernels are excluded. In a clone, on an idle machine:

    python experiments/first_gradient.py
    python experiments/first_gradient.py --models tree-lstm --cache programs

With a folder for compiled programs, a second run shows the time of a second process.
``message-passing`` is the network of the tests, with 17 types. With ``--eager`` the
gradient is `jax.grad` outside of a compiled function, which runs two programs.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

import edbatch as eb
from edbatch.measuring import loss_of, timed
from edbatch.models import get_workload

from arguments import option, parse_arguments

MESSAGE_PASSING = "message-passing"
ROW = "{:22} {:>6} {:>8} {:>10} {:>9} {:>8} {:>10}"
HEAD = ROW.format(
    "model", "hidden", "first s", "coarse ms", "fine ms", "loops", "fine in s"
)


@dataclass(frozen=True)
class Arguments:
    models: str = option(
        "tree-lstm,message-passing,neural-module-network,bilstm-tagger-char",
        "Ready workloads, or message-passing.",
    )
    hidden: int = option(64, "Length of the models' states; 32 for message-passing.")
    batch_size: int = option(64, "Instances per minibatch.")
    rounds: int = option(20, "How often a step is timed.")
    cache: str = option("", "Folder for compiled programs; none without it.")
    warm_up_host: bool = option(
        True, "Plan other instances first, which compiles Numba's kernels."
    )
    eager: bool = option(False, "By jax.grad alone, outside of a compiled function.")
    inside: bool = option(False, "Measure in this process.")


def load(name: str, arguments: Arguments) -> tuple[Any, Any, list[Any], int]:
    """Returns a model, parameters, two minibatches of instances and the hidden size."""
    rng = np.random.default_rng(0)
    count = 2 * arguments.batch_size
    if name == MESSAGE_PASSING:
        sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
        import message_passing as network

        instances = network.sample_molecules(0, count)
        return network.message_passing, network.make_params(32), instances, 32
    workload = get_workload(name)
    params = workload.init_params(jax.random.key(0), arguments.hidden)
    return workload.model, params, workload.sample(rng, count), arguments.hidden


def milliseconds(call: Callable[[], Any], rounds: int) -> float:
    return float(np.median([timed(call)[1] for _ in range(rounds)]))


def measure(name: str, arguments: Arguments) -> str:
    """Measures one model in this process."""
    if arguments.cache:
        eb.use_compilation_cache(arguments.cache)
    model, params, instances, hidden = load(name, arguments)
    jax.block_until_ready(params)
    size = arguments.batch_size
    if arguments.warm_up_host:
        eb.batch(model, params=params).plan(instances[size:])
    batched = eb.batch(model, params=params)
    gradient: Any = jax.grad(loss_of(batched))
    if not arguments.eager:
        gradient = eb.jit(gradient)
    start = time.perf_counter()
    plan = batched.plan(instances[:size])
    jax.block_until_ready(gradient(params, plan))
    first = time.perf_counter() - start
    coarse = milliseconds(lambda: gradient(params, plan), 2)
    start = time.perf_counter()
    # Each iteration requests one fine program; the eager gradient has one per pass.
    for _ in range(2 if arguments.eager else 1):
        jax.block_until_ready(gradient(params, plan))
        eb.wait_for_compilations()
    waited = time.perf_counter() - start
    fine = milliseconds(lambda: gradient(params, plan), arguments.rounds)
    loops = len(plan.shape.program.loops)
    return ROW.format(
        name,
        hidden,
        f"{first:.2f}",
        f"{coarse:.1f}",
        f"{fine:.2f}",
        loops,
        f"{waited:.1f}",
    )


def main(arguments: Arguments) -> None:
    if not arguments.inside:
        print(HEAD, flush=True)
    for name in arguments.models.split(","):
        if arguments.inside:
            print(measure(name, arguments), flush=True)
            continue
        words = [sys.executable, __file__, "--inside", "--models", name]
        for option_name in ("hidden", "batch_size", "rounds", "cache"):
            value = str(getattr(arguments, option_name))
            words += [f"--{option_name.replace('_', '-')}", value]
        if not arguments.warm_up_host:
            words.append("--no-warm-up-host")
        if arguments.eager:
            words.append("--eager")
        subprocess.run(words, check=True)


if __name__ == "__main__":
    main(parse_arguments(Arguments, __doc__))
