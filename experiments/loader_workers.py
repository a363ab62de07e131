"""What does a fresh minibatch cost the training process, with and without workers?

Measures the CPU time per minibatch with `edbatch.Loader(keep=False)`, which reads,
records and plans every instance again. In a clone:

    python experiments/loader_workers.py --workload bilstm-tagger

With ``EDBATCH_NO_EXTENSIONS=1`` in the environment, recording runs in Python.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path

import jax
import numpy as np

import edbatch as eb
from edbatch.models import get_workload

from arguments import option, parse_arguments


@dataclass(frozen=True)
class Arguments:
    workload: str = option("tree-lstm", "A ready workload.")
    hidden: int = option(64, "Hidden size.")
    batch_size: int = option(64, "Instances per minibatch.")
    minibatches: int = option(60, "Minibatches to measure, after ten to begin with.")
    workers: int = option(2, "The most worker processes; all numbers up to it are run.")


def main(words: Sequence[str] | None = None) -> None:
    """Prints a line for each number of workers."""
    arguments = parse_arguments(Arguments, __doc__, words)
    workload = get_workload(arguments.workload)
    params = jax.eval_shape(
        lambda key: workload.init_params(key, arguments.hidden), jax.random.key(0)
    )
    count = arguments.batch_size * (arguments.minibatches + 10)
    data = workload.sample(np.random.default_rng(0), count)
    print("workers | CPU ms per minibatch | MiB per worker")
    for workers in range(arguments.workers + 1):
        batched = eb.batch(workload.model, params=params)
        size = arguments.batch_size
        with eb.Loader(batched, data, size, keep=False, workers=workers) as loader:
            begun = []
            for _ in loader:
                begun.append(time.process_time())
            cost_ms = 1e3 * (begun[-1] - begun[9]) / (len(begun) - 10)
            memory = ", ".join(f"{each:.0f}" for each in worker_memory_mib())
        print(f"{workers} | {cost_ms:.2f} | {memory}")


def worker_memory_mib() -> list[float]:
    """Returns the resident memory of each worker process, in MiB."""
    files = [Path(f"/proc/{each.pid}/statm") for each in active_children()]
    return [int(each.read_text().split()[1]) * 4096 / 2**20 for each in files]


if __name__ == "__main__":
    main()
