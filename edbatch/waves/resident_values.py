"""Arenas with the values of instances in flight, which stay on the device."""

from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Sharding

from edbatch.compilation.tiered_function import TieredFunction
from edbatch.executor.arenas import Arenas
from edbatch.graph.type_table import TypeTable
from edbatch.waves.value_rows import ValueRows

_FULL = 0.75  # share of an arena in use above which a larger arena replaces it

Rows = dict[int, int]  # array kind -> rows of its arena


def few_rows(size: int) -> int:
    """Returns the limit of rows that are moved within an arena, zero row included.

    Args:
        size: Rows of the arena.

    Returns:
        An eighth of them, at least one.
    """
    return max(1, size // 8)


def _is_in_place(rows: np.ndarray) -> bool:
    """Returns whether rows, in their new order from row 1 on, do not move."""
    return np.array_equal(rows, np.arange(1, len(rows) + 1))


class ResidentValues:
    """Arenas, and the assignment of values to their rows.

    Args:
        types: The model's types.
        move: The compiled function that moves rows into other arenas.
        shift: The compiled function that moves few rows within their arenas.

    Attributes:
        rows: Assignment of values to rows.
        arenas: The arenas.
        moves: How often rows were moved to make room.
        sharding: Sharding of the arenas if the parameters are committed to a device.
            Without it the first program would return committed arenas, and would be
            compiled again for them.
    """

    def __init__(
        self, types: TypeTable, move: TieredFunction, shift: TieredFunction
    ) -> None:
        self.rows = ValueRows()
        self.arenas: Arenas = {}
        self.moves = 0
        self.sharding: Sharding | None = None
        self._types, self._move, self._shift = types, move, shift

    def make_room(
        self, needed: Callable[[], Rows], free: Callable[[], None]
    ) -> tuple[Rows, Rows]:
        """Compacts the rows in use if a wave does not fit otherwise.

        Args:
            needed: Returns the rows that arenas currently need for the wave.
            free: Frees rows of unreachable values.

        Returns:
            The rows that arenas need afterwards, and the rows that they should have:
            for an arena that would be nearly full, more than it has now.
        """
        rows = needed()
        sizes = {kind: len(arena) for kind, arena in self.arenas.items()}
        if all(rows.get(kind, 0) <= size for kind, size in sizes.items()):
            return rows, rows
        free()
        moved = self.rows.compact()
        if not all(map(_is_in_place, moved.values())):
            self._pack(moved, sizes)
        compact = needed()
        wanted = dict(compact)
        for kind, size in sizes.items():
            if compact.get(kind, 0) > _FULL * size:
                wanted[kind] = max(rows[kind], size + 1)
        return compact, wanted

    def _pack(self, moved: Mapping[int, np.ndarray], sizes: Mapping[int, int]) -> None:
        """Moves the rows in use to the beginning of their arenas."""
        few = {kind: few_rows(sizes.get(kind, 0)) for kind in moved}
        if all(len(own) < few[kind] for kind, own in moved.items()):
            self._shift_few(moved, sizes)
        else:
            self._take_over(moved, sizes)

    def is_half_full(self) -> bool:
        """Whether values, including freed ones, take up over half of some arena."""
        ends = self.rows.next_row
        return any(2 * ends[kind] > len(own) for kind, own in self.arenas.items())

    def grow(self, sizes: Mapping[int, int]) -> None:
        """Creates or grows arenas to some sizes; values keep their rows.

        Args:
            sizes: Rows by array kind.
        """
        arenas = self.arenas
        if any(len(arena) < sizes[kind] for kind, arena in arenas.items()):
            same = {k: np.arange(1, len(a), dtype=np.int32) for k, a in arenas.items()}
            self._take_over(same, sizes)
        for kind, size in sizes.items():
            if kind not in self.arenas:
                self.arenas[kind] = self.new_arena(kind, size)

    def new_arena(self, kind: int, size: int) -> Array:
        """Returns an arena of zeros.

        Args:
            kind: Its array kind.
            size: Its rows.

        Returns:
            The arena, ``[size, ...]``.
        """
        aval = self._types.avals[kind]
        return jnp.zeros((size, *aval.shape), aval.dtype, device=self.sharding)

    def _shift_few(
        self, moved: Mapping[int, np.ndarray], sizes: Mapping[int, int]
    ) -> None:
        """Moves few rows within their arenas, and copies no other rows."""
        self.moves += 1
        if not any(map(len, moved.values())):
            return
        rows = {}
        for kind, size in sizes.items():
            rows[kind] = np.zeros(few_rows(size), np.int32)
            rows[kind][1 : len(moved[kind]) + 1] = moved[kind]
        self.arenas = self._shift(self.arenas, rows)

    def _take_over(
        self, moved: Mapping[int, np.ndarray], sizes: Mapping[int, int]
    ) -> None:
        """Replaces the arenas by new ones of some sizes that begin with given rows."""
        rows = {}
        for kind in self.arenas:
            rows[kind] = np.zeros(sizes[kind], np.int32)
            rows[kind][1 : len(moved[kind]) + 1] = moved[kind]
        self.arenas = self._move(self.arenas, rows)
        self.moves += 1
