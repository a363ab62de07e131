"""Assigns values of instances in flight to arena rows, and reclaims freed rows.

New values take the next rows of their arena. Rows of instances that have ended, and of
values that are unreachable (`edbatch.waves.long_run`), are reused when an arena is
full: the rows in use move to its beginning, as a copying garbage collector moves
objects (Cheney, 1970). They move to a new arena, or within the arena if they are few.
So the rows of a wave stay contiguous, as its chunks require, and a row costs O(1) moves
on average, since an arena that would stay more than three quarters full is enlarged.

Values are numbered in the order in which they were recorded, and numbers are never
reused. The table of rows begins at the oldest value in use.
"""

from collections.abc import Sequence

import numpy as np


class ValueRows:
    """The rows of values, and which values are in use.

    Attributes:
        first: Number of the first value in the table.
        count: Number of values in the table.
        next_row: The next free row of each array kind's arena; ``[K] int64``.
    """

    def __init__(self) -> None:
        self.first = 0
        self.count = 0
        self.next_row = np.ones(0, np.int64)
        self._row = np.zeros(1024, np.int32)
        self._kind = np.zeros(1024, np.int32)
        self._used = np.zeros(1024, np.bool_)

    def __len__(self) -> int:
        return self.count

    @property
    def end(self) -> int:
        """Number of the next value."""
        return self.first + self.count

    @property
    def in_use(self) -> int:
        """Number of values in use that have a row."""
        return int((self._used & (self._row >= 0))[: self.count].sum())

    def of(self, values: Sequence[int] | np.ndarray) -> np.ndarray:
        """Returns the rows of values, -1 where there is none yet; ``[n] int32``."""
        found: np.ndarray = self._row[np.asarray(values, np.int64) - self.first]
        return found

    def are_used(self, values: np.ndarray) -> np.ndarray:
        """Returns which values are in use, with or without rows; ``[n] bool``."""
        at = values - self.first
        found: np.ndarray = self._used[np.maximum(at, 0)] & (at >= 0)
        return found

    def tables(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the row and the array kind of each value in the table; ``[n] int32``.

        They are -1 if a value has no row yet. Both are views: the caller writes the
        entries of values that get rows, and must not keep the views.
        """
        return self._row[: self.count], self._kind[: self.count]

    def append(self, count: int) -> None:
        """Adds values without rows.

        Args:
            count: Number of values.
        """
        begin, end = self.count, self.count + count
        if end > len(self._row):
            begin, end = self._make_space(count)
        self._used[begin:end] = True
        self._row[begin:end] = self._kind[begin:end] = -1
        self.count = end

    def kinds_up_to(self, count: int) -> None:
        """Extends `next_row` to `count` array kinds."""
        more = count - len(self.next_row)
        if more > 0:
            self.next_row = np.concatenate([self.next_row, np.ones(more, np.int64)])

    def free(self, first: int, last: int) -> None:
        """Frees the rows of consecutive values, from `first` to before `last`."""
        self._used[max(0, first - self.first) : max(0, last - self.first)] = False

    def free_some(self, values: np.ndarray) -> None:
        """Frees the rows of some values that are in use; ``[n] int64``."""
        self._used[values - self.first] = False

    def forget(self, values: np.ndarray) -> None:
        """Frees the rows of some values, which must not be read any more."""
        self.free_some(values)
        self._row[values - self.first] = -1

    def keep(self, values: np.ndarray) -> None:
        """Takes some values back into use that were freed just before."""
        self._used[values - self.first] = True

    def compact(self) -> dict[int, np.ndarray]:
        """Moves the rows in use to the beginning of each arena.

        Returns:
            The old rows by array kind, in their new order from row 1 on.
        """
        self._drop_unused()
        used = np.flatnonzero(self._used[: self.count])
        kinds = self._kind[used]
        moved = {}
        for kind in range(len(self.next_row)):
            own = used[kinds == kind]
            moved[kind] = self._row[own].copy()
            self._row[own] = np.arange(1, len(own) + 1, dtype=np.int32)
            self.next_row[kind] = len(own) + 1
        return moved

    def _drop_unused(self) -> None:
        """Drops the values before the first one in use from the table."""
        used = self._used[: self.count]
        drop = int(used.argmax()) if used.any() else self.count
        if drop:
            rest = self.count - drop
            for each in (self._row, self._kind, self._used):
                each[:rest] = each[drop : self.count].copy()
            self.first += drop
            self.count = rest

    def _make_space(self, more: int) -> tuple[int, int]:
        self._drop_unused()
        end = self.count + more
        if 2 * end > len(self._row):
            self._row, self._kind, self._used = (
                np.concatenate([each[: self.count], np.zeros(2 * end, each.dtype)])
                for each in (self._row, self._kind, self._used)
            )
        return self.count, end
