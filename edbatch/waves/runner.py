"""Runs the waves of instances that ask for values.

Instances in flight share one tape. Whatever they have recorded since the last wave is
the next one: a small dataflow graph, some of whose operands are values of earlier waves
that stay on the device. The policy schedules it, one program runs it, and only what was
asked for comes back to the host.
"""

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from edbatch.cell.jaxpr import is_tracing
from edbatch.compilation.signature import StaticArguments
from edbatch.compilation.tiered_function import TieredFunction
from edbatch.compiler import NEVER
from edbatch.errors import PlanError
from edbatch.executor.arenas import Arenas
from edbatch.executor.base import Prepared
from edbatch.executor.packed_parameters import is_traced
from edbatch.executor.program import CompileOptions, ProgramShape
from edbatch.graph.dataflow_graph import operand_nodes, slot_starts
from edbatch.graph.handle import Handle
from edbatch.graph.node_keys import typed_key
from edbatch.graph.structure import GraphStructure
from edbatch.graph.tape import Tape
from edbatch.model_state import ModelState
from edbatch.options import Options
from edbatch.plan.keys import program_with
from edbatch.schedule.policy import needs_check, reject_invalid
from edbatch.schedule.schedule import Schedule
from edbatch.stream.buckets import Bucket, Needs
from edbatch.stream.wave_sizes import WaveSizes
from edbatch.target import Target
from edbatch.waves.call_stacks import CallStack
from edbatch.waves.encoding import (
    LoopTables,
    WaveChunks,
    WaveNodes,
    cut_batches,
    loop_tables,
    rows_needed,
    write_wave,
)
from edbatch.waves.instance_run import InstanceRun
from edbatch.waves.value_rows import ValueRows
from edbatch.waves.wave import Wave, WaveShape, collect, move_rows, run_wave

_FULL = 0.75  # of an arena in use from which on a larger one takes its place


class WaveFunctions:
    """The compiled functions of one model's waves.

    Args:
        name: The model's name in reports.
    """

    def __init__(self, name: str) -> None:
        self.run = TieredFunction(
            run_wave, options={"donate_argnums": (1,)}, name=f"{name} (waves)"
        )
        self.move = TieredFunction(move_rows, name=f"{name} (rows moved)")
        self.collect = TieredFunction(
            collect, StaticArguments.of(collect, 2, None), name=f"{name} (results)"
        )


class RecordedWave(NamedTuple):
    """What a wave was recorded as, for recordings of the paths taken.

    Attributes:
        nodes: Its nodes.
        pools: Its external inputs, by array kind.
    """

    nodes: WaveNodes
    pools: dict[int, np.ndarray]


class Asked(NamedTuple):
    """Values that are being computed, for the instances that wait for them.

    Attributes:
        values: By array kind, ``[n, ...]``; on the device.
        places: Of each instance, the array kind and the row of each value.
    """

    values: dict[int, Array]
    places: list[tuple[InstanceRun, list[tuple[int, int]]]]


@dataclass
class WaveCounts:
    """What waves were made of.

    Attributes:
        waves: How many there were.
        nodes: Nodes that ran.
        batches: Batches of their schedules.
        chunks: Chunks that ran.
        rows: Rows that they computed, padding included.
        moves: How often rows were moved to make room.
        host_ms: Time to schedule, encode and dispatch them, in milliseconds.
        wait_ms: Time until values had come back.
    """

    waves: int = 0
    nodes: int = 0
    batches: int = 0
    chunks: int = 0
    rows: int = 0
    moves: int = 0
    host_ms: float = 0.0
    wait_ms: float = 0.0


class _Prepared(NamedTuple):
    """A program, and all that a wave needs to run by it."""

    bucket: Bucket
    shape: WaveShape
    tables: LoopTables
    packed: Prepared
    types: int  # known when the tables were made


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
        tape: The tape of the wave to come.
        counts: What was run so far.
        recorded: The waves so far, if paths are kept.
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
        self.counts = WaveCounts()
        self.recorded: list[RecordedWave] | None = [] if keep_paths else None
        self._state, self._sizes, self._functions = state, sizes, functions
        self._options = options
        self._params = params
        self._key = None if rng is None else typed_key(rng)
        self._rows = ValueRows()
        self._arenas: Arenas = {}
        self._prepared: _Prepared | None = None
        self._wave: Wave | None = None  # the last one
        self._instance_nodes: list[int] = []
        self._stacks: list[CallStack] = []
        self._traced = is_tracing()
        self._keep_values = keep_values
        self._ended: list[tuple[InstanceRun, list[int]]] = []

    @property
    def target(self) -> Target:
        """The kind of device."""
        return self._sizes.bucket.target

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
        run = InstanceRun(self.tape, self._state.calls, index, self._stacks)
        if self._keep_values:
            run.values = []
        with self._part_of(run):
            run.start(call, traced=self._traced)
        return run

    def resume(self, run: InstanceRun, answers: list[np.ndarray]) -> None:
        """Runs a suspended instance until it asks again or ends.

        Args:
            run: The instance.
            answers: The values that it asked for.

        Raises:
            Exception: What the model raised.
        """
        with self._part_of(run):
            run.resume(answers)

    @contextmanager
    def _part_of(self, run: InstanceRun) -> Iterator[None]:
        """Notes what an instance records, even if it fails."""
        tape = self.tape
        node, value = len(tape.node_type), tape.num_values
        try:
            yield
        finally:
            last = len(tape.node_type)
            if last > node:
                part = (self.counts.waves, node, last, value, tape.num_values)
                run.parts.append(part)
                self._instance_nodes.append(last - node)

    def release(self, run: InstanceRun, kept: Iterable[int] = ()) -> None:
        """Frees the rows of an instance that has ended, once the next wave has run.

        Args:
            run: The instance.
            kept: Numbers of the values that are read later on.
        """
        self._ended.append((run, list(kept)))

    def launch(self, waiting: Sequence[InstanceRun]) -> Asked:
        """Runs a wave: all that was recorded since the last one.

        Args:
            waiting: Instances whose values are asked for.

        Returns:
            The values that are being computed; see `answers`.

        Raises:
            EdbatchError: The policy belongs to another model; or a cell needs a key and
                there is none.
        """
        start = time.perf_counter()
        if not self.counts.waves:
            self._params = _arrays(self._params)
        nodes, raw, count = self._take_tape()
        if self.recorded is not None:
            self.recorded.append(RecordedWave(nodes, raw))
        schedule = self._schedule(nodes)
        asked, places = _find_asked(waiting)
        prepared, chunks = self._prepare(nodes, schedule, asked, raw)
        integers = np.zeros(prepared.shape.size, np.int32)
        self._encode(prepared, chunks, schedule, nodes, count, integers)
        self._locate(prepared.shape, asked, integers)
        wave = Wave(prepared.shape, integers, self._pools(prepared.bucket, raw))
        self._arenas, values = self._functions.run(
            prepared.packed, self._arenas, wave, self._key
        )
        self._wave = wave
        self._free_ended()
        self._count(schedule, chunks, prepared.tables, time.perf_counter() - start)
        return Asked({kind: values[kind] for kind in asked}, places)

    def answers(self, asked: Asked) -> Iterable[tuple[InstanceRun, list[np.ndarray]]]:
        """Waits for values.

        Args:
            asked: What `launch` returned.

        Returns:
            Each instance with its values, of which it can be resumed at once.
        """
        start = time.perf_counter()
        values = {kind: np.asarray(each) for kind, each in asked.values.items()}
        self.counts.wait_ms += 1e3 * (time.perf_counter() - start)
        for run, places in asked.places:
            yield run, [values[kind][row, ...] for kind, row in places]

    def collect(self, shape: Any, rows: Any, lengths: Any, pools: Any) -> Any:
        """Gathers results; see `edbatch.waves.wave.collect`."""
        return self._functions.collect(self._arenas, pools, shape, rows, lengths)

    def calls(self) -> list[tuple[TieredFunction, tuple[Any, ...]]]:
        """Returns the compiled functions that waves like the last one call.

        Returns:
            The functions and their arguments, for programs to be compiled ahead.
        """
        if self._prepared is None or self._wave is None:
            return []
        rows = {k: np.zeros(len(each), np.int32) for k, each in self._arenas.items()}
        run = (self._prepared.packed, self._arenas, self._wave, self._key)
        functions = self._functions
        return [(functions.run, run), (functions.move, (self._arenas, rows))]

    def result_rows(self, name: Hashable, needed: int) -> int:
        """Returns how many rows a part of a result has; see `WaveSizes.result_rows`."""
        return self._sizes.result_rows(name, needed)

    def rows_of(self, values: np.ndarray) -> np.ndarray:
        """Returns the rows of values; ``[n] int32``."""
        return self._rows.of(values)

    def _take_tape(self) -> tuple[WaveNodes, dict[int, np.ndarray], int]:
        """Takes what was recorded off the tape; also returns the number of values."""
        tape = self.tape
        node_type = np.array(tape.node_type, np.int32)
        operand, external, value = slot_starts(node_type, *tape.types.counts)
        nodes = WaveNodes(
            node_type,
            operand,
            np.array(tape.operands, np.int64),
            external,
            np.array(tape.external_rows, np.int32),
            value,
        )
        pools = tape.pools()
        tape.clear()
        return nodes, pools, int(value[-1])

    def _schedule(self, nodes: WaveNodes) -> Schedule:
        if not len(nodes.node_type):
            self._instance_nodes.clear()
            nothing = np.zeros(0, np.int32)
            return Schedule(nothing, np.zeros(1, np.int32), nothing)
        # Values of earlier waves are there, like operands that a list lacks.
        own = np.maximum(nodes.operands - self._rows.end, -1).astype(np.int32)
        structure = GraphStructure(
            self._state.types.keys,
            nodes.node_type,
            nodes.operand_start,
            operand_nodes(nodes.value_start, own),
            np.array(self._instance_nodes, np.int32),
        )
        self._instance_nodes.clear()
        policy = self._options.policy
        schedule = policy.schedule(structure)
        if needs_check(policy):
            reject_invalid(schedule, structure, policy)
        return schedule

    def _prepare(
        self,
        nodes: WaveNodes,
        schedule: Schedule,
        asked: dict[int, list[int]],
        pools: dict[int, np.ndarray],
    ) -> tuple[_Prepared, WaveChunks]:
        """Finds the program of a wave, and rows for its values."""
        prepared = self._prepared
        if prepared is None or not self._knows(prepared, nodes.node_type):
            prepared = self._grow(_largest_batches(schedule), {})
        while True:
            tables = prepared.tables
            chunks = cut_batches(schedule.batch_start, schedule.batch_type, tables)
            needs: Needs = {"stream": chunks.length, "steps": chunks.steps}
            needs |= {f"fetch {kind}": len(each) for kind, each in asked.items()}
            needs |= {f"pool {kind}": len(each) + 1 for kind, each in pools.items()}
            rows = self._needed_rows(chunks, schedule, nodes, tables)
            if any(self._is_too_small(kind, size) for kind, size in rows.items()):
                rows = self._make_room(rows, chunks, schedule, nodes, tables)
            needs |= {f"arena {kind}": size for kind, size in rows.items()}
            sizes = prepared.bucket.sizes
            if all(sizes.get(name, -1) >= size for name, size in needs.items()):
                self._hold_arenas(prepared.bucket)
                return prepared, chunks
            prepared = self._grow({}, needs)  # perhaps with other loops

    def _knows(self, prepared: _Prepared, node_type: np.ndarray) -> bool:
        """Whether a program has loops for all types of a wave."""
        if node_type.size and int(node_type.max()) >= prepared.types:
            return False
        return bool(prepared.tables.known[node_type].all())

    def _grow(self, batches: dict[int, int], needs: Needs) -> _Prepared:
        """Makes a program that holds a wave."""
        bucket = self._sizes.grow(batches, needs)
        types = self._state.types
        sizes = bucket.sizes
        program = ProgramShape(
            types,
            bucket.loops,
            tuple(sorted(by_kind("arena", sizes).items())),
            options=CompileOptions(
                target=bucket.target, packing=self._options.compiler.packing != NEVER
            ),
        )
        fetched = tuple(sorted(by_kind("fetch", sizes).items()))
        shape = WaveShape(
            program, sizes.get("stream", 0), sizes.get("steps", 0), fetched
        )
        packed = self._state.packed.of(self._params, program_with(program, self._key))
        assert packed is not None, "parameters are arrays of JAX"
        count = len(types)
        overhead = self._sizes.chunk_overhead
        tables = loop_tables(types.types[:count], bucket.loops, overhead)
        self._rows.kinds_up_to(len(types.avals))
        self._prepared = _Prepared(bucket, shape, tables, packed, count)
        return self._prepared

    def _is_too_small(self, kind: int, size: int) -> bool:
        """Whether an arena exists and has fewer rows."""
        return kind in self._arenas and size > len(self._arenas[kind])

    def _needed_rows(
        self,
        chunks: WaveChunks,
        schedule: Schedule,
        nodes: WaveNodes,
        tables: LoopTables,
    ) -> dict[int, int]:
        needed = rows_needed(
            chunks, schedule.order, nodes, tables, self._rows.next_row
        ).tolist()
        return {kind: rows for kind, rows in enumerate(needed) if rows}

    def _make_room(
        self,
        rows: dict[int, int],
        chunks: WaveChunks,
        schedule: Schedule,
        nodes: WaveNodes,
        tables: LoopTables,
    ) -> dict[int, int]:
        """Moves the rows in use together; returns the rows that arenas need then.

        Where they would nearly fill an arena again, it needs more than it has.
        """
        self._take_rows(self._rows.compact(), {})
        needed = self._needed_rows(chunks, schedule, nodes, tables)
        for kind, arena in self._arenas.items():
            if needed.get(kind, 0) > _FULL * len(arena):
                needed[kind] = max(rows[kind], len(arena) + 1)
        return needed

    def _take_rows(
        self, moved: dict[int, np.ndarray], sizes: Mapping[int, int]
    ) -> None:
        """Puts arenas of some sizes, with given rows first, in place of the present."""
        rows = {}
        for kind, arena in self._arenas.items():
            rows[kind] = np.zeros(sizes.get(kind, len(arena)), np.int32)
            own = moved[kind]
            rows[kind][1 : len(own) + 1] = own
        self._arenas = self._functions.move(self._arenas, rows)
        self.counts.moves += 1

    def _hold_arenas(self, bucket: Bucket) -> None:
        """Makes the arenas that a program has, of its sizes."""
        avals = self._state.types.avals
        sizes = by_kind("arena", bucket.sizes)
        if any(len(arena) < sizes[kind] for kind, arena in self._arenas.items()):
            self._take_rows(
                {
                    kind: np.arange(1, len(arena), dtype=np.int32)
                    for kind, arena in self._arenas.items()
                },
                sizes,
            )
        for kind, size in sizes.items():
            if kind not in self._arenas:
                aval = avals[kind]
                self._arenas[kind] = jnp.zeros((size, *aval.shape), aval.dtype)

    def _encode(
        self,
        prepared: _Prepared,
        chunks: WaveChunks,
        schedule: Schedule,
        nodes: WaveNodes,
        count: int,
        integers: np.ndarray,
    ) -> None:
        shape = prepared.shape
        loops = len(shape.program.loops)
        trips = integers[shape.length : shape.length + shape.steps * loops]
        integers[shape.length + shape.steps * loops] = chunks.steps
        rows, kinds = self._rows.append(count)
        write_wave(
            chunks,
            schedule.order,
            nodes,
            prepared.tables,
            self._rows.first,
            self._rows.table(),
            rows,
            kinds,
            self._rows.next_row,
            integers[: shape.length],
            trips.reshape(shape.steps, loops),
        )

    def _locate(
        self, shape: WaveShape, asked: dict[int, list[int]], integers: np.ndarray
    ) -> None:
        """Writes the rows of the values that are asked for."""
        at = len(integers) - sum(count for _, count in shape.fetched)
        for kind, count in shape.fetched:
            if kind in asked:
                rows = self._rows.of(asked[kind])
                integers[at : at + len(rows)] = rows
            at += count

    def _pools(
        self, bucket: Bucket, raw: dict[int, np.ndarray]
    ) -> dict[int, np.ndarray]:
        pools = {}
        for kind in by_kind("pool", bucket.sizes):
            found = raw.get(kind)
            needed = 1 if found is None else len(found) + 1
            aval = self._state.types.kinds.pool_aval(kind)
            rows = self._sizes.pool_rows(kind, needed)
            pools[kind] = np.zeros((rows, *aval.shape), aval.dtype)
            if found is not None:
                pools[kind][1:needed] = found
        return pools

    def _free_ended(self) -> None:
        for run, kept in self._ended:
            for _, _, _, first, last in run.parts:
                self._rows.free(first, last)
            if kept:
                self._rows.keep(np.array(kept, np.int64))
        self._ended.clear()

    def _count(
        self,
        schedule: Schedule,
        chunks: WaveChunks,
        tables: LoopTables,
        seconds: float,
    ) -> None:
        counts = self.counts
        counts.waves += 1
        counts.nodes += len(schedule.order)
        counts.batches += schedule.num_batches
        counts.chunks += len(chunks.loop)
        counts.rows += int(tables.width[chunks.loop].sum())
        counts.host_ms += 1e3 * seconds


def _arrays(params: Any) -> Any:
    """Returns parameters as arrays of JAX."""
    if is_tracing() or is_traced(params):
        raise PlanError(
            "a model that asks for values runs wave by wave on the device, which"
            " jax.jit, jax.grad and other traces cannot follow; call it outside of"
            " them, and differentiate batched.apply(params, batched.plan(recordings))"
            " of the recordings of batched.rollout"
        )
    return jax.tree.map(jnp.asarray, params)


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


def _largest_batches(schedule: Schedule) -> dict[int, int]:
    """Returns the rows of the largest batch of each type."""
    largest: dict[int, int] = {}
    sizes = np.diff(schedule.batch_start).tolist()
    for t, rows in zip(schedule.batch_type.tolist(), sizes, strict=True):
        largest[t] = max(largest.get(t, 0), rows)
    return largest


def by_kind(prefix: str, sizes: Needs) -> dict[int, int]:
    """Returns the sizes of one sort of dimension by array kind."""
    return {
        int(name.split()[1]): size
        for name, size in sizes.items()
        if name.startswith(prefix + " ")
    }


def handles_in(tree: Any) -> list[Handle]:
    """Returns the handles in a pytree."""
    return [each for each in jax.tree.leaves(tree) if type(each) is Handle]
