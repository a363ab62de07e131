"""Times systems against each other on the same minibatches.

All systems run in one process and take turns on each minibatch. The system that starts
rotates each round, so that background load affects all systems equally. Every timed
call has run before, and is awaited with ``jax.block_until_ready``. Recording and
planning are timed from scratch each time. The passes are timed on the plan of the
warm-up, which is in host memory, so that its transfer is included. Objects that exist
before the timing are frozen with ``gc.freeze``, so that collections do not scan them.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from edbatch.benchmark.compile_counter import CompileCount
from edbatch.benchmark.differences import max_abs_error, max_relative_error
from edbatch.benchmark.systems import System
from edbatch.measuring import timed


@dataclass(frozen=True, eq=False)
class FirstRuns:
    """The first run of a pass on ``M`` minibatches.

    Attributes:
        first_ms: Time of each run, compilation included.
        compiles: Number of programs compiled in each run.
        max_error: Largest difference from the reference; None without a reference.
    """

    first_ms: np.ndarray  # [M] float64
    compiles: np.ndarray  # [M] int64
    max_error: float | None

    @property
    def num_compiles(self) -> int:
        """Total number of programs compiled."""
        return int(self.compiles.sum())

    def compile_s(self, later_ms: np.ndarray) -> float:
        """Returns the extra seconds of first runs over the median of later ones.

        Args:
            later_ms: Times of later runs, ``[M, R]``.

        Returns:
            The sum over minibatches whose first run compiled a program.
        """
        waited_ms = np.maximum(self.first_ms - np.median(later_ms, axis=1), 0)
        return float(waited_ms[self.compiles > 0].sum()) / 1e3


@dataclass(frozen=True, eq=False)
class WarmUp:
    """The first run of a system on ``M`` minibatches.

    Attributes:
        plans: The plan of each minibatch.
        forward: First runs of the forward pass, with the largest difference over all
            outputs of all instances.
        train: First runs of value and gradient, with the largest relative difference
            of gradients; None if they are not measured.
    """

    plans: list[Any]
    forward: FirstRuns
    train: FirstRuns | None = None


@dataclass(frozen=True, eq=False)
class Reference:
    """Reference results of a minibatch, computed by the unbatched model.

    Attributes:
        results: The model's result for each instance.
        gradient: Gradient of the benchmark's loss; None if it is not measured.
    """

    results: list[Any]
    gradient: Any = None


@dataclass(frozen=True, eq=False)
class Samples:
    """Times of a system on ``M`` minibatches in ``R`` rounds.

    Attributes:
        record_ms: Time of recording.
        plan_ms: Time of planning.
        forward_ms: Time of the forward pass.
        train_ms: Time of value and gradient; None if they are not measured.
    """

    record_ms: np.ndarray  # [M, R] float64
    plan_ms: np.ndarray  # [M, R] float64
    forward_ms: np.ndarray  # [M, R] float64
    train_ms: np.ndarray | None  # [M, R] float64


def warm_up(
    system: System,
    minibatches: Sequence[Sequence[Any]],
    references: Sequence[Reference] | None,
    count: CompileCount,
    tick: Callable[[], None] = lambda: None,
    *,
    train: bool = False,
) -> WarmUp:
    """Runs a system once on each minibatch and compares its results with the reference.

    Args:
        system: The system.
        minibatches: The instances of each minibatch.
        references: Reference results of each minibatch; None to skip the comparison.
        count: The compilation counter.
        tick: Called after each minibatch.
        train: Also run value and gradient.

    Returns:
        The plans, and the times, compilations and errors of the first runs.

    Raises:
        UnsupportedError: The system cannot run this workload.
    """
    plans: list[Any] = []
    forward, backward = _FirstRuns(count), _FirstRuns(count)
    for k, instances in enumerate(minibatches):
        plan = system.plan(system.record(instances))
        plans.append(plan)
        outcome = forward.run(system.forward, plan)
        if references is not None:
            found = system.results(plan, outcome)
            forward.errors.append(max_abs_error(found, references[k].results))
        if train:
            _, gradient = backward.run(system.train, plan)
            if references is not None:
                error = max_relative_error(gradient, references[k].gradient)
                backward.errors.append(error)
        tick()
    return WarmUp(plans, forward.result(), backward.result() if train else None)


class _FirstRuns:
    """Collects `FirstRuns`."""

    def __init__(self, count: CompileCount) -> None:
        self._count = count
        self._first_ms: list[float] = []
        self._compiles: list[int] = []
        self.errors: list[float] = []

    def run(self, call: Callable[[Any], Any], plan: Any) -> Any:
        before = self._count.programs
        outcome, elapsed_ms = timed(call, plan)
        self._first_ms.append(elapsed_ms)
        self._compiles.append(self._count.programs - before)
        return outcome

    def result(self) -> FirstRuns:
        error = max(self.errors) if self.errors else None
        return FirstRuns(np.array(self._first_ms), np.array(self._compiles), error)


def alternate(
    systems: Sequence[System],
    warm: Sequence[WarmUp],
    minibatches: Sequence[Sequence[Any]],
    rounds: int,
    tick: Callable[[], None] = lambda: None,
    *,
    train: bool = False,
) -> list[Samples]:
    """Times warmed-up systems, taking turns.

    Args:
        systems: The systems.
        warm: The warm-up of each system.
        minibatches: The instances of each minibatch.
        rounds: How often to time each system on each minibatch.
        tick: Called after each turn.
        train: Also time value and gradient.

    Returns:
        The times of each system.
    """
    times = np.zeros((len(systems), 4, len(minibatches), rounds))
    with gc_frozen():
        for r in range(rounds):
            for m, instances in enumerate(minibatches):
                for turn in range(len(systems)):
                    k = (turn + r) % len(systems)
                    times[k, :2, m, r] = _host(systems[k], instances)
                    plan = warm[k].plans[m]
                    _, times[k, 2, m, r] = timed(systems[k].forward, plan)
                    if train:
                        _, times[k, 3, m, r] = timed(systems[k].train, plan)
                    tick()
    return [
        Samples(record, plan, forward, both if train else None)
        for record, plan, forward, both in times
    ]


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Freezes existing objects, so that garbage collection between timings is cheap."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _host(system: System, instances: Sequence[Any]) -> tuple[float, float]:
    start = time.perf_counter()
    recordings = system.record(instances)
    recorded = time.perf_counter()
    plan = system.plan(recordings)
    planned = time.perf_counter()
    del plan, recordings  # only now, since freeing them takes time, too
    return 1e3 * (recorded - start), 1e3 * (planned - recorded)


def typical(samples: np.ndarray) -> float:
    """Returns the mean over minibatches of the median over rounds.

    Args:
        samples: ``[M, R]``.

    Example:
        >>> typical(np.array([[1.0, 1.0, 9.0], [3.0, 3.0, 3.0]]))
        2.0
    """
    return float(np.median(samples, axis=1).mean())


def ratio(samples: np.ndarray, others: np.ndarray) -> float:
    """Returns the median ratio of times measured side by side.

    Args:
        samples: ``[M, R]``.
        others: ``[M, R]``.

    Returns:
        The median of the ratios of adjacent measurements, which a busy machine affects
        less than a ratio of medians.
    """
    return float(np.median(samples / others))


def noise_percent(samples: np.ndarray) -> float:
    """Returns the spread of times: half their interquartile range.

    Args:
        samples: ``[M, R]``.

    Returns:
        Half the interquartile range of the times, each relative to the median of its
        minibatch, in percent.

    Example:
        >>> noise_percent(np.array([[9.0, 9.0, 10.0, 11.0, 11.0]]))
        10.0
    """
    relative = samples / np.median(samples, axis=1, keepdims=True)
    low, high = np.percentile(relative, (25, 75))
    return round(float(high - low) * 50, 6)
