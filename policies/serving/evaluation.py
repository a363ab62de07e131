"""Evaluation of serving policies during their training.

The loss of a policy is the mean over traces, equally many at each rate, of the
logarithm of the ratio between its objective and that of the best heuristic on the same
trace (for deadlines, the mean difference). So high loads, whose latencies are larger,
weigh no more than others.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from edbatch.arguments import list_of
from edbatch.errors import PolicyError
from edbatch.policies.fsm.training_record import package_versions
from edbatch.policies.serving.heuristics import ServingHeuristic, serving_heuristics
from edbatch.policies.serving.objective import Objective
from edbatch.policies.serving.record import ServingRecord
from edbatch.policies.serving.trace import CompiledPolicy, Trace, draw_trace, serve
from edbatch.schedule.serving.arrivals import Arrivals
from edbatch.schedule.serving.library import InstanceLibrary
from edbatch.schedule.serving.simulation import ServingConfig

_FEW = 2  # heuristics that are kept per trace
_VALIDATION_SEEDS = (1_000_001, 1_000_002, 1_000_003)
_PATIENCE = 1.0  # time limit after the last arrival, relative to its time

_SHORT_MS = 1e-4  # shorter times have too few digits in nanoseconds

Progress = Callable[[int, int, float], None]


@dataclass(frozen=True, eq=False)
class Task:
    """The task of a training.

    Attributes:
        library: The instances.
        config: The server.
        arrivals: One process per rate.
        objective: The objective to minimize.
        requests: Number of requests per trace.
    """

    library: InstanceLibrary
    config: ServingConfig
    arrivals: tuple[Arrivals, ...]
    objective: Objective
    requests: int

    def traces(self, seed: int) -> list[Trace]:
        """Draws one trace per rate."""
        return [
            draw_trace(self.library, each, self.requests, seed)
            for each in self.arrivals
        ]

    def values(self, policy: CompiledPolicy, traces: Sequence[Trace]) -> np.ndarray:
        """Returns the objective on each trace."""
        return np.array([self._value(policy, each) for each in traces])

    def _value(self, policy: CompiledPolicy, trace: Trace) -> float:
        deadline = self.objective.deadline_ms
        # At least the deadline, so that unanswered requests count as late.
        patience = max(_PATIENCE * float(trace.arrival_ms[-1]), deadline or 0.0)
        served = serve(policy, self.library, self.config, trace, deadline, patience)
        return self.objective.value(served, patience)

    def loss(self, values: np.ndarray, best: np.ndarray) -> float:
        """Returns the mean over traces, relative to the best heuristic on each."""
        if self.objective.deadline_ms is not None:
            return float(np.mean(values - best))
        return float(np.mean(np.log(values / best)))


def best_few(
    task: Task, heuristics: Sequence[ServingHeuristic], traces: Sequence[Trace]
) -> list[ServingHeuristic]:
    """Returns the heuristics that are among the best `_FEW` on some trace."""
    values = np.array([task.values(each, traces) for each in heuristics])
    kept = np.unique(np.argsort(values, axis=0, kind="stable")[:_FEW])
    return [heuristics[k] for k in kept]


def best_values(
    task: Task, heuristics: Sequence[CompiledPolicy], traces: Sequence[Trace]
) -> tuple[list[str], np.ndarray]:
    """Returns name and objective of the best heuristic on each trace."""
    values = np.array([task.values(each, traces) for each in heuristics])
    place = values.argmin(axis=0)
    return [heuristics[k].name for k in place], values.min(axis=0)


def best_of(
    task: Task, heuristics: Sequence[ServingHeuristic], traces: Sequence[Trace]
) -> ServingHeuristic:
    """Returns the best heuristic over all traces."""
    values = [task.values(each, traces) for each in heuristics]
    _, best = best_values(task, heuristics, traces)
    losses = [task.loss(each, best) for each in values]
    return heuristics[int(np.argmin(losses))]


class Validation:
    """Requests for validation, and the results of heuristics on them.

    Args:
        task: The task of the training.

    Attributes:
        task: The task of the training.
        traces: The requests.
        all_heuristics: All heuristics.
        heuristics: The heuristics that are among the best on some trace.
        best: The objective of the best heuristic on each trace.
        scale_ms: The unit of time of policies: a quarter of the deadline, or without
            one the median of `best`.
    """

    def __init__(self, task: Task) -> None:
        self._began = time.perf_counter()
        self.task = task
        self.traces = [each for s in _VALIDATION_SEEDS for each in task.traces(s)]
        self.all_heuristics = serving_heuristics(task.library)
        self.heuristics = best_few(task, self.all_heuristics, self.traces)
        self._names, self.best = best_values(task, self.heuristics, self.traces)
        deadline_ms = task.objective.deadline_ms
        latency_ms = float(np.median(self.best))
        self.scale_ms = latency_ms if deadline_ms is None else deadline_ms / 4

    def loss(self, policy: CompiledPolicy) -> float:
        """Returns the loss of a policy on these requests."""
        return self.task.loss(self.task.values(policy, self.traces), self.best)

    def record(
        self,
        policy: CompiledPolicy,
        method: str,
        workload: str,
        costs: str,
        seed: int,
        generations: int,
        interrupted: bool,
    ) -> ServingRecord:
        """Returns the record of a training that ends now."""
        task, rates = self.task, self.task.arrivals
        ratios = task.values(policy, self.traces) / self.best
        means = ratios.reshape(len(_VALIDATION_SEEDS), len(rates)).mean(axis=0)
        return ServingRecord(
            method=method,
            workload=workload,
            objective=str(task.objective),
            rates=tuple(float(each.rate) for each in rates),
            burst=float(rates[0].burst),
            overhead_ms=float(task.config.overhead_ms),
            costs=costs,
            seed=int(seed),
            generations=int(generations),
            validation=tuple(round(float(each), 4) for each in means),
            best_heuristics=tuple(self._names[: len(rates)]),
            elapsed_s=round(time.perf_counter() - self._began, 2),
            versions=package_versions(),
            interrupted=interrupted,
        )


def rounded_ms(scale_ms: float) -> float:
    """Rounds a unit of time for files, to nanoseconds; shorter ones to six digits.

    Example:
        >>> rounded_ms(1.23456789), rounded_ms(1.23456789e-8)
        (1.234568, 1.23457e-08)
    """
    return round(scale_ms, 6) if scale_ms >= _SHORT_MS else float(f"{scale_ms:.6g}")


def checked_rates(arrivals: Sequence[Arrivals]) -> tuple[Arrivals, ...]:
    """Returns the rates to train at.

    Raises:
        PolicyError: There is none.
    """
    rates = tuple(list_of(PolicyError, "arrivals of a training", arrivals, "Arrivals"))
    if not rates:
        raise PolicyError(
            "a serving policy is trained at one rate or more but there is none; give"
            " for example [Arrivals(rate=100)]"
        )
    return rates
