"""The compiled functions of a model's waves, and the programs that they run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from edbatch.cell.jaxpr import is_tracing
from edbatch.compilation.signature import StaticArguments
from edbatch.compilation.tiered_function import TieredFunction
from edbatch.compiler import NEVER
from edbatch.errors import PlanError, shown
from edbatch.executor.base import Prepared
from edbatch.executor.packed_parameters import is_traced
from edbatch.executor.program import CompileOptions, ProgramShape
from edbatch.model_state import ModelState
from edbatch.options import Options
from edbatch.plan.keys import check_defaults
from edbatch.schedule.schedule import Schedule
from edbatch.stream.buckets import Bucket, Needs, by_kind
from edbatch.stream.wave_sizes import power_of_two
from edbatch.waves.encoding import LoopTables, loop_tables
from edbatch.waves.wave import WaveShape, collect, move_rows, run_wave, shift_rows

Pools = dict[int, np.ndarray]  # array kind -> external inputs, [rows, ...]

_FEW_CHUNKS = 8  # programs for fewer chunks save less time than compiling them takes


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
        self.shift = TieredFunction(
            shift_rows,
            options={"donate_argnums": (0,)},
            name=f"{name} (few rows moved)",
        )
        self.collect = TieredFunction(
            collect, StaticArguments.of(collect, 2, None), name=f"{name} (results)"
        )


class WaveProgram(NamedTuple):
    """A wave program, with all that is needed to encode and run waves in it.

    Attributes:
        bucket: Its sizes.
        shape: Static shape for which it is compiled.
        tables: Look-up tables for encoding.
        packed: The packed parameters.
        types: Number of recorded types that were known when the tables were made.
        arenas: Rows of each arena, by array kind.
        arena_rows: The same as an array, for all known kinds; ``[K] int64``.
        pools: The array kinds of external inputs that it reads.
        by_chunks: Static shapes by the maximum number of chunks that they visit.
    """

    bucket: Bucket
    shape: WaveShape
    tables: LoopTables
    packed: Prepared
    types: int
    arenas: dict[int, int]
    arena_rows: np.ndarray
    pools: tuple[int, ...]
    by_chunks: dict[int, WaveShape]

    def shape_of(self, chunks: int) -> WaveShape:
        """Returns the static shape for which a wave's program is compiled.

        A program with the control ``"switch"`` visits a static number of chunks, a
        power of two, so that the host need not check after each chunk whether there are
        more.

        Args:
            chunks: Chunks of the wave.

        Returns:
            The shape; the same object for the same rounded number.
        """
        if self.bucket.target.control != "switch":
            return self.shape
        most = max(_FEW_CHUNKS, power_of_two(chunks))
        if most not in self.by_chunks:
            program = replace(self.shape.program, chunks=most)
            self.by_chunks[most] = replace(self.shape, program=program)
        return self.by_chunks[most]

    def shapes_up_to(self, chunks: int) -> list[WaveShape]:
        """Returns the static shapes of programs for waves of up to `chunks` chunks."""
        shapes = [self.shape_of(chunks)]
        while shapes[-1].program.chunks > _FEW_CHUNKS:
            shapes.append(self.shape_of(shapes[-1].program.chunks // 2))
        return shapes

    @property
    def most_pool_rows(self) -> tuple[int, ...]:
        """Maximum rows of each pool that it reads, in order."""
        return tuple(self.bucket.sizes[f"pool {kind}"] for kind in self.pools)

    def knows(self, node_type: np.ndarray) -> bool:
        """Returns whether the program has loops for all types of a wave.

        Args:
            node_type: Type of each node.

        Returns:
            Whether it has.
        """
        if node_type.size and int(node_type.max()) >= self.types:
            return False
        return bool(self.tables.known[node_type].all())

    def holds(self, needs: Needs) -> bool:
        """Returns whether the sizes are large enough.

        Args:
            needs: Size that a wave needs in each dimension.

        Returns:
            Whether they are.
        """
        return self.bucket.holds(set(), needs)

    def has_room(self, asked: Mapping[int, Sequence[int]], pools: Pools) -> bool:
        """Returns whether a wave's external inputs and returned values fit.

        Args:
            asked: The values to return, by array kind.
            pools: External inputs by array kind.

        Returns:
            Whether they fit.
        """
        sizes = self.bucket.sizes
        for kind, values in asked.items():
            if len(values) > sizes.get(f"fetch {kind}", -1):
                return False
        for kind in self.pools:  # only nodes that do not run read other kinds
            if kind in pools and len(pools[kind]) >= sizes[f"pool {kind}"]:
                return False
        return True

    def new_wave(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Allocates the integers of a wave.

        Returns:
            All integers, initialized to 0; and views of the records and the trips.
        """
        shape = self.shape
        loops = len(shape.program.loops)
        integers = np.zeros(shape.size, np.int32)
        trips = integers[shape.length : shape.length + shape.steps * loops]
        return integers, integers[: shape.length], trips.reshape(shape.steps, loops)

    def finish_wave(
        self, integers: np.ndarray, steps: int, rows: dict[int, np.ndarray]
    ) -> None:
        """Writes the integers after the trips: the steps and the rows to return.

        Args:
            integers: The integers of a wave; changed.
            steps: The number of steps.
            rows: Rows of the values to return, by array kind.
        """
        at = len(integers) - sum(count for _, count in self.shape.fetched)
        integers[at - 1] = steps
        for kind, count in self.shape.fetched:
            if kind in rows:
                integers[at : at + len(rows[kind])] = rows[kind]
            at += count


def make_program(
    state: ModelState,
    options: Options,
    bucket: Bucket,
    run_as: tuple[np.ndarray, np.ndarray],
    params: Any,
    key: Any,
) -> WaveProgram:
    """Makes a program of the given sizes.

    Args:
        state: The state of the model.
        options: Options of compilation.
        bucket: The sizes.
        run_as: The types that run in place of recorded types; see
            `HoistedTypes.run_as`.
        params: The parameters, JAX arrays.
        key: The key from which the keys of nodes are derived, or None.

    Returns:
        The program; nothing is compiled yet.

    Raises:
        CellError: There is no key, and without one a cell returns other shapes.
    """
    assert state.wave_types is not None, "there are sizes, so there are types"
    types, sizes = state.wave_types.table, bucket.sizes
    program = ProgramShape(
        types,
        bucket.loops,
        tuple(sorted(by_kind("arena", sizes).items())),
        options=CompileOptions(
            target=bucket.target,
            packing=options.compiler.packing != NEVER,
            with_keys=key is not None,
        ),
    )
    if key is None:
        check_defaults(program)
    shape = WaveShape(
        program,
        sizes.get("stream", 0),
        sizes.get("steps", 0),
        tuple(sorted(by_kind("fetch", sizes).items())),
    )
    packed = state.packed.of(params, program)
    assert packed is not None, "parameters are arrays of JAX"
    overhead = options.sizes.on(bucket.target).chunk_overhead
    tables = loop_tables(types.types, run_as, bucket.loops, overhead)
    count = len(tables.known)
    pools = tuple(by_kind("pool", sizes))
    arenas = dict(program.arena_rows)
    rows = np.zeros(len(types.avals), np.int64)
    rows[list(arenas)] = list(arenas.values())
    return WaveProgram(bucket, shape, tables, packed, count, arenas, rows, pools, {})


def pad_pools(
    state: ModelState, program: WaveProgram, rows: Sequence[int], raw: Pools
) -> Pools:
    """Pads external inputs to the sizes of a program.

    Args:
        state: The state of the model.
        program: The program.
        rows: Rows of each pool that it reads.
        raw: External inputs by array kind.

    Returns:
        A pool for each array kind that the program reads, with a zero row first.
    """
    pools = {}
    for kind, count in zip(program.pools, rows, strict=True):
        aval = state.types.kinds.pool_aval(kind)
        pools[kind] = np.zeros((count, *aval.shape), aval.dtype)
        found = raw.get(kind)
        if found is not None:
            pools[kind][1 : len(found) + 1] = found
    return pools


def as_arrays(params: Any) -> Any:
    """Converts parameters to JAX arrays; NumPy arrays are copied.

    Args:
        params: The parameters.

    Returns:
        The same pytree with JAX arrays.

    Raises:
        PlanError: They are traced, or the caller is; or one is not an array that can be
            read.
    """
    if is_tracing() or is_traced(params):
        raise PlanError(
            "a model that asks for values runs wave by wave on the device, which"
            " jax.jit, jax.grad and other traces cannot follow; call it outside of"
            " them, and differentiate batched.apply(params, batched.plan(recordings))"
            " of the recordings of batched.rollout"
        )
    try:
        return jax.tree.map(_as_array, params)
    except (TypeError, ValueError, OverflowError):
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            _check_array(f"params{jax.tree_util.keystr(path)}", leaf)
        raise


def _as_array(leaf: Any) -> jax.Array:
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        raise ValueError
    # Copied by NumPy: JAX copies later, when the owner may have changed the array.
    return jnp.asarray(leaf.copy() if isinstance(leaf, np.ndarray) else leaf)


def _check_array(name: str, leaf: Any) -> None:
    """Raises `PlanError` if a parameter cannot be read."""
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        raise PlanError(
            f"{name} was deleted, usually since a step of training took it by"
            " donate_argnums; pass what the step returned, or a copy made before"
        )
    try:
        jnp.asarray(leaf)
    except (TypeError, ValueError, OverflowError) as error:  # such as a masked array
        raise PlanError(
            f"{name} is no array that can be read but {shown(leaf)}, of type"
            f" {type(leaf).__name__}; pass arrays of JAX or NumPy"
        ) from error


def largest_batches(schedule: Schedule, places: np.ndarray) -> dict[int, int]:
    """Returns the rows of the largest batch of each type.

    Args:
        schedule: A schedule.
        places: The type that runs in place of each recorded type; ``[T] int32``.

    Returns:
        Rows by type that runs.
    """
    largest: dict[int, int] = {}
    sizes = np.diff(schedule.batch_start).tolist()
    types = places[schedule.batch_type].tolist()
    for t, rows in zip(types, sizes, strict=True):
        largest[t] = max(largest.get(t, 0), rows)
    return largest
