"""Trains serving machines: episodes of Q-learning, then a choice among tables.

Each encoding has its own table. In each round, the heuristic that is best over all
rates serves requests, with random decisions and with decisions that the table prefers.
After each round, machines are made from the table, which follow it at different levels
of certainty. The result is the best of all machines on the validation requests, or a
machine without states if none is better than the heuristic.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from edbatch.arguments import check_number
from edbatch.errors import PolicyError
from edbatch.policies.fsm.random_stream import new_stream
from edbatch.policies.fsm.training_record import check_workload
from edbatch.policies.serving import q_learning
from edbatch.policies.serving.deciding import UNLIMITED
from edbatch.policies.serving.encoding import (
    ENCODINGS,
    MOST_TYPES,
    MachineState,
    unpack,
)
from edbatch.policies.serving.evaluation import (
    Progress,
    Task,
    Validation,
    best_of,
    checked_rates,
    rounded_ms,
)
from edbatch.policies.serving.heuristics import ServingHeuristic
from edbatch.policies.serving.machine import HEURISTICS, ServingMachine
from edbatch.policies.serving.objective import Objective
from edbatch.policies.serving.q_learning import Learning, QTable
from edbatch.policies.serving.trace import Trace
from edbatch.schedule.interrupt import deferred_interrupt, keyboard_interrupts
from edbatch.schedule.serving.arrivals import Arrivals
from edbatch.schedule.serving.library import InstanceLibrary
from edbatch.schedule.serving.simulation import ServingConfig, Simulation, new_view

_ROUNDS = 5  # after each, machines are made and validated
_STEPS = 2**17  # maximum number of decisions of an episode
_EPSILON = 0.05
_TRACE = 0.95
_RATE = 0.002
_HORIZON = 2.0  # in units of time
_TRUSTED = 20
# Levels of certainty: `trusted` and `errors` of `Learning`.
_CERTAINTY_LEVELS = ((20, 0.0), (20, 1.0), (20, 2.0), (100, 1.0), (100, 3.0))
_GIVE_UP = 2.0  # clock time at which an episode stops, relative to the last arrival
_OBJECTIVES = {
    "mean": q_learning.MEAN,
    "p99": q_learning.P99,
    "deadline": q_learning.DEADLINE,
}


def train_serving_machine(
    library: InstanceLibrary,
    config: ServingConfig,
    arrivals: Sequence[Arrivals],
    objective: Objective,
    *,
    episodes: int = 400,
    requests: int = 1000,
    seed: int = 0,
    workload: str = "",
    costs: str = "",
    progress: Progress | None = None,
) -> ServingMachine:
    """Trains a state machine for a model, a server and some request rates.

    Args:
        library: The instances that requests are drawn from.
        config: The server.
        arrivals: One process per rate to train for; each episode uses one of them.
        objective: The objective to minimize.
        episodes: Episodes per encoding.
        requests: Requests per episode.
        seed: Seed of decisions and requests; validation and ``edbatch compare`` have
            other seeds.
        workload: Description of the training data, for the record.
        costs: Source of the costs of batches, for the record.
        progress: Called with the number of finished episodes, their total over all
            encodings, and the loss of the best machine.

    Returns:
        The machine with the least loss on the validation requests. Ctrl-C ends the
        training at the end of an episode; the machine is then the best one so far.

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
        >>> machine = train_serving_machine(
        ...     library,
        ...     config,
        ...     [Arrivals(rate=100)],
        ...     Objective("mean"),
        ...     episodes=4,
        ...     requests=20,
        ... )
        >>> machine.training.method
        'q-learning'
    """
    rates = checked_rates(arrivals)
    check_number(PolicyError, "episodes", episodes, 1, whole=True)
    check_number(PolicyError, "requests", requests, 1, whole=True)
    check_number(PolicyError, "seed", seed, 0, whole=True)
    check_workload(workload)
    task = Task(library, config, rates, objective, requests)
    validation = Validation(task)
    heuristic = _start(validation)
    found = _machine(task, heuristic, ENCODINGS[0], validation.scale_ms, {})
    least = validation.loss(found)
    lessons = [
        _learning_settings(validation, heuristic, kind)
        for kind, most in enumerate(MOST_TYPES)
        if library.num_types <= most
    ]
    interrupted = False
    try:
        with deferred_interrupt() as check_interrupt:
            tables = (
                (k * episodes + done, lesson, table)
                for k, lesson in enumerate(lessons)
                for done, table in _rounds(
                    task, lesson, episodes, seed, check_interrupt
                )
            )
            for done, lesson, table in tables:
                for machine in _machines(validation, heuristic, table, lesson):
                    loss = validation.loss(machine)
                    if loss < least:
                        found, least = machine, loss
                if progress is not None:
                    progress(done, len(lessons) * episodes, least)
    except KeyboardInterrupt:
        interrupted = True
    record = validation.record(
        found, "q-learning", workload, costs, seed, episodes, interrupted
    )
    return replace(found, training=record)


def _start(validation: Validation) -> ServingHeuristic:
    """Returns the best heuristic, over all rates, of those with continuous batching."""
    joining = [each for each in validation.heuristics if each.admission.is_continuous]
    if not joining:
        joining = [each for each in validation.all_heuristics if each.wave > 1]
        joining = [each for each in joining if each.admission.is_continuous]
    return best_of(validation.task, joining, validation.traces)


def _learning_settings(
    validation: Validation, heuristic: ServingHeuristic, encoding: int
) -> Learning:
    """Returns the settings of learning with an encoding."""
    objective, scale_ms = validation.task.objective, validation.scale_ms
    depths = np.array([validation.task.library.mean_depth])
    return Learning(
        encoding=encoding,
        scale_ms=rounded_ms(scale_ms),
        heuristic=heuristic.kind,
        depths=depths,
        wave=heuristic.wave,
        objective=_OBJECTIVES[objective.kind],
        cost_ms=objective.deadline_ms or scale_ms,
        horizon_ms=_HORIZON * (objective.deadline_ms or scale_ms),
        epsilon=_EPSILON,
        trace=_TRACE,
        rate=_RATE,
        trusted=_TRUSTED,
        errors=1.0,
        give_up_ms=np.inf,
        max_rows=UNLIMITED if heuristic.max_rows is None else heuristic.max_rows,
    )


def _rounds(
    task: Task,
    lesson: Learning,
    episodes: int,
    seed: int,
    check_interrupt: Callable[[], None],
) -> Iterator[tuple[int, QTable]]:
    """Plays and learns; yields the episodes so far and the table after each round."""
    table = q_learning.new_table(task.library.num_types)
    episode = q_learning.new_episode(_STEPS)
    stream = new_stream(seed + 7919 * lesson.encoding)
    rounds = min(_ROUNDS, episodes)
    ends = [(k + 1) * episodes // rounds for k in range(rounds)]
    traces: list[Trace] = []
    for number in range(episodes):
        if not traces:
            traces = task.traces(seed + 1 + number)
        trace = traces.pop()
        arguments = task.library, task.config, trace.instance, trace.arrival_ms
        simulation = Simulation(
            *arguments, task.objective.deadline_ms, track_heads=True
        )
        patient = lesson._replace(give_up_ms=_GIVE_UP * float(trace.arrival_ms[-1]))
        view = new_view(task.library.num_types)
        with keyboard_interrupts():
            steps = q_learning.play(
                *simulation.compiled, view, table, patient, episode, stream
            )
            q_learning.learn(table, episode, steps, patient)
        if number + 1 in ends:
            yield number + 1, table
        check_interrupt()


def _machines(
    validation: Validation, heuristic: ServingHeuristic, table: QTable, lesson: Learning
) -> Iterator[ServingMachine]:
    """Yields machines that follow a table at different levels of certainty."""
    encoding = ENCODINGS[lesson.encoding]
    for trusted, errors in _CERTAINTY_LEVELS:
        states = states_of(table, lesson.encoding, trusted, errors)
        yield _machine(validation.task, heuristic, encoding, lesson.scale_ms, states)


def states_of(
    table: QTable, encoding: int, trusted: int, errors: float
) -> dict[MachineState, int]:
    """Returns the states in which a table decides differently from its heuristic.

    Args:
        table: The table.
        encoding: Encoding of its states.
        trusted: See `Learning`.
        errors: See `Learning`.

    Returns:
        Decisions by state.
    """
    num_types = table.value.shape[1] - 2
    found = {}
    for row in np.flatnonzero(table.code >= 0).tolist():
        best = q_learning.best_action(table, row, trusted, errors)
        if best != table.usual[row]:
            state = unpack(ENCODINGS[encoding], num_types, int(table.code[row]))
            found[state] = best if best < num_types else num_types - 1 - best
    return found


def _machine(
    task: Task,
    heuristic: ServingHeuristic,
    encoding: str,
    scale_ms: float,
    states: dict[MachineState, int],
) -> ServingMachine:
    names = {kind: name for name, kind in HEURISTICS.items()}
    return ServingMachine(
        types=task.library.type_keys,
        encoding=encoding,
        states=states,
        heuristic=names[heuristic.kind],
        wave=min(heuristic.wave, UNLIMITED),
        depths=tuple(task.library.mean_depth.tolist()),
        scale_ms=rounded_ms(scale_ms),
        max_rows=heuristic.max_rows,
    )
