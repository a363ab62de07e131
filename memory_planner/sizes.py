"""Widths of chunks and sizes of buckets: every rounding that edbatch does.

*Widths.* A compiled program runs operations of fixed width only, so a batch of n nodes
is cut into chunks whose widths come from a short list; only the last chunk can hold
padding. Running a chunk costs about as much as ``chunk_overhead`` rows more than its
width (weights are read again, loops and dispatch are paid); the cut minimises the sum.
Measured on a CPU with two cores, tree-LSTM at hidden 128 and 256 on parse trees, as the
forward pass relative to a program with exact widths: powers of two from 8 to 512 with
an overhead of 16 rows 1.15 and 1.07; the default below 1.10 and 1.04. More widths cost
compile time.

*Buckets.* Arrays whose length depends on the minibatch are padded to a bucket, so that
one compiled program serves many minibatches. A model keeps the buckets that it has
compiled: a plan goes into the smallest one that holds it unless that wastes more than
``max_waste`` times its own size. A new bucket adds ``headroom`` to what is needed and
is at least as large as the one it replaces, so a stream of similar minibatches settles
after one or two compilations. What is paid for an oversized bucket is memory and a
longer transfer of indices, not time on the device: padding is never executed.
"""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from edbatch.arguments import check_number, list_of
from edbatch.errors import PlanError, shown
from edbatch.target import CPU, Target

WIDEST = 2**16  # of widths, in rows; the cut is planned for four times as many


@dataclass(frozen=True)
class Sizes:
    """How minibatches are rounded.

    The defaults of the first two suit CPUs; where other devices run a program, these
    take the place of the defaults (`on`).

    Attributes:
        widths: Widths that chunks may have, in rows, ascending.
        chunk_overhead: Cost of running one more chunk, in rows.
        headroom: A new bucket is this many times larger than what is needed.
        max_waste: A bucket may be this many times larger than what is needed.

    Raises:
        PlanError: An option is of another type, or out of range.

    Example:
        >>> Sizes(widths=(8, 64), chunk_overhead=4).cut(70)
        [64, 8]
    """

    widths: tuple[int, ...] = CPU.widths
    chunk_overhead: float = CPU.chunk_overhead
    headroom: float = 1.25
    max_waste: float = 8.0

    def __post_init__(self) -> None:
        rule = "of Sizes the option"
        for name in ("chunk_overhead", "headroom", "max_waste"):
            check_number(PlanError, f"{rule} {name}", getattr(self, name))
        given = list_of(PlanError, f"{rule} widths", self.widths, "a number of rows")
        for each in given:
            check_number(PlanError, "a width of Sizes", each, whole=True)
        widths = tuple(sorted({int(each) for each in given}))
        object.__setattr__(self, "widths", widths)
        if not widths or not 1 <= widths[0] <= widths[-1] <= WIDEST:
            raise PlanError(
                f"widths must be numbers of rows from 1 to {WIDEST:,} but are"
                f" {shown(widths)}; give for example widths=(8, 64, 512)"
            )
        if self.chunk_overhead < 0:
            raise PlanError(
                "the cost of a chunk must be 0 or more rows but chunk_overhead is"
                f" {self.chunk_overhead}; leave it out for the default"
            )
        if self.headroom < 1 or self.max_waste < self.headroom:
            raise PlanError(
                "buckets need 1 <= headroom <= max_waste but have headroom"
                f" {self.headroom} and max_waste {self.max_waste}"
            )

    def on(self, target: Target) -> "Sizes":
        """Returns the sizes for a kind of device.

        Args:
            target: The device.

        Returns:
            The sizes, with the target's widths and overhead in place of the defaults.

        Example:
            >>> from edbatch.target import CPU
            >>> wide = replace(CPU, widths=(32, 256))
            >>> Sizes().on(wide).widths, Sizes(widths=(8,)).on(wide).widths
            ((32, 256), (8,))
        """
        own = {
            name: getattr(target, name)
            for name in ("widths", "chunk_overhead")
            if getattr(self, name) == getattr(CPU, name)
        }
        return replace(self, **own)

    def cut(self, rows: int) -> list[int]:
        """Returns the chunk widths, descending, into which a batch is cut.

        Args:
            rows: Number of nodes in the batch, at least 1.

        Returns:
            Widths that sum to at least ``rows``; only the last can exceed what is
            left.
        """
        table = self.cut_table()
        chunks = []
        while rows > 0:
            chunks.append(int(table[min(rows, len(table) - 1)]))
            rows -= chunks[-1]
        return chunks

    def cut_table(self) -> np.ndarray:
        """Returns the first (largest) chunk's width by number of remaining rows.

        Returns:
            ``[L + 1] int32``; more than L rows start with the largest width.
        """
        return _cut_table(self.widths, self.chunk_overhead)


@cache
def _cut_table(widths: tuple[int, ...], overhead: float) -> np.ndarray:
    """Dynamic programme over the number of rows; ties go to the larger width."""
    limit = 4 * widths[-1]
    cost = np.zeros(limit + 1)
    largest = np.zeros(limit + 1, np.int32)
    for rows in range(1, limit + 1):
        options = [
            (cost[max(0, rows - w)] + overhead + w, -w)
            for w in widths
            if rows <= w or largest[rows - w] <= w
        ]
        cost[rows], negative = min(options)
        largest[rows] = -negative
    largest[limit] = widths[-1]
    return largest
