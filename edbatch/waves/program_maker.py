"""Makes wave programs: for the current wave, and ahead of time for later waves.

A program for the current wave is compiled when it first runs, and all instances wait
for it. A program that other instances will need can be compiled in the background,
while waves run in the current one: its sizes are planned, and adopted only once it is
compiled.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from edbatch.compilation.jax_settings import check_under, under
from edbatch.compilation.tiered_function import TieredFunction
from edbatch.compilation.worker import WORKER, Pending
from edbatch.executor.arenas import Arenas
from edbatch.model_state import ModelState
from edbatch.options import Options
from edbatch.schedule.schedule import Schedule
from edbatch.stream.buckets import Bucket, Needs, larger
from edbatch.stream.wave_sizes import WaveSizes
from edbatch.waves.encoding import LoopTables, WaveChunks, cut_batches, rows_needed
from edbatch.waves.programs import (
    WaveFunctions,
    WaveProgram,
    as_arrays,
    largest_batches,
    make_program,
)
from edbatch.waves.resident_values import ResidentValues, Rows, few_rows
from edbatch.waves.wave import Wave, WaveShape
from edbatch.waves.wave_nodes import RecordedNodes

PoolRows = tuple[int, ...]  # rows of each pool of a program
Calls = list[tuple[TieredFunction, tuple[Any, ...]]]


class NextWave(NamedTuple):
    """A wave that the current program cannot run, and the state around it.

    Attributes:
        schedule: The schedule that would run.
        front: The nodes.
        asked: The values to return, by array kind.
        needs: Minimum sizes of the program, in addition to those of the wave.
        present: The program in which waves run meanwhile, or None.
        chunks: The most chunks of any wave so far.
        arenas: The arenas; their data may be deleted (donated).
        settings: The JAX settings under which the wave would run.
    """

    schedule: Schedule
    front: RecordedNodes
    asked: dict[int, list[int]]
    needs: Needs
    present: WaveProgram | None
    chunks: int
    arenas: Arenas
    settings: tuple[Any, ...]


@dataclass(eq=False)
class NextProgram:
    """A program that is compiled while waves run in another one.

    Attributes:
        instead_of: The model's sizes when those of this program were planned.
        compiling: Handle of the compilation.
        program: The program, once it is compiled.
        arenas: New arenas that it needs, by array kind.
    """

    instead_of: Bucket
    compiling: Pending = field(default_factory=lambda: Pending(0))
    program: WaveProgram | None = None
    arenas: Arenas = field(default_factory=dict)


class ProgramMaker:
    """Makes wave programs for some parameters.

    Args:
        state: The state of the model.
        sizes: The sizes of its programs.
        options: Options of compilation.
        functions: The model's compiled functions.
        values: The arenas.
        params: The parameters, JAX or NumPy arrays.
        key: The key from which the keys of nodes are derived, or None.

    Attributes:
        sizes: The sizes of the model's programs.
    """

    def __init__(
        self,
        state: ModelState,
        sizes: WaveSizes,
        options: Options,
        functions: WaveFunctions,
        values: ResidentValues,
        params: Any,
        key: Any,
    ) -> None:
        self.sizes = sizes
        self._state, self._options, self._functions = state, options, functions
        self._values, self._params, self._key = values, params, key

    def check_params(self) -> None:
        """Converts the parameters to JAX arrays, before the first program.

        Raises:
            PlanError: They are traced, or the caller is.
        """
        self._params = as_arrays(self._params)
        for leaf in jax.tree.leaves(self._params):
            if leaf.committed and isinstance(leaf.sharding, SingleDeviceSharding):
                self._values.sharding = leaf.sharding

    def grow(
        self, needs: Needs, schedule: Schedule, least: WaveProgram | None
    ) -> WaveProgram:
        """Makes a program for a wave that runs now.

        Args:
            needs: Size that the wave needs in each dimension.
            schedule: The schedule of the wave.
            least: A program whose sizes are lower bounds, or None.

        Returns:
            A program that knows the wave's types and has at least these sizes.
        """
        return self._make(needs, schedule, least)

    def begin_next(self, wave: NextWave) -> NextProgram:
        """Starts compiling a program that holds a wave, and all waves before it.

        Args:
            wave: The wave.

        Returns:
            The program; the model's sizes do not change yet.
        """
        found = NextProgram(self.sizes.bucket)
        if self._has_run(wave):  # in another runner; it may fit this one, too
            program, calls = self._plan_next(found, wave)
            waves = [
                arguments for own, arguments in calls if own is self._functions.run
            ]
            if all(self._functions.run.missing(*each) is None for each in waves):
                found.program = program
                return found
        found.compiling = WORKER.submit(
            partial(self._make_next, found, wave), is_urgent=True
        )
        return found

    def _has_run(self, wave: NextWave) -> bool:
        """Returns whether a program with the sizes and types of a wave has run."""
        types, own = self._state.wave_types, wave.schedule.batch_type
        assert types is not None, "there are sizes, so there are types"
        run_as = {*types.run_as(own)[0][own].tolist()}
        return bool(wave.needs) and self.sizes.covers(run_as, wave.needs)

    def _make_next(self, found: NextProgram, wave: NextWave) -> None:
        with under(wave.settings):
            check_under(wave.settings)
            program, calls = self._plan_next(found, wave)
            for function, arguments in calls:
                function.begin(*arguments)
            found.program = program

    def _plan_next(
        self, found: NextProgram, wave: NextWave
    ) -> tuple[WaveProgram, Calls]:
        """Plans a program, and the calls to compile for it."""
        program, chunks = self._next(wave)
        new = {k: n for k, n in program.arenas.items() if k not in wave.arenas}
        found.arenas = {k: self._values.new_arena(k, n) for k, n in new.items()}
        arenas = {**wave.arenas, **found.arenas}
        return program, self._calls_of(program, wave, arenas, chunks)

    def _next(self, wave: NextWave) -> tuple[WaveProgram, int]:
        """Makes a program that has room for a wave in otherwise empty arenas."""
        program, needs, schedule = wave.present, wave.needs, wave.schedule
        while True:
            program = self._make(needs, schedule, program, takes=False)
            tables = program.tables
            chunks = cut_batches(schedule.batch_start, schedule.batch_type, tables)
            empty = np.ones(len(self._state.types.avals), np.int64)
            rows = rows_of(chunks, schedule, wave.front, tables, empty)
            own = needs_of(program, chunks, wave.front, wave.asked, rows)
            needs = larger(wave.needs, own)
            if program.holds(needs):
                return program, len(chunks.loop)

    def _calls_of(
        self, program: WaveProgram, wave: NextWave, arenas: Arenas, chunks: int
    ) -> Calls:
        """Returns the calls that waves will make, including moves from old arenas."""
        pools = [program.most_pool_rows]  # smaller sizes are compiled once waves run
        abstract = _with_rows(arenas, program.arenas)
        calls = self.calls(program, abstract, max(wave.chunks, chunks), pools)
        calls += self.moves(abstract)
        sizes = [{kind: len(each) for kind, each in wave.arenas.items()}]
        if wave.present is not None:  # arenas will soon have these sizes
            sizes.append(wave.present.arenas)
        for before in sizes:
            if any(rows < program.arenas[kind] for kind, rows in before.items()):
                after = {k: np.zeros(program.arenas[k], np.int32) for k in before}
                grown = _with_rows(arenas, before), after
                calls.append((self._functions.move, grown))
        return calls

    def pool_rows(self, program: WaveProgram, needed: Rows) -> PoolRows:
        """Returns the rows of a program's pools in a wave.

        Args:
            program: The program.
            needed: Rows that the wave needs, by array kind.

        Returns:
            The rows of each pool that the program reads.
        """
        return tuple(
            self.sizes.pool_rows(kind, needed.get(kind, 1), most)
            for kind, most in zip(program.pools, program.most_pool_rows, strict=True)
        )

    def pool_bytes(self, program: WaveProgram, rows: PoolRows) -> int:
        """Returns the size of a wave's pools.

        Args:
            program: The program.
            rows: The rows of each pool that it reads.

        Returns:
            The size in bytes.
        """
        pools = self._empty_pools(program, rows).values()
        return sum(each.size * each.dtype.itemsize for each in pools)

    def _make(
        self,
        needs: Needs,
        schedule: Schedule,
        least: WaveProgram | None,
        *,
        takes: bool = True,
    ) -> WaveProgram:
        types = self._state.wave_types
        assert types is not None, "there are sizes, so there are types"
        run_as = types.run_as(schedule.batch_type)
        batches = largest_batches(schedule, run_as[0])
        own = least.bucket.sizes if least else {}
        runs = set(run_as[0].tolist())
        bucket = self.sizes.grow(batches, needs, runs, own, takes=takes)
        try:
            return make_program(
                self._state, self._options, bucket, run_as, self._params, self._key
            )
        except BaseException:
            self.sizes.go_back(bucket)
            raise

    def calls(
        self,
        program: WaveProgram,
        arenas: Any,
        chunks: int,
        pools: Iterable[PoolRows] | None = None,
    ) -> Calls:
        """Returns the calls of a program, for compiling them ahead.

        Args:
            program: The program.
            arenas: Its arenas, with or without data.
            chunks: The most chunks of a wave.
            pools: Combinations of the rows of its pools; None for all combinations.

        Returns:
            For each call the function and its arguments.
        """
        if pools is None:
            most = zip(program.pools, program.most_pool_rows, strict=True)
            pools = product(*(self.sizes.pool_sizes(*each) for each in most))
        return [
            (self._functions.run, self.arguments(program, shape, arenas, rows))
            for shape, rows in product(program.shapes_up_to(chunks), pools)
        ]

    def moves(self, arenas: Any) -> Calls:
        """Returns the calls that move rows within arenas, for compiling them ahead.

        Args:
            arenas: The arenas, with or without data.

        Returns:
            The functions and their arguments.
        """
        rows = {k: np.zeros(each.shape[0], np.int32) for k, each in arenas.items()}
        few = {kind: own[: few_rows(len(own))] for kind, own in rows.items()}
        own = self._functions
        return [(own.move, (arenas, rows)), (own.shift, (arenas, few))]

    def arguments(
        self, program: WaveProgram, shape: WaveShape, arenas: Any, rows: PoolRows
    ) -> tuple[Any, ...]:
        """Returns the arguments of a wave, for compiling a program for it.

        Args:
            program: The program.
            shape: Static shape of the program.
            arenas: Its arenas, with or without data.
            rows: The rows of each pool that it reads.

        Returns:
            The arguments; the wave itself has no data.
        """
        integers = jax.ShapeDtypeStruct((shape.size,), np.int32)
        wave = Wave(shape, integers, self._empty_pools(program, rows))
        return program.packed, arenas, wave, self._key

    def _empty_pools(
        self, program: WaveProgram, rows: PoolRows
    ) -> dict[int, jax.ShapeDtypeStruct]:
        """Returns abstract pools with the given numbers of rows."""
        found = {}
        for kind, count in zip(program.pools, rows, strict=True):
            aval = self._state.types.kinds.pool_aval(kind)
            found[kind] = jax.ShapeDtypeStruct((count, *aval.shape), aval.dtype)
        return found


def _with_rows(arenas: Arenas, rows: Rows) -> dict[int, jax.ShapeDtypeStruct]:
    """Returns abstract arenas like the given ones, with other numbers of rows."""
    found = {}
    for kind, count in rows.items():
        own = arenas[kind]
        found[kind] = jax.ShapeDtypeStruct(
            (count, *own.shape[1:]),
            own.dtype,
            sharding=own.sharding if own.committed else None,
        )
    return found


def rows_of(
    chunks: WaveChunks,
    schedule: Schedule,
    front: RecordedNodes,
    tables: LoopTables,
    next_row: np.ndarray,
) -> Rows:
    """Returns the rows that arenas need for a wave.

    Args:
        chunks: The wave's chunks.
        schedule: The schedule of the wave.
        front: The nodes.
        tables: The program's tables.
        next_row: Next free row by array kind; ``[K] int64``.

    Returns:
        Rows by array kind, for the kinds that the wave writes; see `rows_needed`.
    """
    rows = rows_needed(chunks, schedule.order, front.nodes, tables, next_row)
    return {kind: n for kind, n in enumerate(rows.tolist()) if n}


def needs_of(
    program: WaveProgram,
    chunks: WaveChunks,
    front: RecordedNodes,
    asked: dict[int, list[int]],
    rows: Rows,
) -> Needs:
    """Returns the sizes that a program needs for a wave.

    Args:
        program: The program, which knows the wave's types.
        chunks: The wave's chunks.
        front: The nodes.
        asked: The values to return, by array kind.
        rows: Rows of arenas by array kind.

    Returns:
        Size of each dimension.
    """
    needs: Needs = {"stream": chunks.length, "steps": chunks.steps}
    needs |= {f"fetch {kind}": len(each) for kind, each in asked.items()}
    # Only nodes that do not run read other kinds.
    pools = {kind: front.pools.get(kind, ()) for kind in program.pools}
    needs |= {f"pool {kind}": len(each) + 1 for kind, each in pools.items()}
    return needs | {f"arena {kind}": size for kind, size in rows.items()}
