"""Does it pay to schedule by measured cost instead of the number of batches?

For each workload the costs of its cells are measured (as `edbatch calibrate` does).
Then, for each of several other minibatches, two schedules are chosen from the same
candidates: the one with the fewest batches, and the one with the lowest predicted cost.
The candidates are the schedules of beam search for few batches, on top of the zoo's
policy and of greedy; of beam search for low cost, on top of the zoo's policy; of the
zoo's policy itself; and of the heuristics. Ties go to the first. If the two choices
differ, both are run alternately. With `--train N` the two choices instead come from two
policies trained on the same N minibatches, one for few batches and one for low cost. In
a clone:

    python experiments/cost_objective.py
    python experiments/cost_objective.py --workloads lattice-lstm,dag-lstm --hidden 256
    python experiments/cost_objective.py --workloads tree-lstm-2type,dag-lstm --train 32

Each workload takes about a minute on two cores, most of it to compile. Keep the machine
otherwise idle. `error %` is the difference of predicted and measured times.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

import edbatch as eb
from edbatch.benchmark import calibrate
from edbatch.benchmark.minibatches import random_params
from edbatch.graph import GraphStructure
from edbatch.measuring import side_by_side
from edbatch.models import WORKLOADS, get_workload
from edbatch.policies import BeamSearch, CostModel, train_policy
from edbatch.policies.registry import HEURISTICS
from edbatch.schedule import Policy, Schedule

from arguments import option, parse_arguments

ROW = "{:22} {:>6} {:>15} {:>15} {:>15} {:>6} {:>8}"
HEAD = ROW.format(
    "workload", "differ", "batches", "predicted ms", "measured ms", "ratio", "error %"
)


@dataclass(frozen=True)
class Arguments:
    workloads: str = option(
        ",".join(WORKLOADS), "Ready workloads, joined by commas, on sampled inputs."
    )
    hidden: int = option(128, "Length of the models' states.")
    batch_size: int = option(32, "Instances per minibatch.")
    minibatches: int = option(8, "Minibatches to compare on; half as many to measure.")
    rounds: int = option(7, "How often everything is timed.")
    width: int = option(8, "How many states the searches keep.")
    train: int = option(
        0,
        "Compare policies trained on this many minibatches, half of them for"
        " validation.",
    )
    seed: int = option(0, "Seed of inputs and parameters.")


@dataclass(frozen=True)
class Best:
    """The best schedule of several policies."""

    policies: tuple[Policy, ...]
    value: Callable[[Schedule, GraphStructure], float]
    name: str = "best"

    def schedule(self, structure: GraphStructure) -> Schedule:
        found = [each.schedule(structure) for each in self.policies]
        return min(found, key=lambda schedule: self.value(schedule, structure))


@dataclass(frozen=True)
class Outcome:
    """Results of the two choices, by count and by cost, on M minibatches."""

    workload: str
    batches: np.ndarray  # [M, 2]
    predicted_ms: np.ndarray  # [M, 2]
    measured_ms: np.ndarray  # [M, 2, rounds]; equal where the choices agree
    error_percent: float

    @property
    def differ(self) -> np.ndarray:
        """Whether the choices differ, judged by their predicted costs."""
        return self.predicted_ms[:, 0] != self.predicted_ms[:, 1]


def choices(
    workload: str, arguments: Arguments, costs: CostModel, graphs: list[GraphStructure]
) -> list[Policy]:
    """Returns the policies to compare, by count and by cost; trained with `--train`."""
    if arguments.train:
        half = len(graphs) // 2
        trained = [
            train_policy(graphs[:half], graphs[half:], seed=arguments.seed, costs=each)
            for each in (None, costs)
        ]
        if any(each.training.stopped == "interrupted" for each in trained):
            raise KeyboardInterrupt
        return trained
    policies = candidates(workload, arguments.width, costs)
    return [Best(policies, by_count), Best(policies, by_cost(costs))]


def candidates(workload: str, width: int, costs: CostModel) -> tuple[Policy, ...]:
    learned = eb.get_policy(f"zoo:{workload}")
    heuristics = [eb.get_policy(each) for each in HEURISTICS]
    searched = [
        BeamSearch(each, width=width) for each in (learned, eb.get_policy("greedy"))
    ]
    for_cost = BeamSearch(learned, width=width, costs=costs)
    return (*searched, for_cost, learned, *heuristics)


def by_count(schedule: Schedule, structure: GraphStructure) -> float:
    return schedule.num_batches


def by_cost(costs: CostModel) -> Callable[[Schedule, GraphStructure], float]:
    return lambda schedule, structure: costs.schedule_us(schedule, structure.type_keys)


def compare(workload_name: str, arguments: Arguments) -> Outcome:
    workload = get_workload(workload_name)
    params = random_params(workload, arguments.hidden, arguments.seed)
    some = max(1, arguments.minibatches // 2)
    sizes = [some, some, arguments.train, arguments.minibatches]
    rng = np.random.default_rng(arguments.seed)
    size = arguments.batch_size
    instances = workload.sample(rng, sum(sizes) * size)
    drawn = [instances[k : k + size] for k in range(0, len(instances), size)]
    measured, checked, trained_on, compared = (
        drawn[sum(sizes[:k]) : sum(sizes[: k + 1])] for k in range(len(sizes))
    )
    found = calibrate(
        workload.model,
        params,
        measured,
        checked,
        rounds=arguments.rounds,
        workload=workload_name,
        hidden=arguments.hidden,
    )
    value = by_cost(found.costs)
    batched = eb.batch(workload.model, params=params, cache_bytes=0)
    graphs = [batched.graph(each).structure for each in trained_on]
    both = choices(workload_name, arguments, found.costs, graphs)
    batches, predicted_ms, measured_ms = [], [], []
    for minibatch in compared:
        recordings = [batched.record(each) for each in minibatch]
        structure = batched.graph(recordings).structure
        schedules = [each.schedule(structure) for each in both]
        us = [found.costs.call_us + value(each, structure) for each in schedules]
        batches.append([each.num_batches for each in schedules])
        predicted_ms.append([each / 1e3 for each in us])
        plans = []
        for choice in both:
            batched.policy = choice
            plans.append(batched.plan(recordings))
        plans = plans if us[0] != us[1] else plans[:1]
        calls = [partial(batched.apply, params, plan) for plan in plans]
        times = side_by_side(calls, arguments.rounds)
        measured_ms.append(times if us[0] != us[1] else np.repeat(times, 2, axis=0))
    assert found.costs.record is not None
    return Outcome(
        workload_name,
        np.array(batches),
        np.array(predicted_ms),
        np.array(measured_ms),
        found.costs.record.error_percent,
    )


def line(outcome: Outcome) -> str:
    differ = outcome.differ
    measured_ms = np.median(outcome.measured_ms, axis=2)
    pairs = (outcome.batches, outcome.predicted_ms, measured_ms)
    means = [each.mean(axis=0) for each in pairs]
    # Where the choices agree, times differ by noise only.
    ratios = outcome.measured_ms[differ, 1] / outcome.measured_ms[differ, 0]
    return ROW.format(
        outcome.workload,
        f"{differ.sum()}/{len(differ)}",
        *(f"{count:.2f} {cost:.2f}" for count, cost in means),
        f"{np.median(ratios):.3f}" if differ.any() else "-",
        f"{outcome.error_percent:.1f}",
    )


def main(arguments: Arguments) -> None:
    print(
        f"hidden {arguments.hidden}, minibatches of {arguments.batch_size}; pairs are"
        " by count and by cost, the ratio is by cost to by count where they differ"
    )
    print(HEAD)
    for workload in arguments.workloads.split(","):
        print(line(compare(workload.strip(), arguments)), flush=True)


if __name__ == "__main__":
    main(parse_arguments(Arguments, __doc__))
