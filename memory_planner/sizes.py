"""Widths of chunks and sizes of buckets: all the rounding of sizes in edbatch.

*Widths.* A compiled program runs operations of fixed width only, so a batch of n nodes
is cut into chunks whose widths come from a short list; only the last chunk can have
padding. A chunk costs about as much as its width plus ``chunk_overhead`` rows (it reads
the weights again, and pays for the loop and the dispatch); the cut minimises the sum.
Measured on a CPU with two cores, with tree-LSTMs of hidden size 128 and 256 on parse
trees: the forward pass takes 1.15 and 1.07 times as long as with exact widths for
powers of two from 8 to 512 and an overhead of 16 rows, and 1.10 and 1.04 times as long
for the default below. More widths cost compile time, one loop each for every type. So a
type gets only the widths of the list that pay off (`edbatch.stream.type_widths`), and
all types of a model together have at most ``max_loops`` widths beyond one each.

*Buckets.* Arrays whose length depends on the minibatch are padded to a bucket, so that
one compiled program serves many minibatches. A model keeps the buckets that it has
compiled: a plan goes into the smallest one that holds it, unless that is more than
``max_waste`` times what the plan needs. A new bucket is ``headroom`` times what is
needed and at least as large as the one it replaces, so a stream of similar minibatches
settles after one or two compilations. An oversized bucket costs memory and a longer
transfer of indices, but no time on the device: padding is never executed.
"""

from dataclasses import dataclass, replace

import numpy as np

from edbatch.arguments import check_number, list_of
from edbatch.errors import PlanError, shown
from edbatch.kernel import kernel
from edbatch.target import CPU, Target

Widths = tuple[int, ...]  # ascending

WIDEST = 2**16  # largest width, in rows; cuts are planned for four times as many


@dataclass(frozen=True)
class Sizes:
    """Sizes to which minibatches are rounded.

    The defaults of ``widths`` and ``chunk_overhead`` are those of CPUs. On another
    device, the defaults of that device replace them (`on`). Values set by the user
    apply to every device.

    Attributes:
        widths: Widths that chunks may have, in rows, ascending.
        chunk_overhead: Cost of running one more chunk, in rows.
        max_loops: Maximum number of (type, width) pairs of a model, beyond one for each
            type; None for all widths for all types.
        headroom: Ratio of the size of a new bucket to the size needed.
        max_waste: Maximum ratio of the size of a bucket to the size needed.

    Raises:
        PlanError: An option has the wrong type, or is out of range.

    Example:
        >>> Sizes(widths=(8, 64), chunk_overhead=4).cut(70)
        [64, 8]
    """

    widths: tuple[int, ...] = CPU.widths
    chunk_overhead: float = CPU.chunk_overhead
    max_loops: int | None = 64
    headroom: float = 1.25
    max_waste: float = 8.0

    def __post_init__(self) -> None:
        rule = "of Sizes the option"
        for name in ("chunk_overhead", "headroom", "max_waste"):
            check_number(PlanError, f"{rule} {name}", getattr(self, name))
        if self.max_loops is not None:
            check_number(PlanError, f"{rule} max_loops", self.max_loops, 0, whole=True)
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
        """Returns the sizes for a device.

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
            Widths that sum to at least ``rows``; only the last one can exceed the rows
            that are left.
        """
        table = cut_tables((self.widths,), self.chunk_overhead)[0]
        chunks = []
        while rows > 0:
            chunks.append(int(table[min(rows, len(table) - 1)]))
            rows -= chunks[-1]
        return chunks


def cut_tables(
    widths: tuple[Widths, ...], overhead: float | tuple[float, ...]
) -> np.ndarray:
    """Returns the first (largest) chunk's width by number of remaining rows.

    Args:
        widths: ``U`` lists of widths, each ascending.
        overhead: Cost of running one more chunk, in rows; one for all lists, or one
            per list.

    Returns:
        ``[U, L + 1] int32``; batches of L rows or more begin with the largest width.
    """
    limit = 4 * max(each[-1] for each in widths)
    costs = overhead if isinstance(overhead, tuple) else (overhead,) * len(widths)
    pairs = zip(widths, costs, strict=True)
    return np.stack([_cut(np.array(own), cost, limit)[1] for own, cost in pairs])


def cut_costs(widths: Widths, overhead: float, limit: int) -> np.ndarray:
    """Returns the cost of a batch by its number of rows.

    Args:
        widths: Widths of chunks.
        overhead: Cost of running one more chunk, in rows.
        limit: Rows of the largest batch.

    Returns:
        Rows that the best cut computes, plus the overhead of its chunks; ``[limit + 1]
        float64``.
    """
    costs: np.ndarray = _cut(np.array(widths), overhead, limit)[0]
    return costs


@kernel
def _cut(widths, overhead, limit):
    """Finds the best cut of batches of up to ``limit`` rows, by dynamic programming.

    Returns the cost, ``[limit + 1] float64``, and the width of the first chunk, which
    is the largest, ``[limit + 1] int32``; ties go to the larger width.
    """
    cost = np.zeros(limit + 1)
    largest = np.zeros(limit + 1, np.int32)
    for rows in range(1, limit + 1):
        least = np.inf
        for k in range(len(widths) - 1, -1, -1):
            width = widths[k]
            if rows <= width or largest[rows - width] <= width:
                own = cost[max(0, rows - width)] + overhead + width
                if own < least:
                    least = own
                    largest[rows] = width
        cost[rows] = least
    largest[limit] = widths[-1]
    return cost, largest
