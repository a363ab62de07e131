"""Runs waves on the device: arenas, the program that runs on them, and its sizes."""

import time
from collections.abc import Callable, Collection, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from edbatch.compilation.jax_settings import settings
from edbatch.errors import PolicyError
from edbatch.graph.node_keys import typed_key
from edbatch.model_state import ModelState
from edbatch.options import Options
from edbatch.schedule.schedule import Schedule
from edbatch.stream.buckets import Needs, larger
from edbatch.stream.wave_sizes import WaveSizes
from edbatch.waves.compiled_pools import CompiledPools
from edbatch.waves.encoding import NO_ROOM, LoopTables, cut_batches, write_if_fits
from edbatch.waves.pending import PendingNodes
from edbatch.waves.program_maker import (
    Calls,
    NextProgram,
    NextWave,
    ProgramMaker,
    needs_of,
    rows_of,
)
from edbatch.waves.programs import WaveFunctions, WaveProgram, pad_pools
from edbatch.waves.resident_values import ResidentValues, Rows
from edbatch.waves.wave import Wave
from edbatch.waves.wave_nodes import RecordedNodes
from edbatch.waves.wave_report import WaveReport

_NONE = np.zeros(0, np.int32)
NO_NODES = Schedule(_NONE, np.zeros(1, np.int32), _NONE)
_SETTLED = 8  # waves after which a program is assumed to be large enough


class NoRoomError(Exception):
    """A wave needs a larger program, and may not wait for its compilation.

    Args:
        needs: Size that the wave needs in each dimension.
        fits: See the attribute.
        is_half_full: See the attribute.

    Attributes:
        needs: Size that the wave needs in each dimension.
        fits: Whether the wave would fit if the program's arenas were empty.
        is_half_full: Whether values take up over half of some arena.
    """

    def __init__(self, needs: Needs, *, fits: bool, is_half_full: bool) -> None:
        super().__init__("a wave needs a larger program")
        self.needs, self.fits, self.is_half_full = needs, fits, is_half_full


class WaveSize(NamedTuple):
    """Size of a wave.

    Attributes:
        chunks: Number of chunks.
        steps: Passes over the loops.
        rows: Rows that are computed, padding included.
    """

    chunks: int
    steps: int
    rows: int


class WaveExecution:
    """Runs scheduled waves, on one device.

    Args:
        state: The state of the model.
        sizes: The sizes of its programs.
        functions: Its compiled functions.
        options: Options of compilation.
        params: The parameters, JAX or NumPy arrays.
        rng: The key for cells that draw random numbers, or None.
        counts: Report to which time and rows are added.

    Attributes:
        values: The arenas, and the assignment of values to their rows.
        lacking: Program sizes that waves wanted but did not wait for.
    """

    def __init__(
        self,
        state: ModelState,
        sizes: WaveSizes,
        functions: WaveFunctions,
        options: Options,
        params: Any,
        rng: Any,
        counts: WaveReport,
    ) -> None:
        self.values = ResidentValues(state.types, functions.move, functions.shift)
        self._state, self._sizes, self._functions = state, sizes, functions
        self._counts = counts
        self._key = None if rng is None else typed_key(rng)
        self._maker = ProgramMaker(
            state, sizes, options, functions, self.values, params, self._key
        )
        self._program: WaveProgram | None = None
        self._grown_for: WaveProgram | None = None  # arenas have its sizes
        self._grown_at = 0  # number of waves before arenas were grown for it
        self._adopted: WaveProgram | None = None  # the last program that was adopted
        self._ahead_for: WaveProgram | None = None  # see `compile_later_needs`
        self.lacking: Needs = {}
        self._most_chunks = 0  # of any wave
        self._pools = CompiledPools(self._maker, functions.run)
        self._not_reported: set[int] = set()  # types for which no instance is held
        self._unknown = np.zeros(0, np.bool_)
        self._knows_all = False
        self._unknown_for: WaveProgram | None = None
        self._ready: Callable[..., Any] | None = None  # a compiled program
        self._ready_for: tuple[Any, ...] = ()

    def check_params(self) -> None:
        """Converts the parameters to JAX arrays, before the first wave.

        Raises:
            PlanError: They are traced, or the caller is.
        """
        self._maker.check_params()

    def run(
        self,
        schedule: Schedule,
        pending: PendingNodes,
        asked: dict[int, list[int]],
        free: Callable[[], None],
        *,
        may_grow: bool = True,
    ) -> dict[int, Array]:
        """Starts a wave on the device, which may run while the host continues.

        Args:
            schedule: The schedule of the wave.
            pending: The pending nodes; those of the wave are removed.
            asked: Numbers of the values to return, by array kind.
            free: Frees rows of unreachable values.
            may_grow: Whether to compile a larger program if none is large enough.

        Returns:
            The values to return, by array kind.

        Raises:
            PolicyError: A node runs before its operands.
            NoRoomError: The program is too small and may not grow; nothing ran.
        """
        program, integers, size = self._encode(schedule, pending, asked, free, may_grow)
        rows = {kind: self.values.rows.of(each) for kind, each in asked.items()}
        program.finish_wave(integers, size.steps, rows)
        self._most_chunks = max(self._most_chunks, size.chunks)
        shape = program.shape_of(size.chunks)
        needed = {kind: len(each) + 1 for kind, each in pending.pools.items()}
        count = self._maker.pool_rows(program, needed)
        if not may_grow:
            count = self._pools.choose(program, shape, self.values.arenas, count)
        pools = pad_pools(self._state, program, count, pending.pools)
        wave = Wave(shape, integers, pools)
        values = self._run(program, wave)
        pending.remove(schedule.order, self.values.rows)
        self._count(schedule, size)
        return values

    def _run(self, program: WaveProgram, wave: Wave) -> dict[int, Array]:
        """Runs a wave in its compiled program; looks the program up when it changes."""
        begun = time.perf_counter(), time.thread_time()
        arguments = (program.packed, self.values.arenas, wave, self._key)
        shape = (wave.shape, *map(len, wave.pools.values()))
        run: Callable[..., Any] = self._functions.run
        if shape == self._ready_for:
            assert self._ready is not None, "it was found"
            run = self._ready
        else:
            if (found := self._functions.run.ready(*arguments)) is not None:
                run, self._ready, self._ready_for = found, found, shape
                self._sizes.note_run(program.bucket)  # in another runner of its model
            else:
                run = partial(self._run_first, program)
        self.values.arenas, values = run(*arguments)
        self._ran(*begun)
        return values

    def _run_first(self, program: WaveProgram, *arguments: Any) -> Any:
        """Compiles and runs a program; if that fails, its sizes are reverted."""
        try:
            found = self._functions.run(*arguments)
        except BaseException:
            self._sizes.go_back(program.bucket)
            raise
        self._sizes.note_run(program.bucket)
        return found

    def _ran(self, start_s: float, cpu_s: float) -> None:
        """Adds the time since the given start times to the program's run time."""
        self._counts.run_ms += 1e3 * (time.perf_counter() - start_s)
        self._counts.run_cpu_ms += 1e3 * (time.thread_time() - cpu_s)

    def fetch(self, values: dict[int, Array]) -> dict[int, np.ndarray]:
        """Waits for values of a wave, and returns them as NumPy arrays."""
        begun = time.perf_counter(), time.thread_time()
        found = {kind: np.asarray(each) for kind, each in values.items()}
        self._ran(*begun)
        return found

    def wait(self) -> None:
        """Waits until the last wave has run."""
        begun = time.perf_counter(), time.thread_time()
        jax.block_until_ready(self.values.arenas)
        self._ran(*begun)

    def collect(self, shape: Any, rows: Any, lengths: Any, pools: Any) -> Any:
        """Gathers results; see `edbatch.waves.wave.collect`."""
        arenas = self.values.arenas
        return self._functions.collect(arenas, pools, shape, rows, lengths)

    def unknown_types(self, node_types: Sequence[int]) -> frozenset[int]:
        """Returns the types for which a program must be compiled.

        Args:
            node_types: Types of nodes.

        Returns:
            The types that the current program does not know; empty if the model has no
            program at all, because then nothing runs before one is compiled.
        """
        if self._program is None:
            if not self._sizes.bucket.loops:
                # The next waves run them, also if a serving policy chooses the nodes.
                self._not_reported |= {*node_types}
                return frozenset()
            self.check_params()
            self._grow({}, NO_NODES)
        found = self._not_in_program(node_types)
        if found and self._sizes.covers(self._run_as(found), {}):
            # Another runner compiled their program, or their family has loops already.
            types = np.array([*found], np.int32)
            starts = np.zeros(len(types) + 1, np.int32)
            self._grow({}, Schedule(_NONE, starts, types))
            found = self._not_in_program(node_types)
        return found

    def _not_in_program(self, node_types: Sequence[int]) -> frozenset[int]:
        program, count = self._program, len(self._state.types)
        assert program is not None, "it was made"
        if self._unknown_for is not program or len(self._unknown) != count:
            self._unknown_for = program
            self._unknown = np.ones(count, np.bool_)
            self._unknown[: program.types] = ~program.tables.known
            self._knows_all = not self._unknown.any()
        if self._knows_all:
            return frozenset()
        types = np.asarray(node_types, np.int32)
        is_unknown = self._unknown[types]
        if not is_unknown.any():
            return frozenset()
        return frozenset(types[is_unknown].tolist()) - self._not_reported

    def _run_as(self, types: Collection[int]) -> set[int]:
        """Returns the types that run in place of recorded types."""
        own = np.array([*types], np.int32)
        assert self._state.wave_types is not None, "there is a program"
        return {*self._state.wave_types.run_as(own)[0][own].tolist()}

    def prepare(
        self,
        schedule: Schedule,
        front: RecordedNodes,
        asked: dict[int, list[int]],
        types: Collection[int],
        needs: Needs,
    ) -> NextProgram:
        """Starts compiling a program that holds a wave, and all waves before it.

        Waves do not use it before `adopt`.

        Args:
            schedule: The schedule that would run.
            front: The nodes.
            asked: As for `run`.
            types: The unknown types that caused the request. Those that are not in the
                schedule are not reported as unknown again.
            needs: Minimum sizes of the program.

        Returns:
            The program.
        """
        self._not_reported |= {*types} - {*schedule.batch_type.tolist()}
        return self._maker.begin_next(
            NextWave(
                schedule,
                front,
                asked,
                needs,
                self._program,
                self._most_chunks,
                dict(self.values.arenas),
                settings(),
            )
        )

    def is_outdated(self, found: NextProgram) -> bool:
        """Returns whether the model's sizes changed since a program was planned."""
        return not self._sizes.is_current(found.instead_of)

    def adopt(self, found: NextProgram) -> bool:
        """Makes waves run in a program that was compiled ahead.

        Args:
            found: The program.

        Returns:
            Whether it was adopted; False if the sizes have grown since it was planned.
        """
        program = found.program
        assert program is not None, "it is compiled"
        if not self._sizes.adopt(program.bucket, found.instead_of):
            return False
        self._program = self._adopted = program
        if program.holds(self.lacking):
            self.lacking = {}
        self.values.arenas = found.arenas | self.values.arenas
        self.values.rows.kinds_up_to(len(self._state.types.avals))
        return True

    def holds(self, needs: Needs) -> bool:
        """Returns whether the current program is large enough.

        Args:
            needs: Size of each dimension.

        Returns:
            Whether there is a program, and it is large enough.
        """
        return self._program is not None and self._program.holds(needs)

    def calls(self) -> Calls:
        """Returns the compiled functions that waves like the last one call.

        Returns:
            The functions and their arguments, for compiling the programs ahead.
        """
        if self._program is None or not self._counts.waves:
            return []
        arenas = self.values.arenas
        calls = self._maker.calls(self._program, arenas, self._most_chunks)
        return [*calls, *self._maker.moves(arenas)]

    def compile_later_needs(self) -> None:
        """Starts compiling programs that later waves may need, in the background.

        Call it after waves. Arenas that have grown fill up, and pools reach their
        largest sizes, much later, when nobody should wait for a compilation. Nothing is
        compiled while sizes still grow with the waves.
        """
        program = self._grown_for
        if self._ahead_for is program or program is None:
            return
        is_settled = self._counts.waves >= self._grown_at + _SETTLED
        if not (is_settled or program is self._adopted):
            return
        self._ahead_for = program
        arenas, most = self.values.arenas, program.most_pool_rows
        for shape in program.shapes_up_to(self._most_chunks):
            self._pools.compile(program, shape, arenas, most)
        for function, arguments in self._maker.moves(arenas):
            if function.missing(*arguments) is not None:
                function.warm_up_in_background(*arguments)

    def result_rows(self, name: Hashable, needed: int) -> int:
        """Returns the rows of a part of a result; see `WaveSizes.result_rows`."""
        return self._sizes.result_rows(name, needed)

    def _encode(
        self,
        schedule: Schedule,
        pending: PendingNodes,
        asked: dict[int, list[int]],
        free: Callable[[], None],
        may_grow: bool,
    ) -> tuple[WaveProgram, np.ndarray, WaveSize]:
        """Writes a wave for a program that holds it; makes the program if necessary."""
        program = self._program
        size = None
        if (
            program is not None
            and self._grown_for is program
            and program.knows(schedule.batch_type)
            and program.has_room(asked, pending.pools)
        ):  # the usual case
            integers, size = self._write(program, schedule, pending)
        if program is None or size is None:
            program = self._fit(schedule, pending, asked, free, may_grow)
            integers, size = self._write(program, schedule, pending)
            assert size is not None, "room was made"
        return program, integers, size

    def _write(
        self, program: WaveProgram, schedule: Schedule, pending: PendingNodes
    ) -> tuple[np.ndarray, WaveSize | None]:
        """Writes a wave; its size is None if the program has no room for it."""
        integers, records, trips = program.new_wave()
        own = self.values.rows
        unready, *size = write_if_fits(
            schedule.batch_start,
            schedule.batch_type,
            schedule.order,
            pending.nodes,
            program.tables,
            (own.first, *own.tables(), own.next_row),
            program.arena_rows,
            records,
            trips,
        )
        if unready >= 0:
            name = self._state.types.types[pending.nodes.node_type[unready]].key.cell
            raise PolicyError(
                f"the schedule of a wave runs a call of cell {name!r} before its"
                " operands; a policy may run nodes whose operands have run, in this"
                " wave or before"
            )
        return integers, None if unready == NO_ROOM else WaveSize(*size)

    def _fit(
        self,
        schedule: Schedule,
        pending: PendingNodes,
        asked: dict[int, list[int]],
        free: Callable[[], None],
        may_grow: bool,
    ) -> WaveProgram:
        """Finds a program that holds a wave, and makes room for its values."""
        program = self._program
        if program is None or not program.knows(schedule.batch_type):
            program, may_grow = self._grow({}, schedule), True
        while True:
            tables = program.tables
            chunks = cut_batches(schedule.batch_start, schedule.batch_type, tables)

            def needed(tables: LoopTables = tables, chunks: Any = chunks) -> Rows:
                next_row = self.values.rows.next_row
                return rows_of(chunks, schedule, pending.front, tables, next_row)

            rows, wanted = self.values.make_room(needed, free)
            needs = needs_of(program, chunks, pending.front, asked, wanted)
            if not (may_grow or program.holds(needs)):
                self._lack(needs, len(chunks.loop))
                needs = needs_of(program, chunks, pending.front, asked, rows)
                if not program.holds(needs):
                    empty = np.ones_like(self.values.rows.next_row)
                    rows = rows_of(chunks, schedule, pending.front, tables, empty)
                    alone = needs_of(program, chunks, pending.front, asked, rows)
                    fits, half = program.holds(alone), self.values.is_half_full()
                    raise NoRoomError(needs, fits=fits, is_half_full=half)
            if program.holds(needs):
                self._grow_arenas(program)
                if self._grown_for is not program:
                    self._grown_for, self._grown_at = program, self._counts.waves
                return program
            program = self._grow(needs, schedule)  # its loops may differ

    def _grow_arenas(self, program: WaveProgram) -> None:
        """Grows arenas to a program's sizes; reverts the sizes if that fails."""
        try:
            self.values.grow(program.arenas)
        except BaseException:
            self._sizes.go_back(program.bucket)
            raise

    def _lack(self, needs: Needs, chunks: int) -> None:
        """Notes the sizes that a wave wanted, for the next program."""
        self.lacking = larger(self.lacking, needs)
        self._most_chunks = max(self._most_chunks, chunks)

    def _grow(self, needs: Needs, schedule: Schedule) -> WaveProgram:
        self._program = self._maker.grow(needs, schedule, self._program)
        self.values.rows.kinds_up_to(len(self._state.types.avals))
        return self._program

    def _count(self, schedule: Schedule, size: WaveSize) -> None:
        counts = self._counts
        counts.waves += 1
        counts.nodes += len(schedule.order)
        counts.batches += schedule.num_batches
        counts.chunks += size.chunks
        counts.rows += size.rows
        counts.moves = self.values.moves
