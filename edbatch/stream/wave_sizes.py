"""Sizes of the programs that run waves: one bucket per model, which only grows.

A wave holds everything that the waiting instances have recorded since the previous
wave, so waves are small and many, and each has a different size. They share a program:
its sizes are powers of two that hold every wave so far twice over, and it has loops for
all types met so far. A wave that does not fit makes the program grow, which requires a
compilation; steady waves never do.

The pools of external inputs are the exception. Padding is copied to the device in each
wave, so a pool with large rows has a few sizes to choose from.
"""

import threading
from collections.abc import Collection, Hashable, Mapping

import numpy as np

from edbatch.cell.work import row_work
from edbatch.graph.type_table import TypeTable
from edbatch.memory_planner.sizes import Sizes, Widths
from edbatch.stream.buckets import Bucket, Needs, larger
from edbatch.stream.format import record_format
from edbatch.stream.loop import Loop, order_loops
from edbatch.stream.smallest_rows import smallest_rows
from edbatch.stream.type_widths import TypeBatches, choose_widths, widest
from edbatch.target import Target
from edbatch.without_lock import WithoutLock

_SMALLEST = {"stream": 1024, "steps": 16, "arena": 256, "pool": 64, "fetch": 16}
_SMALL_POOL = 2**17  # bytes; padding a pool up to this size costs nothing
_POOL_GROWTH = 8  # ratio of consecutive sizes of a large pool


class WaveSizes(WithoutLock):
    """Sizes of a model's wave programs, shared by the threads that run them.

    Args:
        types: The model's types, as they run.
        sizes: Widths to choose from, and the budget of loops.
        target: The kind of device.
    """

    def __init__(self, types: TypeTable, sizes: Sizes, target: Target) -> None:
        self._types = types
        self._sizes = sizes.on(target)
        self._results: dict[Hashable, int] = {}
        self.bucket = Bucket((), {}, target)
        self._proven = self.bucket
        self.lock = threading.Lock()

    def grow(
        self,
        batches: Mapping[int, int],
        needs: Needs,
        runs: Collection[int],
        least: Needs,
        *,
        takes: bool = True,
    ) -> Bucket:
        """Grows the sizes to hold a wave, or only plans the growth.

        Args:
            batches: The largest batch of each type in the wave, in rows.
            needs: Size that the wave needs in each dimension.
            runs: Types that may still run; the others have joined a family.
            least: Sizes of the program that the caller runs now; the result is at least
                as large.
            takes: Whether to adopt the result; if False, the sizes stay as they are
                until `adopt`.

        Returns:
            The sizes; the present ones if they hold the wave.
        """
        with self.lock:
            found = self._plan(batches, needs, runs, least)
            if takes:
                self.bucket = found
            return found

    def covers(self, types: Collection[int], needs: Needs) -> bool:
        """Tells whether the present program has run and has these types and sizes.

        Args:
            types: The types, as they run.
            needs: Minimum size of each dimension.

        Returns:
            Whether it has run, has loops for all these types, and is large enough.
        """
        with self.lock:
            known = {loop.type_id for loop in self.bucket.loops}
            is_large = self.bucket.holds(set(), needs)
            is_proven = self.bucket is self._proven
            return is_proven and is_large and known.issuperset(types)

    def is_current(self, bucket: Bucket) -> bool:
        """Tells whether a bucket is still the present one."""
        with self.lock:
            return self.bucket is bucket

    def adopt(self, bucket: Bucket, instead_of: Bucket) -> bool:
        """Adopts planned sizes, unless the sizes have changed in the meantime.

        Args:
            bucket: The planned sizes.
            instead_of: The sizes that were present when ``bucket`` was planned.

        Returns:
            Whether ``bucket`` is the present bucket now.
        """
        with self.lock:
            if self.bucket is instead_of:
                self.bucket = bucket
            return self.bucket is bucket

    def _plan(
        self,
        batches: Mapping[int, int],
        needs: Needs,
        runs: Collection[int],
        least: Needs,
    ) -> Bucket:
        """Returns sizes that hold a wave: the present ones if possible.

        The caller holds the lock.
        """
        own, widths = self.bucket.sizes, _widths_of(self.bucket)
        new = {t: rows for t, rows in batches.items() if t not in widths}
        if not new and self.bucket.holds(set(), larger(needs, least)):
            return self.bucket
        if new:
            kept = {t: each for t, each in widths.items() if t in runs}
            widths = kept | self._choose(new, widths)
        sizes = larger(own, least)
        for name, size in needs.items():
            floor = max(self._least(name), power_of_two(2 * size))
            sizes[name] = max(sizes.get(name, 0), floor)
        loops = order_loops(
            Loop(t, width) for t, own in widths.items() for width in own
        )
        self._hold_loops(loops, sizes)
        return Bucket(loops, sizes, self.bucket.target)

    def note_run(self, bucket: Bucket) -> None:
        """Records that a program of some sizes has run, so that they may be kept.

        Args:
            bucket: The sizes.
        """
        with self.lock:
            if self.bucket is not bucket:  # another thread has changed them since
                if not _holds(bucket, self._proven):
                    return
                if self.bucket is self._proven:  # reset after a program that failed
                    self.bucket = bucket
            self._proven = bucket

    def go_back(self, bucket: Bucket) -> None:
        """Restores the sizes of the last program that ran, after one that cannot run.

        Otherwise a cell that cannot be compiled would be in all later programs, even
        those of instances that do not call it.

        Args:
            bucket: The sizes of the program that cannot run.
        """
        with self.lock:
            if self.bucket is bucket:  # otherwise another thread has grown them since
                self.bucket = self._proven

    def pool_rows(self, kind: int, needed: int, most: int) -> int:
        """Returns the number of rows of a pool in a wave.

        Args:
            kind: The pool's array kind.
            needed: Rows that the wave needs.
            most: Rows of the pool in the program that runs the wave.

        Returns:
            Rows, one of a few different numbers.
        """
        row_bytes = self._types.kinds.row_bytes(kind)
        rows = self._least(f"pool {kind}")
        while rows < needed or (rows < most and rows * row_bytes <= _SMALL_POOL):
            rows *= _POOL_GROWTH
        return min(rows, most)

    def pool_sizes(self, kind: int, most: int) -> list[int]:
        """Returns all sizes that a pool may have in a wave.

        Args:
            kind: Its array kind.
            most: As for `pool_rows`.

        Returns:
            All possible results of `pool_rows`, ascending.
        """
        found = [self.pool_rows(kind, 1, most)]
        while found[-1] < most:
            found.append(self.pool_rows(kind, found[-1] + 1, most))
        return found

    def result_rows(self, name: Hashable, needed: int) -> int:
        """Returns the padded number of rows of a part of a result; it only grows.

        Args:
            name: Identifies the part, such as a list of a certain structure.
            needed: Rows that the part needs.

        Returns:
            A power of two.
        """
        with self.lock:
            if self._results.get(name, 0) < needed:
                self._results[name] = power_of_two(needed)
            return self._results.get(name, 1)

    def _choose(
        self, batches: Mapping[int, int], present: Mapping[int, Widths]
    ) -> dict[int, Widths]:
        """Chooses widths for batches of any size up to twice the largest one."""
        left = self._sizes.max_loops
        if left is None:
            return dict.fromkeys(batches, self._sizes.widths)
        left -= sum(len(each) - 1 for each in present.values())
        found = {}
        for t, rows in batches.items():
            size = 1 << np.arange(power_of_two(2 * rows).bit_length(), dtype=np.int64)
            node_type = self._types.types[t]
            work = max(1.0, row_work(node_type, self._types))
            most = widest(node_type, self._types)
            found[t] = TypeBatches(size, np.ones_like(size), work, most=most)
        return choose_widths(found, self._sizes, left)

    def _hold_loops(self, loops: tuple[Loop, ...], sizes: Needs) -> None:
        """Grows sizes to what loops read and write even if they never iterate."""
        for loop in loops:
            node_type = self._types.types[loop.type_id]
            least = {"stream": record_format(node_type, loop).least_stream}
            for kind in node_type.output_kinds:
                least[f"arena {kind}"] = loop.width + 1
            for kind in node_type.external_kinds:
                least[f"pool {kind}"] = 1
            for kind in node_type.operand_kinds:
                least[f"arena {kind}"] = max(least.get(f"arena {kind}", 0), 1)
            for name, size in least.items():
                sizes[name] = max(
                    sizes.get(name, 0), self._least(name), power_of_two(size)
                )

    def _least(self, name: str) -> int:
        return smallest_rows(self._types.kinds, name, _SMALLEST[name.split()[0]])


def power_of_two(size: int) -> int:
    """Returns the smallest power of two that is at least ``size``."""
    return 1 << max(0, size - 1).bit_length()


def _widths_of(bucket: Bucket) -> dict[int, Widths]:
    """Returns the widths of each type that has loops."""
    widths: dict[int, list[int]] = {}
    for loop in bucket.loops:
        widths.setdefault(loop.type_id, []).append(loop.width)
    return {t: tuple(sorted(own)) for t, own in widths.items()}


def _holds(bucket: Bucket, other: Bucket) -> bool:
    """Whether ``bucket`` is at least as large as ``other`` and has all its loops."""
    is_large = all(bucket.sizes.get(name, -1) >= n for name, n in other.sizes.items())
    return is_large and {*bucket.loops} >= {*other.loops}
