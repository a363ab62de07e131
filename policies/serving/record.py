"""Records of the training of serving policies."""

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class ServingRecord:
    """The record of a serving policy's training.

    Attributes:
        method: `"cross-entropy"` or `"q-learning"`.
        workload: Description of the training data, given by the user.
        objective: The objective, in the form that `Objective.parse` reads.
        rates: Requests per second.
        burst: Burst of the arrivals; 1 for Poisson.
        overhead_ms: Overhead of a wave.
        costs: Source of the costs of batches.
        seed: Seed of the search and of the arrivals.
        generations: Generations of each search by the cross-entropy method, or episodes
            per encoding of Q-learning.
        validation: Ratio of the objective to that of the best heuristic, mean over the
            validation traces of each rate; below 1 is better.
        best_heuristics: The best heuristic on the first validation trace of each rate.
        elapsed_s: Training time in seconds.
        versions: Versions of the packages that can change the result.
        interrupted: Whether Ctrl-C ended the training early.

    Example:
        >>> from edbatch.policies.serving import affine_costs, serving_heuristics
        >>> from edbatch.schedule.examples import chain
        >>> from edbatch.schedule.serving import Arrivals, InstanceLibrary
        >>> from edbatch.schedule.serving import ServingConfig
        >>> library = InstanceLibrary.of([chain("ab")])
        >>> config = ServingConfig(affine_costs(2))
        >>> from edbatch.policies.serving import Objective, train_serving_machine
        >>> machine = train_serving_machine(
        ...     library,
        ...     config,
        ...     [Arrivals(rate=100)],
        ...     Objective("mean"),
        ...     episodes=4,
        ...     requests=20,
        ... )
        >>> machine.training.rates
        (100.0,)
    """

    method: str
    workload: str
    objective: str
    rates: tuple[float, ...]
    burst: float
    overhead_ms: float
    costs: str
    seed: int
    generations: int
    validation: tuple[float, ...]
    best_heuristics: tuple[str, ...]
    elapsed_s: float
    versions: tuple[tuple[str, str], ...]
    interrupted: bool = False

    def to_json(self) -> dict[str, Any]:
        """Returns the record as JSON values, in the order of the attributes."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        for name in ("rates", "validation", "best_heuristics"):
            values[name] = list(values[name])
        return values | {"versions": dict(self.versions)}
