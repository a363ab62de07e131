"""Measures the time of each batch of a minibatch inside the compiled program.

A plan is data, so a batch can run alone: a stream of its chunks' records, repeated so
often that it takes about a millisecond, is run by the program of the whole minibatch,
on arenas that contain all its values. The time of a stream without chunks is
subtracted. So operands and outputs are in the same rows as in a call. But from one
repetition to the next they stay in the processor's caches, which makes batches faster;
and each repetition is a separate step, a pass over all loops, which makes narrow
batches slower. The sum over batches was 1.17 times the time of a call for trees and
1.18 times for lattices, at hidden 128 and 32 instances, on two cores that were also in
use by others.
"""

import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import numpy as np

from edbatch.compilation.record import Compilation
from edbatch.compilation.tiered_function import TieredFunction
from edbatch.errors import PlanError
from edbatch.executor.arenas import Arenas, new_arenas
from edbatch.executor.choice import executor_of
from edbatch.explain.build import batch_of_chunk
from edbatch.graph.parameter_structure import check_params
from edbatch.plan.keys import give_keys, keyed
from edbatch.plan.plan import Plan
from edbatch.planning import LaidOut
from edbatch.stream.format import find_chunks, record_formats
from edbatch.stream.stream import Stream

_LEAST_MS = 1.0  # minimum time that a repeated batch should take
_FIRST = 8  # repetitions to estimate the time of one
_MOST = 1024
_ROUNDS = 5


def measure_us(
    laid_out: LaidOut, plan: Plan, params: Any, rng: Any, name: str
) -> tuple[list[float], tuple[Compilation, ...]]:
    """Measures the time of each batch.

    Args:
        laid_out: The minibatch.
        plan: Its plan.
        params: The model's parameters, arrays.
        rng: The key for cells that draw random numbers, if there are any.
        name: The model's name, for the report of compilations.

    Returns:
        Microseconds per batch, 0 or more, in the order in which they run: the shortest
        of several rounds; and the records of the compilations for measuring.

    Raises:
        PlanError: The device runs programs of one loop around a switch, whose chunks
            cannot be repeated; or a cell needs a key and there is none.
    """
    if plan.shape.program.options.target.control == "switch":
        raise PlanError(
            "batches cannot be measured on this device, where a program is one loop"
            " around a switch with the number of chunks compiled in; look at a profile"
            " of jax.profiler, where operations have the names of cells"
        )
    run = _Program(plan, params, rng, name)
    batches = _batch_records(laid_out, plan)
    run.time_ms(_whole(plan))  # fills the arenas
    if not batches:
        return [], run.compilations()
    empty = _repeated(plan, batches[0], 0)
    idle_ms = min(run.time_ms(empty) for _ in range(_ROUNDS))
    counts = [_find_count(run, plan, each, idle_ms) for each in batches]
    times_ms = np.empty((_ROUNDS, len(batches)))
    for each in times_ms:
        for k, (batch, count) in enumerate(zip(batches, counts, strict=True)):
            each[k] = run.time_ms(_repeated(plan, batch, count))
        idle_ms = min(idle_ms, run.time_ms(empty))
    # Other load on the machine makes times longer, never shorter.
    each_ms = (times_ms.min(axis=0) - idle_ms) / np.array(counts)
    found: list[float] = (1e3 * np.maximum(0, each_ms)).tolist()
    return found, run.compilations()


class _Program:
    """The program of a plan, with its own arenas.

    Args:
        plan: The plan.
        params: As for `measure_us`.
        rng: As for `measure_us`.
        name: As for `measure_us`.
    """

    def __init__(self, plan: Plan, params: Any, rng: Any, name: str) -> None:
        plan, key = keyed(plan, rng)
        program, pools = give_keys(plan.shape.program, plan.pools, key)
        check_params(params, program.types.params_spec)
        self._program = program.with_options(tier="fine")
        self._pools = jax.device_put(pools)
        self._packed = jax.jit(self._program.pack)(params)
        self._arenas = jax.jit(lambda: new_arenas(self._program))()
        self._run = TieredFunction(
            self._step,
            options={"donate_argnums": (0,)},
            tiers="fine",
            name=f"{name} (measured)",
        )

    def compilations(self) -> tuple[Compilation, ...]:
        """Returns the records of the compilations."""
        return self._run.compilations()

    def _step(self, arenas: Arenas, packed: Any, pools: Any, stream: Stream) -> Arenas:
        executor = executor_of(self._program.options.target)
        return executor.run(self._program, packed, arenas, pools, stream)

    def time_ms(self, stream: Stream) -> float:
        """Runs a stream, and returns how long it took; the first call compiles."""
        there = jax.block_until_ready(jax.device_put(stream))
        start = time.perf_counter()
        arenas = self._run(self._arenas, self._packed, self._pools, there)
        self._arenas = jax.block_until_ready(arenas)
        return 1e3 * (time.perf_counter() - start)


def _find_count(
    run: _Program, plan: Plan, batch: "_BatchRecords", idle_ms: float
) -> int:
    """Finds how often to repeat a batch."""
    most = max(1, min(_MOST, _room(plan) // max(1, len(batch.records))))
    first = min(_FIRST, most)
    stream = _repeated(plan, batch, first)
    run.time_ms(stream)
    one_ms = max(1e-4, (run.time_ms(stream) - idle_ms) / first)
    return int(np.clip(_LEAST_MS / one_ms, 1, most))


@dataclass(frozen=True, eq=False)
class _BatchRecords:
    """The chunks of one batch.

    Attributes:
        records: Their records.
        trips: Iterations of each loop.
    """

    records: np.ndarray
    trips: np.ndarray  # [P] int32


def _batch_records(laid_out: LaidOut, plan: Plan) -> list[_BatchRecords]:
    """Cuts the stream of a plan into batches."""
    program = plan.shape.program
    formats = record_formats(program.types.types, program.loops)
    chunks = find_chunks(formats, plan.trips[: int(plan.num_steps)])
    counts = np.bincount(batch_of_chunk(laid_out))  # chunks of a batch are consecutive
    found = []
    for first, last in pairwise(np.concatenate([[0], np.cumsum(counts)]).tolist()):
        trips = np.bincount(chunks.loop[first:last], minlength=len(formats))
        records = plan.stream[chunks.start[first] : chunks.start[last]]
        found.append(_BatchRecords(records, trips.astype(np.int32)))
    return found


def _room(plan: Plan) -> int:
    """Returns the number of integers in the records of a measured stream."""
    return max(len(plan.stream), 1 << 17)


def _repeated(plan: Plan, batch: _BatchRecords, count: int) -> Stream:
    """Returns a stream that runs a batch several times, in one step each."""
    trips = np.zeros((count, len(batch.trips)), np.int32) + batch.trips
    return _padded(plan, np.tile(batch.records, count), trips)


def _whole(plan: Plan) -> Stream:
    """Returns the stream of the minibatch, padded like the streams of batches."""
    return _padded(plan, plan.stream, plan.trips[: int(plan.num_steps)])


def _padded(plan: Plan, own: np.ndarray, steps: np.ndarray) -> Stream:
    records = np.zeros(_room(plan), np.int32)
    records[: len(own)] = own
    trips = np.zeros((max(_MOST, len(plan.trips)), steps.shape[1]), np.int32)
    trips[: len(steps)] = steps
    return Stream(records, trips, np.int32(len(steps)))
