"""A wave as a pytree for its compiled program, and the functions to compile."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax import Array, lax

from edbatch.cell.rows import take_rows
from edbatch.executor.arenas import Arenas
from edbatch.executor.base import Prepared
from edbatch.executor.choice import executor_of
from edbatch.executor.program import ProgramShape, Tier
from edbatch.graph.output_tree import ResultShape
from edbatch.plan.keys import give_keys
from edbatch.plan.run import take_results
from edbatch.stream.stream import Stream
from edbatch.target import Option


@dataclass(frozen=True)
class WaveShape:
    """Static shape of a wave program.

    Attributes:
        program: Loops and arenas.
        length: Integers of the records.
        steps: Passes over the loops.
        fetched: Array kinds of values that can be returned, and how many of each.
    """

    program: ProgramShape
    length: int
    steps: int
    fetched: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """Number of integers of a wave."""
        trips = self.steps * len(self.program.loops)
        return self.length + trips + 1 + sum(count for _, count in self.fetched)


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, eq=False)
class Wave:
    """A wave, padded to the sizes of a program. A pytree.

    Attributes:
        shape: The static part.
        integers: The records of its chunks, the iterations of each loop in each step,
            the number of steps, and the rows to fetch of each array kind, concatenated
            so that they need one transfer. ``[shape.size] int32``.
        pools: External inputs by array kind, ``[rows, ...]``; row 0 is zero.
    """

    shape: WaveShape
    integers: Any
    pools: dict[int, Any]

    def tree_flatten_with_keys(self) -> tuple[tuple[Any, ...], Any]:
        """Splits the wave into named arrays and the static part."""
        kinds = tuple(sorted(self.pools))
        names = map(jax.tree_util.GetAttrKey, ("integers", "pools"))
        arrays = self.integers, tuple(self.pools[kind] for kind in kinds)
        return tuple(zip(names, arrays, strict=True)), (self.shape, kinds)

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """Splits the wave into arrays and the static part; runs in every call."""
        kinds = tuple(sorted(self.pools))
        pools = tuple(self.pools[kind] for kind in kinds)
        return (self.integers, pools), (self.shape, kinds)

    @classmethod
    def tree_unflatten(cls, static: Any, arrays: tuple[Any, ...]) -> "Wave":
        """Rebuilds a wave from its parts."""
        (shape, kinds), (integers, pools) = static, arrays
        return cls(shape, integers, dict(zip(kinds, pools, strict=True)))

    def in_tier(self, tier: Tier) -> "Wave":
        """Returns the wave for another tier of programs; see `Plan.in_tier`."""
        program = self.shape.program
        if program.options.tier == tier:
            return self
        program = program.with_options(tier=tier)
        return replace(self, shape=replace(self.shape, program=program))

    def compiler_options(self) -> dict[str, Option]:
        """Returns the XLA options for the program of its tier."""
        return self.shape.program.compiler_options()

    def static_sizes(self) -> dict[str, Any]:
        """Returns by name the program's sizes and options that shapes do not show."""
        program = self.shape.program
        return {
            "the number of loops": len(program.loops),
            "rows of arenas": dict(program.arena_rows),
            "values that can be asked for": dict(self.shape.fetched),
            "options": program.options,
        }


def run_wave(
    prepared: Prepared, arenas: Arenas, wave: Wave, rng: Any = None
) -> tuple[Arenas, dict[int, Array]]:
    """Runs a wave on the arenas of the waves before it.

    Args:
        prepared: The packed parameters.
        arenas: Values by array kind, ``[rows, ...]``; to be donated.
        wave: The wave.
        rng: The key from which the keys of nodes are derived, if any.

    Returns:
        The arenas with the values of the wave, and the values that were asked for, by
        array kind, ``[n, ...]``.
    """
    shape = wave.shape
    program, pools = give_keys(shape.program, wave.pools, rng)
    integers, loops = wave.integers, len(program.loops)
    at = shape.length + shape.steps * loops
    trips = integers[shape.length : at].reshape(shape.steps, loops)
    stream = Stream(integers[: shape.length], trips, integers[at])
    executor = executor_of(program.options.target)
    arenas = executor.run(program, prepared, arenas, pools, stream)
    fetched = {}
    at += 1
    for kind, count in shape.fetched:
        fetched[kind] = take_rows(arenas[kind], integers[at : at + count])
        at += count
    return arenas, fetched


def move_rows(arenas: Arenas, rows: dict[int, Array]) -> Arenas:
    """Copies rows to the beginning of new arenas.

    Args:
        arenas: Values by array kind.
        rows: By array kind, the source row of each row of the new arena; ``[n] int32``.

    Returns:
        The new arenas, ``[n, ...]`` each.
    """
    return {kind: take_rows(arenas[kind], own) for kind, own in rows.items()}


def shift_rows(arenas: Arenas, rows: dict[int, Array]) -> Arenas:
    """Moves few rows to the beginning of their arenas.

    Args:
        arenas: Values by array kind; to be donated.
        rows: By array kind, the source row of each of the first rows; ``[n] int32``.

    Returns:
        The arenas.
    """
    return {
        kind: lax.dynamic_update_slice_in_dim(arena, take_rows(arena, rows[kind]), 0, 0)
        for kind, arena in arenas.items()
    }


def collect(
    arenas: Arenas,
    pools: Arenas,
    shape: ResultShape,
    rows: Sequence[Array],
    lengths: Sequence[Array],
) -> Any:
    """Gathers the results of a minibatch.

    Args:
        arenas: Values by array kind.
        pools: External inputs among the results, by array kind; row 0 is zero.
        shape: The static part of the result.
        rows: Padded rows per leaf.
        lengths: Padded lengths per list.

    Returns:
        The model's pytree with a leading axis over instances.
    """
    return shape.assemble(take_results(shape, rows, arenas, pools), lengths)
