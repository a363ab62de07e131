"""Trains serving rules by the cross-entropy method.

Rubinstein 1999; as a search for policies: Szita, Lőrincz, Learning Tetris Using the
Noisy Cross-Entropy Method, 2006. Each generation draws rules around a mean, serves the
same requests with all of them, and moves mean and spread toward those of the best
rules. Each generation has new requests. Noise, which decreases from generation to
generation, is added to the spread to keep the search from converging too early. There
are three searches, one of which starts from a rule that decides like the best
heuristic. The result is the best rule on the validation requests.
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
_NOISE = 0.25  # fraction of the initial spreads
_STEP = 0.7  # weight of the elite's mean and spread in the next generation's
# Features and weights that imitate heuristics; the agenda is imitated by biases.
# Waiting starts with a low score.
_FEATURE = {GREEDY: "ratio", LARGEST: "width", OLDEST: "age", READY: "wait"}
_FEATURE_WEIGHT = {GREEDY: 4.0, LARGEST: 1.0, OLDEST: 1.0, READY: 1.0}
_WAIT_BIAS = -20.0
_MAX_AGENDA_BIAS = (
    10.0  # the agenda's biases are at least -10, well above that of waiting
)
_LONGEST_WAVE = 8.0  # log2 of batches; used for waves without a limit
# Initial spreads; smaller for weights of the load, which is up to 8.
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
    """Trains a rule for a model, a server and some request rates.

    Args:
        library: The instances that requests are drawn from.
        config: The server.
        arrivals: One process per rate to train for.
        objective: The objective to minimize.
        generations: Number of generations of each of the three searches.
        population: Number of rules to draw per generation.
        requests: Requests per run.
        seed: Seed of rules and requests; validation requests, and those of ``edbatch
            compare``, have other seeds.
        workload: Description of the training data, for the record.
        costs: Source of the costs of batches, for the record.
        progress: Called with the number of finished generations, their total over all
            searches, and the loss of the best rule.

    Returns:
        The rule with the least loss on the validation requests, among the means of the
        generations. Ctrl-C ends the training at the end of a generation; the rule is
        then the best one so far.

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
    means = (  # each with the number of generations done; 0 for a start
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
    """Yields the initial mean, then the mean of each generation."""
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
        order = np.argsort(losses, kind="stable")  # ties in the order drawn
        elite = drawn[order[: min(_ELITE, population)]]
        mean += _STEP * (elite.mean(axis=0) - mean)
        spread += _STEP * (elite.std(axis=0) - spread)
        # The noise reaches 0 after two thirds of the generations (Szita, Lőrincz).
        falling = max(0.0, 1 - 1.5 * generation / generations)
        spread = np.sqrt(spread**2 + (falling * noise) ** 2)
        yield mean.copy()


def _starts(
    library: InstanceLibrary, heuristic: ServingHeuristic
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the initial means and spreads of the searches, as flat weights.

    One search starts near the best heuristic, and two, with a wide spread, from a
    mixture of largest and oldest, with waves of two lengths. Which search ends best
    differs by workload.
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
    """Returns the rule that decides like a heuristic, as flat weights."""
    rows = np.zeros((library.num_types, len(FEATURES)))
    if heuristic.kind == AGENDA:
        deepest = float(library.mean_depth.max())
        scale = min(1.0, _MAX_AGENDA_BIAS / deepest) if deepest > 0 else 1.0
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
