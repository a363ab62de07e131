"""What does each part of the aligned layout gain?

Prints the bytes that could be read in place, and the share of them that is read in
place: in schedule order, aligned in one try, aligned in one try with one of the parts
left out, and after a search. In a clone:

    python experiments/alignment_parts.py
    python experiments/alignment_parts.py --workloads lattice-lstm --batch-sizes 8

Schedules are greedy, inputs are sampled; nothing runs on a device.
"""

from dataclasses import dataclass

import jax
import numpy as np
from numba import njit

import edbatch as eb
from edbatch.memory_planner.alignment import align
from edbatch.memory_planner.alignment_search import best_alignment
from edbatch.memory_planner.block_chains import chain_blocks, find_pairs
from edbatch.memory_planner.problem import LayoutProblem, make_problem
from edbatch.memory_planner.rows import find_in_place, place_blocks
from edbatch.memory_planner.tables import IS_READ, make_tables
from edbatch.models import get_workload
from edbatch.policies import Greedy

from arguments import option, parse_arguments

# Which of the three parts are on: chains of blocks, waiting batches, trees over runs.
VARIANTS = {
    "aligned": (True, True, True),
    "no chains": (False, True, True),
    "no waiting": (True, False, True),
    "no PQ-tree": (True, True, False),
}
COLUMNS = ("schedule", *VARIANTS, "searched")
ROW = "{:22} {:>9} {:>12}" + len(COLUMNS) * " {:>10}"


@dataclass(frozen=True)
class Arguments:
    workloads: str = option(
        "tree-lstm,tree-lstm-2type,bilstm-tagger,lattice-lstm,dag-lstm,lstm-nmt,"
        "neural-module-network",
        "Which ready workloads.",
    )
    batch_sizes: str = option("2,32", "Instances per minibatch.")
    minibatches: int = option(4, "Minibatches of each size.")
    effort: int = option(2000, "Effort of the search.")
    hidden: int = option(64, "Length of the models' states.")


@njit(nogil=True)
def align_once(
    problem: LayoutProblem, chains: bool, waiting: bool, tree: bool
) -> tuple[int, float]:
    """Aligns once with some parts; returns the bytes in place, and those possible."""
    tables, read_bytes = make_tables(problem)
    pairs, pair_bytes, possible = find_pairs(tables, problem.order, read_bytes)
    may_wait = tables.batch[:-1, IS_READ] == 0
    if not chains:
        pair_bytes[:] = 0
    if not waiting:
        may_wait[:] = False
    blocks = chain_blocks(tables.batch, pairs, pair_bytes)
    order, _ = align(tables, read_bytes, problem.order, may_wait, tree)
    value_row, arena_rows = place_blocks(problem, blocks, order, True)
    _, num_bytes = find_in_place(problem, order, value_row, arena_rows)
    return num_bytes, possible


def bytes_in_place(problem: LayoutProblem, effort: int) -> np.ndarray:
    """Returns the bytes that could be read in place, then those of each column."""
    blocks = np.arange(len(problem.batch_type), dtype=np.int32)
    rows = place_blocks(problem, blocks, problem.order, False)
    _, scheduled = find_in_place(problem, problem.order, *rows)
    found = [align_once(problem, *parts) for parts in VARIANTS.values()]
    searched = best_alignment(problem, effort).num_bytes
    return np.array([found[0][1], scheduled, *(each for each, _ in found), searched])


def main(arguments: Arguments) -> None:
    print(ROW.format("workload", "instances", "possible kB", *COLUMNS))
    for name in arguments.workloads.split(","):
        workload = get_workload(name)
        params = workload.init_params(jax.random.key(0), arguments.hidden)
        batched = eb.batch(workload.model, params=params)
        for size in map(int, arguments.batch_sizes.split(",")):
            total = np.zeros(1 + len(COLUMNS))
            for seed in range(arguments.minibatches):
                instances = workload.sample(np.random.default_rng(seed), size)
                graph = batched.graph(instances)
                schedule = Greedy().schedule(graph.structure)
                problem = make_problem(graph, schedule, eb.Sizes())
                total += bytes_in_place(problem, arguments.effort)
            possible, *in_place = total / arguments.minibatches
            shares = [f"{each / max(possible, 1):.1%}" for each in in_place]
            print(ROW.format(name, size, f"{possible / 1000:.1f}", *shares), flush=True)


if __name__ == "__main__":
    main(parse_arguments(Arguments, __doc__))
