"""Runs the waves of instances that ask for values.

Instances in flight share one tape. What they have recorded is pending until it runs: a
small dataflow graph, some of whose operands are values of earlier waves that stay on
the device. A wave runs what was asked for and all that it depends on; the rest waits
(`edbatch.waves.pending`). The policy schedules it, one program runs it, and only what
was asked for comes back to the host.
"""

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from edbatch.cell.jaxpr import is_tracing
from edbatch.compilation.tiered_function import TieredFunction
from edbatch.errors import PolicyError
from edbatch.graph.handle import Handle
from edbatch.graph.node_keys import typed_key
from edbatch.graph.tape import Tape, TapeMark
from edbatch.model_state import ModelState
from edbatch.options import Options
from edbatch.schedule.schedule import Schedule
from edbatch.stream.buckets import Needs
from edbatch.stream.wave_sizes import WaveSizes
from edbatch.waves.call_stacks import CallStack
from edbatch.waves.encoding import WaveChunks, cut_batches, rows_needed, write_wave
from edbatch.waves.instance_run import InstanceRun
from edbatch.waves.long_run import LONG, LongRun, free_unreachable, watch
from edbatch.waves.pending import PendingNodes
from edbatch.waves.programs import (
    WaveFunctions,
    WaveProgram,
    as_arrays,
    largest_batches,
    make_program,
    pad_pools,
)
from edbatch.waves.resident_values import ResidentValues, Rows, few_rows
from edbatch.waves.value_rows import ValueRows
from edbatch.waves.wave import Wave
from edbatch.waves.wave_nodes import RecordedNodes

_MOST_WAITING = 4096  # nodes that nobody has asked for


class Asked(NamedTuple):
    """Values that are being computed, for the instances that wait for them.

    Attributes:
        values: By array kind, ``[n, ...]``; on the device.
        places: Of each instance, the array kind and the row of each value.
    """

    values: dict[int, Array]
    places: list[tuple[InstanceRun, list[tuple[int, int]]]]


@dataclass
class WaveReport:
    """What waves were made of.

    Attributes:
        waves: How many there were.
        recorded: Nodes that were recorded.
        nodes: Nodes that ran; others were not needed.
        batches: Batches of their schedules.
        chunks: Chunks that ran.
        rows: Rows that they computed, padding included.
        moves: How often rows were moved to make room.
        host_ms: Time to schedule and encode them, in milliseconds.
        run_ms: Time in calls of the program, which CPUs run in part at once, and until
            values had come back.
        run_cpu_ms: Of this, time in which the thread ran itself, and did not wait.

    Example:
        >>> WaveReport(waves=3, nodes=4).copy().waves
        3
    """

    waves: int = 0
    recorded: int = 0
    nodes: int = 0
    batches: int = 0
    chunks: int = 0
    rows: int = 0
    moves: int = 0
    host_ms: float = 0.0
    run_ms: float = 0.0
    run_cpu_ms: float = 0.0

    def copy(self) -> "WaveReport":
        """Returns the counts as they are now."""
        return replace(self)


class WaveRunner:
    """Runs instances of one model in waves, on one device and in one thread.

    Args:
        state: The state of the model.
        sizes: The sizes of its programs.
        functions: Its compiled functions.
        options: What scheduling and compilation go by.
        params: The parameters, arrays of JAX or NumPy.
        rng: The key for cells that draw random numbers, or None.
        keep_paths: Whether to keep what was recorded.
        keep_values: Whether instances keep what they were handed.

    Attributes:
        tape: The tape, with what was recorded since the last wave.
        pending: What was recorded before and has not run.
        counts: What was run so far.
        recorded: All that was taken off the tape, if paths are kept.
    """

    def __init__(
        self,
        state: ModelState,
        sizes: WaveSizes,
        functions: WaveFunctions,
        options: Options,
        params: Any,
        rng: Any = None,
        *,
        keep_paths: bool = False,
        keep_values: bool = False,
    ) -> None:
        self.tape = Tape(state.types)
        self.pending = PendingNodes(state.types)
        self.counts = WaveReport()
        self.recorded: list[RecordedNodes] | None = [] if keep_paths else None
        self._state, self._sizes, self._functions = state, sizes, functions
        self._options = options
        self._params = params
        self._key = None if rng is None else typed_key(rng)
        self._values = ResidentValues(state.types, functions.move, functions.shift)
        self._program: WaveProgram | None = None
        self._wave: Wave | None = None  # the last one
        self._most_chunks = 0  # of any wave
        self._ready: Callable[..., Any] | None = None  # a compiled program
        self._ready_for: tuple[Any, ...] = ()
        self._parts: list[tuple[int, int]] = []  # on the tape: instance, nodes
        self._started = self._takes = 0
        self._stacks: list[CallStack] = []
        self._traced = is_tracing()
        self._keep_values = keep_values
        self._ended: list[tuple[InstanceRun, list[int]]] = []
        self._held: list[tuple[InstanceRun, list[int]]] = []  # until results are there
        self._long: list[LongRun] = []  # those that have not been freed

    def start(self, index: int, call: Callable[[], Any]) -> InstanceRun:
        """Runs an instance until it asks for values or ends.

        Args:
            index: Its number, from which the keys of its cells follow.
            call: Runs the model on it, with handles.

        Returns:
            The instance.

        Raises:
            Exception: What the model raised.
        """
        run = self.new_run(index)
        self.start_run(run, call)
        return run

    def new_run(self, index: int) -> InstanceRun:
        """Returns an instance that does not run yet; see `start`."""
        run = InstanceRun(self.tape, self._state.calls, index, self._stacks)
        run.number = self._started
        self._started += 1
        if self._keep_values:
            run.values = []
        return run

    def start_run(self, run: InstanceRun, call: Callable[[], Any]) -> None:
        """Runs a new instance until it asks for values or ends; see `start`."""
        tape = self.tape
        node, value = len(tape.node_type), tape.num_values
        try:
            run.start(call, traced=self._traced)
        finally:
            self._note_part(run, node, value)

    def cut_back(self, run: InstanceRun | None, mark: TapeMark) -> None:
        """Removes what an instance that failed has recorded since a mark.

        Args:
            run: The instance, the last one that ran.
            mark: A mark of the tape, before it ran.
        """
        if len(self.tape.node_type) > mark.nodes:
            assert run is not None, "an instance has recorded"
            run.parts.pop()
            self._parts.pop()
        self._cut_tape(run, mark)

    def _cut_tape(self, run: InstanceRun | None, mark: TapeMark) -> None:
        self.tape.cut_back(mark)
        if isinstance(run, LongRun):
            run.forget_from(mark.num_values)

    def resume(self, run: InstanceRun, answers: list[np.ndarray]) -> None:
        """Runs a suspended instance until it asks again or ends.

        Args:
            run: The instance.
            answers: The values that it asked for.

        Raises:
            Exception: What the model raised.
        """
        tape = self.tape
        node, value = len(tape.node_type), tape.num_values
        try:
            run.resume(answers)
        finally:
            self._note_part(run, node, value)

    def _note_part(self, run: InstanceRun, node: int, value: int) -> None:
        """Notes what an instance has recorded on the tape, even if it has failed."""
        last = len(self.tape.node_type)
        if last > node:
            part = (self._takes, node, last, value, self.tape.num_values)
            run.parts.append(part)
            self._parts.append((run.number, last - node))
            if len(run.parts) >= LONG:
                self._note_long(run)

    def _note_long(self, run: InstanceRun) -> None:
        """Watches the handles of an instance that has run in many parts."""
        if not isinstance(run, LongRun):
            self._long.append(watch(run))
            return
        if self.recorded is None and len(run.parts) > LONG + 1:
            del run.parts[-2]  # its values are those of the handles
        run.look_if_many()

    def close(self, run: InstanceRun) -> None:
        """Ends an instance where it is suspended; what it does then is not recorded.

        Args:
            run: The instance.

        Raises:
            Exception: What its ``finally`` clauses raised.
        """
        mark = self.tape.mark()
        try:
            run.close()
        finally:
            self._cut_tape(run, mark)

    def release(self, run: InstanceRun, kept: Iterable[int] = ()) -> None:
        """Frees the rows of an instance that has ended, before the next wave.

        Args:
            run: The instance.
            kept: Numbers of the values that are read later on. As long as one of them
                has not been computed, all of the instance stays.
        """
        self._ended.append((run, list(kept)))

    def take(self) -> None:
        """Takes what was recorded off the tape; it is pending then, in front."""
        tape, rows = self.tape, self._values.rows
        if not tape.node_type:
            return
        new = self.pending.add(tape, self._parts)
        rows.append(tape.num_values - rows.end)
        self.counts.recorded += len(tape.node_type)
        tape.clear()
        self._parts.clear()
        self._takes += 1
        if self.recorded is not None:
            self.recorded.append(new)

    def launch(
        self,
        waiting: Sequence[InstanceRun],
        *,
        results: Sequence[int] = (),
        schedule: Schedule | None = None,
    ) -> Asked:
        """Runs a wave, on the device and perhaps beside what the host does next.

        Args:
            waiting: Instances whose values are asked for.
            results: Numbers of other values that are to be computed.
            schedule: What runs, of `pending`: a schedule of some nodes, which have all
                that they depend on in it or have it already; `take` must come before.
                Default: what was asked for, scheduled by the policy, and what else
                can run with it.

        Returns:
            The values that are being computed; see `answers`. With a schedule, those of
            instances all of whose values are there then.

        Raises:
            EdbatchError: The policy belongs to another model; or a cell needs a key and
                there is none.
        """
        start, run_ms = time.perf_counter(), self.counts.run_ms
        if not self.counts.waves:
            self._params = as_arrays(self._params)
        if schedule is None:
            self.take()
        else:
            waiting = self._served(waiting, schedule)
        self._free_ended()
        asked, places = _find_asked(waiting)
        if schedule is None:
            schedule = self._schedule(asked, results)
        else:
            self._ended += self._held
            self._held = []
        program, chunks = self._fit(schedule, asked)
        integers = self._encode(program, chunks, schedule)
        rows = {kind: self._values.rows.of(each) for kind, each in asked.items()}
        program.finish_wave(integers, chunks.steps, rows)
        pools = pad_pools(self._state, self._sizes, program, self.pending.pools)
        self._most_chunks = max(self._most_chunks, len(chunks.loop))
        shape = program.shape_of(len(chunks.loop))
        wave = self._wave = Wave(shape, integers, pools)
        values = self._run(program, wave)
        self.pending.remove(schedule.order, self._values.rows)
        self._count(schedule, chunks)
        self.counts.host_ms += 1e3 * (time.perf_counter() - start)
        self.counts.host_ms -= self.counts.run_ms - run_ms
        return Asked({kind: values[kind] for kind in asked}, places)

    def tidy(self) -> None:
        """Forgets what instances that have ended have left behind."""
        self.take()
        self._free_ended()
        self.pending.merge(self._values.rows)

    def compute(self, results: Sequence[int]) -> None:
        """Computes values that nobody has asked for, unless they are there.

        Args:
            results: Numbers of values.
        """
        self.take()
        if (self._values.rows.of(results) < 0).any():
            self.launch([], results=results)

    def _schedule(
        self, asked: dict[int, list[int]], results: Sequence[int]
    ) -> Schedule:
        """Schedules what is needed; where too much waits, all of it."""
        pending, policy = self.pending, self._options.policy
        values = [value for each in asked.values() for value in each]
        wanted = np.array([*values, *results], np.int64)
        needed = pending.needed_for(wanted, self._values.rows)
        all_run = len(pending) - len(needed) > _MOST_WAITING
        if all_run:
            pending.merge(self._values.rows)
            needed = pending.all()
        if results or all_run:
            self._ended += self._held  # their results are computed now
            self._held = []
        return pending.schedule(needed, policy)

    def _served(
        self, waiting: Sequence[InstanceRun], schedule: Schedule
    ) -> list[InstanceRun]:
        """Returns the instances whose values are all there after a wave."""
        asked = [[each._value for each in run.asked] for run in waiting]
        values = np.array([value for own in asked for value in own], np.int64)
        there = self._values.rows.of(values) >= 0
        there[~there] = self.pending.computes(values[~there], schedule.order)
        run_of = np.repeat(np.arange(len(asked)), [len(own) for own in asked])
        served = np.ones(len(asked), np.bool_)
        served[run_of[~there]] = False
        return [
            run for run, is_served in zip(waiting, served, strict=True) if is_served
        ]

    def _run(self, program: WaveProgram, wave: Wave) -> dict[int, Array]:
        """Runs a wave by its compiled program, which is looked up when it changes."""
        begun = time.perf_counter(), time.thread_time()
        arguments = (program.packed, self._values.arenas, wave, self._key)
        shape = (wave.shape, *map(len, wave.pools.values()))
        run: Callable[..., Any] = self._functions.run
        if shape == self._ready_for:
            assert self._ready is not None, "it was found"
            run = self._ready
        elif (found := self._functions.run.ready(*arguments)) is not None:
            run, self._ready, self._ready_for = found, found, shape
        self._values.arenas, values = run(*arguments)
        self._ran(*begun)
        return values

    def _ran(self, start_s: float, cpu_s: float) -> None:
        """Counts the time since then as the program's."""
        self.counts.run_ms += 1e3 * (time.perf_counter() - start_s)
        self.counts.run_cpu_ms += 1e3 * (time.thread_time() - cpu_s)

    def answers(self, asked: Asked) -> Iterable[tuple[InstanceRun, list[np.ndarray]]]:
        """Waits for values.

        Args:
            asked: What `launch` returned.

        Returns:
            Each instance with its values, of which it can be resumed at once.
        """
        begun = time.perf_counter(), time.thread_time()
        values = {kind: np.asarray(each) for kind, each in asked.values.items()}
        self._ran(*begun)
        for run, places in asked.places:
            yield run, [values[kind][row, ...] for kind, row in places]

    def wait(self) -> None:
        """Waits until the last wave has run."""
        begun = time.perf_counter(), time.thread_time()
        jax.block_until_ready(self._values.arenas)
        self._ran(*begun)

    def collect(self, shape: Any, rows: Any, lengths: Any, pools: Any) -> Any:
        """Gathers results; see `edbatch.waves.wave.collect`."""
        arenas = self._values.arenas
        return self._functions.collect(arenas, pools, shape, rows, lengths)

    def calls(self) -> list[tuple[TieredFunction, tuple[Any, ...]]]:
        """Returns the compiled functions that waves like the last one call.

        Returns:
            The functions and their arguments, for programs to be compiled ahead.
        """
        if self._program is None or self._wave is None:
            return []
        arenas, functions = self._values.arenas, self._functions
        rows = {kind: np.zeros(len(each), np.int32) for kind, each in arenas.items()}
        packed, key = self._program.packed, self._key
        waves = [
            replace(self._wave, shape=each)
            for each in self._program.shapes_up_to(self._most_chunks)
        ]
        few = {kind: own[: few_rows(len(own))] for kind, own in rows.items()}
        return [
            *((functions.run, (packed, arenas, each, key)) for each in waves),
            (functions.move, (arenas, rows)),
            (functions.shift, (arenas, few)),
        ]

    def result_rows(self, name: Hashable, needed: int) -> int:
        """Returns how many rows a part of a result has; see `WaveSizes.result_rows`."""
        return self._sizes.result_rows(name, needed)

    @property
    def value_rows(self) -> ValueRows:
        """Which row holds which value."""
        return self._values.rows

    def rows_of(self, values: Sequence[int] | np.ndarray) -> np.ndarray:
        """Returns the rows of values; ``[n] int32``."""
        return self._values.rows.of(values)

    def _fit(
        self, schedule: Schedule, asked: dict[int, list[int]]
    ) -> tuple[WaveProgram, WaveChunks]:
        """Finds a program that holds a wave, and makes room for its values."""
        program, pending = self._program, self.pending
        if program is None or not program.knows(schedule.batch_type):
            program = self._grow(largest_batches(schedule), {})
        while True:
            tables = program.tables
            chunks = cut_batches(schedule.batch_start, schedule.batch_type, tables)
            pools = pending.pools
            needs: Needs = {"stream": chunks.length, "steps": chunks.steps}
            needs |= {f"fetch {kind}": len(each) for kind, each in asked.items()}
            needs |= {f"pool {kind}": len(each) + 1 for kind, each in pools.items()}

            def needed(program: WaveProgram = program, chunks: Any = chunks) -> Rows:
                rows = rows_needed(
                    chunks,
                    schedule.order,
                    pending.nodes,
                    program.tables,
                    self._values.rows.next_row,
                )
                return {kind: n for kind, n in enumerate(rows.tolist()) if n}

            rows = self._values.make_room(needed, self._free_unreachable)
            needs |= {f"arena {kind}": size for kind, size in rows.items()}
            if program.holds(needs):
                self._values.grow(program.arenas)
                return program, chunks
            program = self._grow({}, needs)  # perhaps with other loops

    def _grow(self, batches: dict[int, int], needs: Needs) -> WaveProgram:
        bucket = self._sizes.grow(batches, needs)
        self._program = make_program(
            self._state, self._options, bucket, self._params, self._key
        )
        self._values.rows.kinds_up_to(len(self._state.types.avals))
        return self._program

    def _encode(
        self, program: WaveProgram, chunks: WaveChunks, schedule: Schedule
    ) -> np.ndarray:
        integers, records, trips = program.new_wave()
        own = self._values.rows
        early = write_wave(
            chunks,
            schedule.order,
            self.pending.nodes,
            program.tables,
            own.first,
            *own.tables(),
            own.next_row,
            records,
            trips,
        )
        if early >= 0:
            name = self._state.types.types[self.pending.nodes.node_type[early]].key.cell
            raise PolicyError(
                f"the schedule of a wave runs a call of cell {name!r} before what it"
                " reads; a policy may run nodes whose operands have run, in this wave"
                " or before"
            )
        return integers

    def _free_ended(self) -> None:
        rows = self._values.rows
        for run, kept in self._ended:
            if kept and (rows.of(kept) < 0).any():
                self._held.append((run, kept))
                continue
            for _, _, _, first, last in run.parts:
                rows.free(first, last)
            if isinstance(run, LongRun):
                rows.free_some(run.unfreed())
                self._long.remove(run)
            if kept:
                rows.keep(np.array(kept, np.int64))
        self._ended.clear()

    def _free_unreachable(self) -> None:
        """Frees values of instances that run whose handles are gone."""
        assert not self.tape.node_type, "what reads values is pending"
        if self._long:
            free_unreachable(self._long, self.pending, self._values.rows)

    def _count(self, schedule: Schedule, chunks: WaveChunks) -> None:
        counts = self.counts
        counts.waves += 1
        counts.nodes += len(schedule.order)
        counts.batches += schedule.num_batches
        counts.chunks += len(chunks.loop)
        counts.rows += int(chunks.rows)
        counts.moves = self._values.moves


def _find_asked(
    waiting: Sequence[InstanceRun],
) -> tuple[dict[int, list[int]], list[tuple[InstanceRun, list[tuple[int, int]]]]]:
    """Lists the values that are asked for by array kind, and where each one stands."""
    asked: dict[int, list[int]] = {}
    places = []
    for run in waiting:
        own = []
        for handle in run.asked:
            values = asked.setdefault(handle._kind, [])
            own.append((handle._kind, len(values)))
            values.append(handle._value)
        places.append((run, own))
    return asked, places


def handles_in(tree: Any) -> list[Handle]:
    """Returns the handles in a pytree."""
    return [each for each in jax.tree.leaves(tree) if type(each) is Handle]
