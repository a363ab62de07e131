"""What does each part of a learned policy contribute?

A ready-made policy is taken apart: the encoding alone (it picks the type whose batch
lowers the smoothed bound most, with all weights 1), with the tuned weights, with the
learned table, and with the guard that `edbatch.batch` puts around it. All schedule the
same minibatches, drawn from the fifth of the data that training did not use; without
data, instances are sampled. In a clone, with the data sets of `make_zoo.py` in a
folder:

    python experiments/policy_parts.py --data path/to/data
    python experiments/policy_parts.py --workloads lattice-lstm

Batches are counted, so the table does not depend on the machine.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from make_zoo import FILES

from edbatch.cli.minibatches import draw, record, split
from edbatch.cli.options import TaskOptions
from edbatch.cli.task import load_task
from edbatch.graph import GraphStructure
from edbatch.policies import (
    BestOfHeuristics,
    BoundWeights,
    Comparison,
    Greedy,
    StateMachine,
    compare,
    get_policy,
)

from arguments import option, parse_arguments

LEARNED = (
    "tree-lstm-2type",
    "tree-lstm-childsum",
    "lattice-lstm",
    "dag-lstm",
    "neural-module-network",
)
_INSTANCES = 500  # minimum number of sampled instances


@dataclass(frozen=True)
class Arguments:
    data: str = option("", "Folder with the data sets; without it, inputs are sampled.")
    workloads: tuple[str, ...] = option(LEARNED, "Whose policies to take apart.")
    batch_size: int = option(32, "Instances per minibatch.")
    minibatches: int = option(64, "Minibatches to compare on.")
    seed: int = option(0, "Seed of the split, which is that of make_zoo.py if 0.")


def minibatches(workload: str, arguments: Arguments) -> list[GraphStructure]:
    """Records minibatches of held-out instances."""
    files = [Path(arguments.data) / file for file in FILES[workload]]
    data = files if arguments.data else None
    options = TaskOptions(workload, data)
    count = max(_INSTANCES, 10 * arguments.batch_size)
    task = load_task(options, arguments.seed, count)
    rng = np.random.default_rng(arguments.seed)
    _, _, held_out = split(len(task.instances), rng)
    drawn = draw(held_out, arguments.batch_size, arguments.minibatches, rng)
    [found] = record(task, drawn)
    return found


def parts(workload: str, graphs: list[GraphStructure]) -> list[Comparison]:
    """Compares greedy with the parts of a policy, each added to the previous ones."""
    whole = get_policy(f"zoo:{workload}")
    assert isinstance(whole, StateMachine), "policies in files are state machines"
    weighted = replace(whole, states=())
    encoding = replace(weighted, weights=BoundWeights())
    return compare(
        [Greedy(), encoding, weighted, whole, BestOfHeuristics(whole)],
        graphs,
        repeats=1,
    )


def main(arguments: Arguments) -> None:
    heads = ("greedy", "encoding", "+ weights", "+ table", "+ guard")
    print(f"{'ratio to the lower bound':22}", *(f"{head:>10}" for head in heads))
    for workload in arguments.workloads:
        rows = parts(workload, minibatches(workload, arguments))
        ratios = (f"{row.mean_ratio:10.3f}" for row in rows)
        print(f"{workload:24}", *ratios, flush=True)


if __name__ == "__main__":
    main(parse_arguments(Arguments, __doc__))
