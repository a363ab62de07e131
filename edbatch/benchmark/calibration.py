"""Measures the cost of cells as a function of batch width, inside the running program.

`edbatch.policies.cost.model` reports the gain from using these costs, and their error.

*Chunks.* The time of a chunk of each type and width is the difference between a real
minibatch and the same minibatch with more such chunks inserted
(`edbatch.benchmark.replay`), enough of them to about double its time. Both run side by
side; the result is the median over rounds. The measurement therefore includes all the
work of a chunk: gathering operands from their rows, writing outputs, competing with
other types for the cache. A microbenchmark of the cell omits these. A regression on the
times of minibatches includes them but cannot separate types: many types run in one
batch per minibatch under every policy, and neighbouring widths occur together. A wider
chunk does all the work of a narrower one, so times are made non-decreasing in the
width.

*Batches.* The program stays in one loop while it runs the inserted chunks, whereas a
real minibatch switches between loops. The switching time is the measured time of real
minibatches under several policies, minus the fixed time of a call and the sum of their
chunks' times. `switch_us` is its least-squares estimate per batch.

The costs are validated on held-out minibatches, under all policies.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

import edbatch as eb
from edbatch.benchmark.chunk_times import (
    ChunkTimes,
    Progress,
    extended,
    time_chunks,
)
from edbatch.benchmark.replay import Replay
from edbatch.benchmark.stopwatch import Stopwatch
from edbatch.compilation.settings import fine_only
from edbatch.graph import DataflowGraph
from edbatch.plan import Plan
from edbatch.policies import AgendaRemaining, Depth, Greedy
from edbatch.policies.cost.model import CostModel, CostRecord
from edbatch.schedule import Policy, Schedule

_DIGITS = 4  # decimal places of microseconds; further digits are noise


@dataclass(frozen=True)
class Prediction:
    """Predicted and measured times of one policy on some minibatches.

    Attributes:
        policy: The policy.
        batches: Mean number of batches per minibatch.
        predicted_ms: Mean predicted time of a minibatch.
        measured_ms: Mean measured time of a minibatch.
        error_percent: Median absolute error of the predictions, relative to the
            measured times, in percent.

    Example:
        >>> found = Prediction("greedy", 30.0, 9.0, 10.0, error_percent=10.0)
        >>> found.policy, found.measured_ms
        ('greedy', 10.0)
    """

    policy: str
    batches: float
    predicted_ms: float
    measured_ms: float
    error_percent: float


@dataclass(frozen=True)
class Calibration:
    """Measured costs and their accuracy.

    Attributes:
        costs: The costs.
        predictions: One entry per policy, on minibatches not used for fitting.

    Example:
        >>> from edbatch.policies import CostModel
        >>> from edbatch.schedule.examples import chain
        >>> keys = chain("a").type_keys
        >>> costs = CostModel(keys, (2, 4), ((300.0, 400.0),), (2,), (1.0,))
        >>> Calibration(costs, predictions=()).costs is costs
        True
    """

    costs: CostModel
    predictions: tuple[Prediction, ...]


@dataclass(frozen=True, eq=False)
class Timed:
    """Times of a minibatch under one policy.

    Attributes:
        schedule: The policy's schedule.
        idle: Time of its plan with zero steps, relative to the stopwatch's standard.
        full: Time of its plan with all steps, relative to the stopwatch's standard.
    """

    schedule: Schedule
    idle: float
    full: float


@fine_only
def calibrate(
    model: Callable[[Any, Any], Any],
    params: Any,
    minibatches: Sequence[Sequence[Any]],
    held_out: Sequence[Sequence[Any]],
    *,
    rounds: int = 7,
    workload: str = "",
    hidden: int | None = None,
    policies: Sequence[Policy] = (Greedy(), AgendaRemaining(), Depth()),
    progress: Progress = lambda done, total, what: None,
) -> Calibration:
    """Measures a model's costs.

    Args:
        model: ``model(params, instance)``.
        params: Its parameters, not all zero.
        minibatches: Instances of each minibatch to measure on, one or more.
        held_out: Instances of each minibatch to validate on, one or more. The costs
            include their types, but are not fitted to their times.
        rounds: Number of repetitions of every timing.
        workload: Description of the workload, for the record.
        hidden: Length of the model's states, for the record.
        policies: The policies that schedule the minibatches.
        progress: Called as ``progress(done, total, what)``.

    Returns:
        The costs, and their predictions for the held-out minibatches.

    Raises:
        EdbatchError: The model cannot be recorded or planned.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> from edbatch.models import get_workload
        >>> workload = get_workload("tree-lstm", vocabulary_size=10)
        >>> params = workload.init_params(jax.random.key(0), 4)
        >>> trees = workload.sample(np.random.default_rng(0), 4)
        >>> seen, held_out = [trees[:2]], [trees[2:]]
        >>> found = calibrate(workload.model, params, seen, held_out, rounds=1)
        >>> [each.policy for each in found.predictions]
        ['greedy', 'agenda-remaining', 'depth']
    """
    batched = _gathering(model, params)
    recorded = [
        [batched.record(each) for each in some] for some in (*minibatches, *held_out)
    ]
    everything = [each for some in recorded for each in some]
    for some in recorded[: len(minibatches)]:
        for policy in policies:
            _plan(batched, policy, some)  # lets the buckets settle
    replay = Replay(_plan(batched, Greedy(), with_all_types(recorded[0], everything)))
    standard = jax.device_put(replay.add(replay.loops[0], 0))
    watch = Stopwatch(partial(batched.apply, params), standard)
    shares = time_chunks(replay, watch, rounds, progress)
    timed = []
    for done, some in enumerate(recorded):
        progress(done, len(recorded), "Timing minibatches")
        timed.append([_time(batched, each, some, watch, rounds) for each in policies])
    progress(len(recorded), len(recorded), "Timing minibatches")
    seen = [each for some in timed[: len(minibatches)] for each in some]
    costs = _chunk_costs(batched, shares, recorded[: len(minibatches)], watch)
    costs = fit_rest(costs, seen, watch.standard_us)
    predictions = tuple(
        predict(costs, unseen, watch.standard_us)
        for unseen in zip(*timed[len(minibatches) :], strict=True)
    )
    error = float(np.mean([each.error_percent for each in predictions]))
    record = CostRecord(
        workload=workload,
        device=jax.devices()[0].device_kind,
        jax=jax.__version__,
        hidden=hidden,
        batch_size=len(minibatches[0]),
        minibatches=len(minibatches),
        rounds=rounds,
        error_percent=round(error, 2),
    )
    return Calibration(replace(costs, record=record), predictions)


def _gathering(model: Callable[[Any, Any], Any], params: Any) -> eb.Batched:
    """Batches a model for replays."""
    # A replay adds chunks that gather their operands, so the minibatch's own chunks
    # gather, too. Hoisting and sharing are off because policies choose between whole
    # cells.
    compiler = eb.Compiler(slices="never", hoisting="never", sharing="never")
    sizes = eb.Sizes(max_loops=None)  # chunks of all widths are timed, for every type
    return eb.batch(model, params=params, cache_bytes=0, compiler=compiler, sizes=sizes)


def _plan(batched: eb.Batched, policy: Policy, some: Sequence[DataflowGraph]) -> Plan:
    batched.policy = policy
    return batched.plan(some)


def with_all_types(
    minibatch: Sequence[DataflowGraph], others: Sequence[DataflowGraph]
) -> list[DataflowGraph]:
    """Adds instances to a minibatch until it has nodes of every type.

    Returns:
        The minibatch, followed by those of `others` that contribute a new type.
    """
    found = list(minibatch)
    present = {int(t) for each in found for t in np.unique(each.node_type)}
    for each in others:
        types = set(np.unique(each.node_type).tolist())
        if not types <= present:
            found.append(each)
            present |= types
    return found


def _time(
    batched: eb.Batched,
    policy: Policy,
    some: Sequence[DataflowGraph],
    watch: Stopwatch,
    rounds: int,
) -> Timed:
    plan = _plan(batched, policy, some)
    idle = replace(plan, num_steps=np.int32(0))
    watch.warm_up(plan)
    ratios = np.median([watch.ratio(idle, plan) for _ in range(rounds)], axis=0)
    schedule = policy.schedule(batched.graph(some).structure)
    return Timed(schedule, *ratios.tolist())


def _chunk_costs(
    batched: eb.Batched,
    shares: ChunkTimes,
    recorded: Sequence[Sequence[DataflowGraph]],
    watch: Stopwatch,
) -> CostModel:
    """Returns a cost model with the costs of chunks only."""
    types, widths = batched.types.types, batched.sizes.widths
    batches = np.zeros(len(types))
    for some in recorded:
        schedule = Greedy().schedule(batched.graph(some).structure)
        batches += np.bincount(schedule.batch_type, minlength=len(types))
    times = [
        watch.standard_us * np.array(extended(shares[each.id], widths))
        for each in types
    ]
    return CostModel(
        types=tuple(each.key for each in types),
        widths=widths,
        chunk_us=tuple(tuple(each.round(_DIGITS).tolist()) for each in times),
        measured_widths=tuple(len(shares[each.id]) for each in types),
        batches=tuple((batches / len(recorded)).tolist()),
    )


def fit_rest(costs: CostModel, timed: Sequence[Timed], standard_us: float) -> CostModel:
    """Fits the costs of batches and calls, in addition to those of chunks.

    Args:
        costs: The costs of chunks, for the model's types in their order.
        timed: Timed minibatches.
        standard_us: Time of the stopwatch's standard, in microseconds.

    Returns:
        The costs with `switch_us`, the least-squares estimate clipped at 0, and
        `call_us`, the median time of a plan with zero steps.
    """
    chunks = replace(costs, switch_us=0.0)
    batches = np.array([each.schedule.num_batches for each in timed])
    rest = [
        standard_us * (each.full - each.idle)
        - chunks.schedule_us(each.schedule, costs.types)
        for each in timed
    ]
    switch_us = max(0.0, float(rest @ batches / (batches @ batches)))
    call_us = standard_us * float(np.median([each.idle for each in timed]))
    return replace(
        costs, switch_us=round(switch_us, _DIGITS), call_us=round(call_us, _DIGITS)
    )


def predict(costs: CostModel, timed: Sequence[Timed], standard_us: float) -> Prediction:
    """Compares predicted with measured times.

    Args:
        costs: The costs, for the model's types in their order.
        timed: Timed minibatches under one policy.
        standard_us: Time of the stopwatch's standard, in microseconds.
    """
    predicted_us = np.array(
        [
            costs.call_us + costs.schedule_us(each.schedule, costs.types)
            for each in timed
        ]
    )
    measured_us = standard_us * np.array([each.full for each in timed])
    return Prediction(
        policy=timed[0].schedule.policy,
        batches=float(np.mean([each.schedule.num_batches for each in timed])),
        predicted_ms=float(predicted_us.mean()) / 1e3,
        measured_ms=float(measured_us.mean()) / 1e3,
        error_percent=100 * float(np.median(np.abs(predicted_us / measured_us - 1))),
    )
