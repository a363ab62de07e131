"""Training of serving rules by the cross-entropy method.

Rubinstein 1999; as a search for policies: Szita, Lörincz, Learning Tetris Using the
Noisy Cross-Entropy Method, 2006. Each generation draws rules around a mean, serves the
same requests with all of them, and moves mean and spread to those of the best. Requests
are drawn anew for each generation, and a constant added to the spread keeps the search
alive. There are three searches, one from the rule that decides as the best heuristic
does, and the rule that is best on validation requests is taken.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from edbatch.arguments import check_number
from edbatch.errors import PolicyError
from edbatch.policies.fsm.training_record import check_workload
from edbatch.policies.serving.choices import (
    AGENDA,
    FEATURES,
    GREEDY,
    LARGEST,
    OLDEST,
    READY,
    WAITING,
)
from edbatch.policies.serving.evaluation import (
    Progress,
    Task,
    Validation,
    best_of,
    best_values,
    checked_rates,
    rounded_ms,
)
from edbatch.policies.serving.heuristics import WAVES, ServingHeuristic
from edbatch.policies.serving.objective import Objective
from edbatch.policies.serving.rule import ServingRule
from edbatch.schedule.interrupt import deferred_interrupt
from edbatch.schedule.serving.arrivals import Arrivals
from edbatch.schedule.serving.library import InstanceLibrary
from edbatch.schedule.serving.simulation import ServingConfig

_ELITE = 8
_NOISE = 0.25  # of the first spreads
_STEP = 0.7  # share of the elite's mean and spread in the next generation's
# The weight of a heuristic's feature; the agenda is a bias. To wait needs a reason.
_FEATURE = {GREEDY: "ratio", LARGEST: "width", OLDEST: "age", READY: "wait"}
_FEATURE_WEIGHT = {GREEDY: 4.0, LARGEST: 1.0, OLDEST: 1.0, READY: 1.0}
_WAIT_BIAS = -20.0
_LOWEST_BIAS = 10.0  # below zero, of the agenda: well above that of waiting
_LONGEST_WAVE = 8.0  # log2 of batches: to the end
# Spreads of the first generation; of weights of the load, which is up to 8, less.
_NARROW = {"load": 0.15, "wait_load": 0.1, "wave_load": 0.15, "wait_bias": 3.0}
_NEAR, _WIDE = 0.4, 1.0


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
        generations. Ctrl-C ends the training at the end of a generation; the rule is
        the best one so far.

    Raises:
        PolicyError: A number is out of range, or there is no rate.

    Example:
        >>> from edbatch.policies.serving import affine_costs, serving_heuristics
        >>> from edbatch.schedule.examples import chain
        >>> from edbatch.schedule.serving import Arrivals, InstanceLibrary
        >>> from edbatch.schedule.serving import ServingConfig
        >>> library = InstanceLibrary.of([chain("ab")])
        >>> config = ServingConfig(affine_costs(2))
        >>> from edbatch.policies.serving import Objective
        >>> rule = train_serving_policy(
        ...     library,
        ...     config,
        ...     [Arrivals(rate=100)],
        ...     Objective("mean"),
        ...     generations=1,
        ...     population=4,
        ...     requests=20,
        ... )
        >>> [str(key) for key in rule.types]
        ['a/0', 'b/0']
    """
    rates = checked_rates(arrivals)
    check_number(PolicyError, "generations", generations, 1, whole=True)
    check_number(PolicyError, "population", population, 2, whole=True)
    check_number(PolicyError, "requests", requests, 1, whole=True)
    check_number(PolicyError, "seed", seed, 0, whole=True)
    check_workload(workload)
    task = Task(library, config, rates, objective, requests)
    validation = Validation(task)
    rng = np.random.default_rng(seed)
    best = best_of(task, validation.heuristics, validation.traces)
    starts = _starts(library, best)
    found, least = starts[0][0], np.inf
    means = (  # each with how many generations are done; of a start, 0
        (generation and k * generations + generation, mean)
        for k, start in enumerate(starts)
        for generation, mean in enumerate(
            _search(validation, start, generations, population, seed, rng)
        )
    )
    interrupted = False
    try:
        with deferred_interrupt() as check_interrupt:
            for done, mean in means:
                loss = validation.loss(_rule(library, mean, validation.scale_ms))
                if loss < least:
                    found, least = mean, loss
                if progress is not None and done:
                    progress(done, len(starts) * generations, least)
                check_interrupt()
    except KeyboardInterrupt:
        interrupted = True
    rule = _rule(library, found, validation.scale_ms)
    record = validation.record(
        rule, "cross-entropy", workload, costs, seed, generations, interrupted
    )
    return replace(rule, training=record)


def _search(
    validation: Validation,
    start: tuple[np.ndarray, np.ndarray],
    generations: int,
    population: int,
    seed: int,
    rng: np.random.Generator,
) -> Iterator[np.ndarray]:
    """Yields the mean of each generation, that of the start first."""
    task, scale_ms = validation.task, validation.scale_ms
    mean, spread = start[0].copy(), start[1].copy()
    noise = _NOISE * spread
    yield mean.copy()
    for generation in range(generations):
        traces = task.traces(seed + 1 + generation)
        _, best = best_values(task, validation.heuristics, traces)
        drawn = mean + spread * rng.standard_normal((population, len(mean)))
        drawn[0] = mean
        rules = [_rule(task.library, each, scale_ms) for each in drawn]
        losses = [task.loss(task.values(each, traces), best) for each in rules]
        order = np.argsort(losses, kind="stable")  # ties as they were drawn
        elite = drawn[order[: min(_ELITE, population)]]
        mean += _STEP * (elite.mean(axis=0) - mean)
        spread += _STEP * (elite.std(axis=0) - spread)
        # The noise falls to nothing over the generations (Szita, Lörincz).
        falling = max(0.0, 1 - 1.5 * generation / generations)
        spread = np.sqrt(spread**2 + (falling * noise) ** 2)
        yield mean.copy()


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
        deepest = float(library.mean_depth.max())
        scale = min(1.0, _LOWEST_BIAS / deepest) if deepest > 0 else 1.0
        rows[:, FEATURES.index("bias")] = -scale * library.mean_depth
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
) -> ServingRule:
    rows = flat[: -len(WAITING)].reshape(library.num_types, len(FEATURES))
    return ServingRule(
        types=library.type_keys,
        weights=tuple(tuple(round(float(w), 6) for w in row) for row in rows),
        waiting=tuple(round(float(w), 6) for w in flat[-len(WAITING) :]),
        scale_ms=rounded_ms(scale_ms),
    )
