"""Training of serving rules by the cross-entropy method.

Rubinstein 1999; as a search for policies: Szita, Lörincz, Learning Tetris Using the
Noisy Cross-Entropy Method, 2006. Each generation draws rules around a mean, serves the
same requests with all of them, and moves mean and spread to those of the best. Requests
are drawn anew for each generation, and a constant added to the spread keeps the search
alive. There are three searches, one from the rule that decides as the best heuristic
does, and the rule that is best on validation requests is taken.

What a rule is worth is the mean, over the rates, of the logarithm of its objective in
terms of the best heuristic's at that rate (of deadlines, the difference), so that high
loads, whose latencies are larger, count no more than others.

Tabular Q-learning over buckets of the same features has more states than a training
meets for three types, and credit for a latency is due hundreds of decisions earlier;
the rule has 8 weights per type and its neighbours behave alike.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edbatch.arguments import check_number, list_of
from edbatch.errors import PolicyError
from edbatch.policies.fsm.training_record import package_versions
from edbatch.policies.serving.choices import (
    AGENDA,
    FEATURES,
    GREEDY,
    LARGEST,
    OLDEST,
    READY,
    WAITING,
)
from edbatch.policies.serving.heuristics import (
    WAVES,
    ServingHeuristic,
    serving_heuristics,
)
from edbatch.policies.serving.objective import Objective
from edbatch.policies.serving.rule import ServingRecord, ServingRule
from edbatch.policies.serving.trace import CompiledPolicy, Trace, draw_trace, serve
from edbatch.schedule.serving.arrivals import Arrivals
from edbatch.schedule.serving.library import InstanceLibrary
from edbatch.schedule.serving.simulation import ServingConfig

_ELITE = 8
_FEW = 2  # heuristics that are kept per trace
_NOISE = 0.25  # of the first spreads
_STEP = 0.7  # share of the elite's mean and spread in the next generation's
_VALIDATION_SEEDS = (1_000_001, 1_000_002, 1_000_003)
_PATIENCE = 1.0  # time for what is left after the last arrival, in that of the arrivals
# The weight of a heuristic's feature; the agenda is a bias. To wait needs a reason.
_FEATURE = {GREEDY: "ratio", LARGEST: "width", OLDEST: "age", READY: "wait"}
_FEATURE_WEIGHT = {GREEDY: 4.0, LARGEST: 1.0, OLDEST: 1.0, READY: 1.0}
_WAIT_BIAS = -20.0
_LONGEST_WAVE = 8.0  # log2 of batches: to the end
# Spreads of the first generation; of weights of the load, which is up to 8, less.
_NARROW = {"load": 0.15, "wait_load": 0.1, "wave_load": 0.15, "wait_bias": 3.0}
_NEAR, _WIDE = 0.4, 1.0

Progress = Callable[[int, int, float], None]


@dataclass(frozen=True, eq=False)
class _Task:
    """What rules are judged by."""

    library: InstanceLibrary
    config: ServingConfig
    arrivals: tuple[Arrivals, ...]
    objective: Objective
    requests: int

    def traces(self, seed: int) -> list[Trace]:
        """One trace per rate."""
        return [
            draw_trace(self.library, each, self.requests, seed)
            for each in self.arrivals
        ]

    def values(
        self, policy: CompiledPolicy, traces: Sequence[Trace], patient: bool = False
    ) -> np.ndarray:
        """The objective on each trace."""
        return np.array([self._value(policy, each, patient) for each in traces])

    def _value(self, policy: CompiledPolicy, trace: Trace, patient: bool) -> float:
        patience = None if patient else _PATIENCE * float(trace.arrival_ms[-1])
        deadline = self.objective.deadline_ms
        args = policy, self.library, self.config, trace, deadline, patience
        return self.objective.value(serve(*args), patience or np.inf)

    def loss(self, values: np.ndarray, best: np.ndarray) -> float:
        """The mean over rates, in terms of the best heuristic."""
        if self.objective.deadline_ms is not None:
            return float(np.mean(values - best))
        return float(np.mean(np.log(values / best)))


def train_serving_policy(
    library: InstanceLibrary,
    config: ServingConfig,
    arrivals: Sequence[Arrivals],
    objective: Objective,
    *,
    generations: int = 20,
    population: int = 48,
    requests: int = 1000,
    seed: int = 0,
    workload: str = "",
    costs: str = "",
    progress: Progress | None = None,
) -> ServingRule:
    """Trains a rule for a model, a server and some rates.

    Args:
        library: The instances that requests are drawn from.
        config: The server.
        arrivals: One process per rate to train for.
        objective: What to minimize.
        generations: How often each of three searches draws rules and keeps the best.
        population: How many to draw.
        requests: Requests of each run.
        seed: Draws rules and requests; those that the rule is validated on, and those
            that ``edbatch compare`` serves, have other seeds.
        workload: On what it is trained, for the record.
        costs: Where the costs of batches come from, for the record.
        progress: Is told how many generations are done, their number over all searches,
            and the loss of the best rule.

    Returns:
        The rule of least loss on the validation requests, of the means of the
        generations.

    Raises:
        PolicyError: A number is out of range, or there is no rate.
    """
    began = time.perf_counter()
    rates = tuple(list_of(PolicyError, "arrivals of a training", arrivals, "Arrivals"))
    if not rates:
        raise PolicyError(
            "a serving policy is trained at one rate or more but there is none; give"
            " for example [Arrivals(rate=100)]"
        )
    check_number(PolicyError, "generations", generations, 1, whole=True)
    check_number(PolicyError, "population", population, 2, whole=True)
    check_number(PolicyError, "requests", requests, 1, whole=True)
    task = _Task(library, config, rates, objective, requests)
    validation = [each for s in _VALIDATION_SEEDS for each in task.traces(s)]
    heuristics = _best_few(task, serving_heuristics(library), validation)
    names, best_validation = _best(task, heuristics, validation)
    scale_ms = float(np.median(best_validation))
    if objective.deadline_ms is not None:
        scale_ms = objective.deadline_ms / 4
    judge = _Judge(task, heuristics, validation, best_validation, scale_ms)
    rng = np.random.default_rng(seed)
    starts = _starts(library, _best_of(task, heuristics, validation))
    found, least = starts[0][0], np.inf
    for k, start in enumerate(starts):
        for generation, mean in enumerate(
            _search(judge, start, generations, population, seed, rng)
        ):
            loss = judge.loss(mean, validation, best_validation)
            if loss < least:
                found, least = mean, loss
            if progress is not None and generation:
                done = k * generations + generation
                progress(done, len(starts) * generations, least)
    values = task.values(_rule(library, found, scale_ms), validation)
    shape = len(_VALIDATION_SEEDS), len(rates)
    ratios = (values / best_validation).reshape(shape).mean(axis=0)
    record = ServingRecord(
        workload=workload,
        objective=str(objective),
        rates=tuple(float(each.rate) for each in rates),
        burst=float(rates[0].burst),
        overhead_ms=float(config.overhead_ms),
        costs=costs,
        seed=seed,
        generations=generations,
        validation=tuple(round(float(each), 4) for each in ratios),
        best_heuristics=tuple(names[: len(rates)]),
        elapsed_s=round(time.perf_counter() - began, 2),
        versions=package_versions(),
    )
    return _rule(library, found, scale_ms, record)


@dataclass(frozen=True, eq=False)
class _Judge:
    """Rules as flat weights, judged against the best heuristics."""

    task: _Task
    heuristics: Sequence[ServingHeuristic]
    validation: Sequence[Trace]
    best_validation: np.ndarray
    scale_ms: float

    def loss(
        self, flat: np.ndarray, traces: Sequence[Trace], best: np.ndarray
    ) -> float:
        """The loss of a rule on some traces."""
        rule = _rule(self.task.library, flat, self.scale_ms)
        return self.task.loss(self.task.values(rule, traces), best)


def _search(
    judge: _Judge,
    start: tuple[np.ndarray, np.ndarray],
    generations: int,
    population: int,
    seed: int,
    rng: np.random.Generator,
) -> Iterator[np.ndarray]:
    """Yields the mean of each generation, that of the start first."""
    mean, spread = start[0].copy(), start[1].copy()
    noise = _NOISE * spread
    yield mean.copy()
    for generation in range(generations):
        traces = judge.task.traces(seed + 1 + generation)
        _, best = _best(judge.task, judge.heuristics, traces)
        drawn = mean + spread * rng.standard_normal((population, len(mean)))
        drawn[0] = mean
        losses = [judge.loss(each, traces, best) for each in drawn]
        elite = drawn[np.argsort(losses)[: min(_ELITE, population)]]
        mean += _STEP * (elite.mean(axis=0) - mean)
        spread += _STEP * (elite.std(axis=0) - spread)
        # The noise falls to nothing over the generations (Szita, Lörincz).
        falling = max(0.0, 1 - 1.5 * generation / generations)
        spread = np.sqrt(spread**2 + (falling * noise) ** 2)
        yield mean.copy()


def _best_few(
    task: _Task, heuristics: Sequence[ServingHeuristic], traces: Sequence[Trace]
) -> list[ServingHeuristic]:
    """The heuristics that are among the best on some trace; the rest takes long."""
    values = np.array([task.values(each, traces) for each in heuristics])
    kept = np.unique(np.argsort(values, axis=0)[:_FEW])
    return [heuristics[k] for k in kept]


def _best(
    task: _Task, heuristics: Sequence[CompiledPolicy], traces: Sequence[Trace]
) -> tuple[list[str], np.ndarray]:
    """Name and objective of the best heuristic on each trace."""
    values = np.array([task.values(each, traces) for each in heuristics])
    place = values.argmin(axis=0)
    return [heuristics[k].name for k in place], values.min(axis=0)


def _best_of(
    task: _Task, heuristics: Sequence[ServingHeuristic], traces: Sequence[Trace]
) -> ServingHeuristic:
    """The heuristic that is best over all traces."""
    values = [task.values(each, traces) for each in heuristics]
    _, best = _best(task, heuristics, traces)
    losses = [task.loss(each, best) for each in values]
    return heuristics[int(np.argmin(losses))]


def _starts(
    library: InstanceLibrary, heuristic: ServingHeuristic
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Means and spreads that searches start from, as flat weights.

    One near the best heuristic, and two wide ones from a mixture of the largest and the
    oldest, in waves of two lengths: which of them ends best differs by workload.
    """
    names = [*FEATURES] * library.num_types + [*WAITING]
    near, wide = (
        np.array([_NARROW.get(name, spread) for name in names])
        for spread in (_NEAR, _WIDE)
    )
    rows = np.zeros((library.num_types, len(FEATURES)))
    rows[:, FEATURES.index("width")] = 1.0
    rows[:, FEATURES.index("age")] = 0.5
    waves = (float(np.log2(wave)) for wave in WAVES[1:])
    return [
        (_start(library, heuristic), near),
        *((_flat(rows, wave), wide) for wave in waves),
    ]


def _start(library: InstanceLibrary, heuristic: ServingHeuristic) -> np.ndarray:
    """The rule that decides as a heuristic does, as flat weights."""
    rows = np.zeros((library.num_types, len(FEATURES)))
    if heuristic.kind == AGENDA:
        rows[:, FEATURES.index("bias")] = -library.mean_depth
    else:
        column = FEATURES.index(_FEATURE[heuristic.kind])
        rows[:, column] = _FEATURE_WEIGHT[heuristic.kind]
    return _flat(rows, min(_LONGEST_WAVE, float(np.log2(heuristic.wave))))


def _flat(rows: np.ndarray, wave: float) -> np.ndarray:
    waiting = {"wait_bias": _WAIT_BIAS, "wave_bias": wave}
    return np.append(rows, [waiting.get(name, 0.0) for name in WAITING])


def _rule(
    library: InstanceLibrary,
    flat: np.ndarray,
    scale_ms: float,
    record: ServingRecord | None = None,
) -> ServingRule:
    rows = flat[: -len(WAITING)].reshape(library.num_types, len(FEATURES))
    return ServingRule(
        types=library.type_keys,
        weights=tuple(tuple(round(float(w), 6) for w in row) for row in rows),
        waiting=tuple(round(float(w), 6) for w in flat[-len(WAITING) :]),
        scale_ms=round(scale_ms, 6),
        training=record,
    )
