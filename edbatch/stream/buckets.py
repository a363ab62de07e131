"""Buckets: the padded static sizes that a model's programs are compiled for."""

import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from edbatch.graph.array_kinds import ArrayKinds
from edbatch.memory_planner.sizes import Sizes, Widths
from edbatch.stream.loop import Loop, order_loops
from edbatch.stream.smallest_rows import smallest_rows
from edbatch.target import CPU, Target
from edbatch.without_lock import WithoutLock

Needs = dict[str, int]  # a named dimension -> its size

INSTANCES = "instances"  # the dimension that counts the instances of a minibatch
CHUNKS = "chunks"  # the dimension that counts chunks, for targets that use a switch


@dataclass(frozen=True)
class Bucket:
    """Sizes of one program.

    Attributes:
        loops: Loops of the program.
        sizes: Size of each named dimension.
        target: The kind of device that the program is compiled for.
    """

    loops: tuple[Loop, ...]
    sizes: Needs
    target: Target = CPU

    def __hash__(self) -> int:
        """Returns the hash, cached because programs are looked up by bucket."""
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the cached hash, which differs between processes."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def _hash(self) -> int:
        return hash((self.loops, self.target))

    @cached_property
    def arena_rows(self) -> tuple[tuple[int, int], ...]:
        """Array kind and rows of each arena, in ascending order of kinds."""
        return tuple(by_kind("arena", self.sizes).items())

    @cached_property
    def type_rows(self) -> tuple[tuple[int, int], ...]:
        """Type and maximum number of rows that its chunks compute, in type order."""
        return tuple(by_kind("rows", self.sizes).items())

    @cached_property
    def pool_rows(self) -> dict[int, int]:
        """Rows of the pool of each array kind."""
        return by_kind("pool", self.sizes)

    @cached_property
    def total(self) -> int:
        """The sum of all sizes."""
        return sum(self.sizes.values())

    @cached_property
    def _loop_set(self) -> frozenset[Loop]:
        return frozenset(self.loops)

    def holds(self, loops: set[Loop], needs: Needs) -> bool:
        """Whether a minibatch with these loops and sizes fits."""
        if not loops <= self._loop_set:
            return False
        return all(self.sizes.get(name, -1) >= size for name, size in needs.items())

    def waste(self, needs: Needs, scale: float = 1.0) -> float:
        """Ratio of the bucket's total size to the needed sizes scaled by `scale`."""
        needed = 0.0
        for size in needs.values():
            needed += max(scale * size, _SMALLEST)
        return self.total / max(1, needed)


_SMALLEST = 64  # dimensions below this size are not worth separate buckets
_FEW_CHUNKS = 8  # kept small, because even an empty chunk takes time


def by_kind(prefix: str, sizes: Needs) -> dict[int, int]:
    """Returns the sizes of dimensions named by a prefix and a number.

    Args:
        prefix: The prefix.
        sizes: The size of each dimension.

    Returns:
        The sizes by number, in ascending order of the numbers.

    Example:
        >>> by_kind("arena", {"arena 2": 8, "stream": 64, "arena 0": 16})
        {0: 16, 2: 8}
    """
    found = [name.split() for name in sizes if name.startswith(prefix + " ")]
    return {
        kind: sizes[f"{prefix} {kind}"] for kind in sorted(int(k) for _, k in found)
    }


def larger(sizes: Needs, others: Needs) -> Needs:
    """Returns the larger size of each dimension.

    Args:
        sizes: The size of each dimension.
        others: More sizes, possibly of other dimensions.

    Returns:
        The larger size of every dimension that occurs in either.

    Example:
        >>> larger({"stream": 64, "steps": 8}, {"steps": 16, "fetch 0": 2})
        {'stream': 64, 'steps': 16, 'fetch 0': 2}
    """
    return {k: max(sizes.get(k, 0), others.get(k, 0)) for k in sizes | others}


def round_instances(count: int) -> int:
    """Rounds a number of instances up to the number that a program is compiled for.

    Args:
        count: Instances, at least 1.

    Returns:
        A power of two from 8 to 64; above 64, a multiple of an eighth of a power of
        two. There are few such numbers, so minibatches of all sizes share few programs,
        and the usual minibatch sizes are among them.

    Example:
        >>> [round_instances(each) for each in (1, 8, 9, 64, 65, 100, 256)]
        [8, 8, 16, 64, 72, 104, 256]
    """
    power = 1 << (count - 1).bit_length()
    grain = power if power <= 64 else power // 16
    return max(8, -(-count // grain) * grain)


def _least(name: str, kinds: ArrayKinds | None) -> int:
    """Minimum size of a dimension other than `INSTANCES`."""
    if name == CHUNKS:
        return _FEW_CHUNKS
    if kinds is None:
        return _SMALLEST
    return smallest_rows(kinds, name, _SMALLEST)


class BucketStore(WithoutLock):
    """The buckets of one model, shared by the threads that plan for it.

    Attributes:
        sizes: Settings that control how buckets are chosen.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._buckets: list[Bucket] = []
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._buckets)

    def fit(
        self,
        loops: set[Loop],
        needs: Needs,
        least: Callable[[tuple[Loop, ...]], Needs] = lambda _: {},
        target: Target = CPU,
        scale: float = 1.0,
        widths: Callable[[int], Widths] | None = None,
        kinds: ArrayKinds | None = None,
    ) -> Bucket:
        """Returns the smallest bucket that holds a minibatch, creating it if needed.

        Where instances are counted (`INSTANCES`), a new bucket holds as many as
        `round_instances` returns, and its other dimensions grow by the same factor.

        Args:
            loops: Loops that the minibatch uses.
            needs: Size that the minibatch needs in each dimension.
            least: Returns the sizes that a program with the given loops needs even if
                none of them iterates.
            target: The kind of device that will run the minibatch.
            scale: Ratio of the size of the minibatches that the bucket is meant for to
                the size of this one; at least 1.
            widths: Returns the widths of a type; None if every type has all widths of
                ``sizes``.
            kinds: The model's array kinds; pools and arenas with large rows get fewer
                rows. None if no kind has large rows.

        Returns:
            The bucket.
        """
        with self.lock:
            found = self._smallest(loops, needs, target, scale)
            if found is None:
                found = self._with_instances(loops, needs, target)
                found = found or self._new(
                    loops, needs, least, target, scale, widths, kinds
                )
                if found in self._buckets:  # much too large, but its program exists
                    return self._buckets[self._buckets.index(found)]
                self._buckets.append(found)
            return found

    def _smallest(
        self, loops: set[Loop], needs: Needs, target: Target, scale: float = 1.0
    ) -> Bucket | None:
        fitting = [
            each
            for each in self._buckets
            if each.target == target
            and each.holds(loops, needs)
            and each.waste(needs, scale) <= self.sizes.max_waste
        ]
        if len(fitting) < 2:
            return fitting[0] if fitting else None
        # Prefer buckets that hold minibatches of the scaled size.
        scaled = {name: math.ceil(scale * size) for name, size in needs.items()}
        return min(
            fitting,
            key=lambda each: (
                not each.holds(loops, scaled),
                each.total,
            ),
        )

    def _with_instances(
        self, loops: set[Loop], needs: Needs, target: Target
    ) -> Bucket | None:
        """A bucket that fits except for instances, with as many as needed; or None."""
        if INSTANCES not in needs:
            return None
        others = {name: size for name, size in needs.items() if name != INSTANCES}
        found = self._smallest(loops, others, target)
        if found is None:
            return None
        instances = round_instances(needs[INSTANCES])
        return replace(found, sizes=found.sizes | {INSTANCES: instances})

    def _new(
        self,
        loops: set[Loop],
        needs: Needs,
        least: Callable[[tuple[Loop, ...]], Needs],
        target: Target,
        scale: float,
        widths: Callable[[int], Widths] | None,
        kinds: ArrayKinds | None,
    ) -> Bucket:
        """A bucket with headroom that covers the sizes and loops of similar buckets.

        If the target has other buckets, the new one gets loops for all their types and
        slices: small minibatches use few of them, and each one different ones.
        """
        if INSTANCES in needs:
            scale *= round_instances(needs[INSTANCES]) / needs[INSTANCES]
        needs = {name: math.ceil(scale * size) for name, size in needs.items()}
        sizes = {
            name: size if name == INSTANCES else self._round(size, _least(name, kinds))
            for name, size in needs.items()
        }
        loops = set(loops)
        limit = self.sizes.max_waste
        known = [each for each in self._buckets if each.target == target]
        for other in known:
            if other.waste(needs) <= limit and sum(needs.values()) <= limit * sum(
                other.sizes.values()
            ):
                loops |= set(other.loops)
                for name, size in other.sizes.items():
                    sizes[name] = max(sizes.get(name, 0), size)
        complete = self._complete(loops, target, widths)
        if known:
            names = {name for each in known for name in each.sizes}
            for name in names - {INSTANCES, CHUNKS}:
                sizes.setdefault(name, _least(name, kinds))
            complete = self._all_that_fit(complete, known, sizes, target, widths)
        for name, size in least(complete).items():
            sizes[name] = max(sizes.get(name, 0), size)
        return Bucket(complete, sizes, target)

    def _complete(
        self,
        loops: set[Loop],
        target: Target,
        widths_of: Callable[[int], Widths] | None,
    ) -> tuple[Loop, ...]:
        """Adds loops that other minibatches of the same kind will use.

        A type that ran at some width has smaller remainders in other minibatches, and
        the headroom may require the next larger width.
        """
        everything = self.sizes.on(target).widths
        complete = set()
        for loop in loops:
            widths = widths_of(loop.type_id) if widths_of else everything
            largest = min(widths.index(loop.width) + 1, len(widths) - 1)
            complete |= {loop._replace(width=each) for each in widths[: largest + 1]}
        return order_loops(complete)

    def _all_that_fit(
        self,
        loops: Iterable[Loop],
        known: Iterable[Bucket],
        sizes: Needs,
        target: Target,
        widths_of: Callable[[int], Widths] | None,
    ) -> tuple[Loop, ...]:
        """Adds loops of all known types and slices, as wide as a type's rows allow."""
        everything = self.sizes.on(target).widths
        complete = set(loops)
        for loop in {*loops, *(each for other in known for each in other.loops)}:
            rows = sizes.get(f"rows {loop.type_id}", loop.width)
            for width in widths_of(loop.type_id) if widths_of else everything:
                if width <= rows:
                    complete.add(loop._replace(width=width))
                    complete.add(Loop(loop.type_id, width))
        return order_loops(complete)

    def _round(self, size: int, least: int) -> int:
        """Adds headroom; rounds up to a multiple of 1/16 of the next power of two."""
        size = max(least, math.ceil(size * self.sizes.headroom))
        grain = 1 << max(0, size.bit_length() - 4)
        return -(-size // grain) * grain
