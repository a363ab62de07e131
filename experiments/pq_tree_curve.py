"""How does the time of PQ-tree reductions grow with the leaves and the subsets' sizes?

Subsets are drawn in several ways until their sizes add up to ten times the number of
leaves; all of them reduce one tree. If the cost is linear, the last column, the time
per leaf, subset and element, is constant over the rows of a kind.

    short, medium, long   intervals of a hidden order, of up to 5, up to 200, or up to
                          half of all leaves: all are accepted
    nested                the leaves halved repeatedly, in random order: accepted
    mixed                 alternately an interval of up to 20 leaves and as many random
                          leaves: most are refused
    refused               all are refused, at the maximum cost of a refusal: three
                          leaves, each below a path of up to 1000 nodes that are visited
                          in vain

The second table is for many small trees, each made, reduced by three subsets and read.

    python experiments/pq_tree_curve.py
    python experiments/pq_tree_curve.py --most-leaves 1000000 --kinds short,mixed

Takes 15 seconds on one core. A node fills a cache line, so times per element also grow
when a tree no longer fits into the cache.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from edbatch.memory_planner.pq_reduction import frontier, new_tree, reduce

from arguments import option, parse_arguments

ROW = "{:8} {:>8} {:>8} {:>9} {:>9} {:>10} {:>15}"
HEAD = ROW.format("kind", "n", "m", "s", "accepted", "ms", "ns per n+m+s")
SMALL_ROW = "{:>8} {:>12} {:>12}"
SMALL_HEAD = SMALL_ROW.format("n", "us per tree", "ns per leaf")
SMALL = (8, 64, 512)


@dataclass(frozen=True)
class Arguments:
    kinds: str = option(
        "short,medium,long,nested,mixed,refused", "Kinds of subsets, joined by commas."
    )
    most_leaves: int = option(100_000, "Leaves of the largest tree, 10 or more.")
    size: int = option(10, "Sum of the subsets' sizes, per leaf.")
    rounds: int = option(5, "How often everything is timed; the least counts.")
    seed: int = option(0, "Seed of the subsets.")


@dataclass(frozen=True)
class Subsets:
    """M subsets of S elements in total, to be reduced in this order.

    The first ``prepare`` subsets only prepare the tree and are not timed.
    """

    start: np.ndarray  # [M + 1] int64
    leaves: np.ndarray  # [S] int32
    prepare: int = 0

    @classmethod
    def of(cls, subsets: Sequence[np.ndarray], prepare: int = 0) -> "Subsets":
        start = np.cumsum([0, *map(len, subsets)])
        return cls(start, np.concatenate(subsets).astype(np.int32), prepare)


Draw = Callable[[np.random.Generator, int, int], Subsets]


def interval(rng: np.random.Generator, order: np.ndarray, longest: int) -> np.ndarray:
    """Draws an interval of the order, shuffled."""
    length = rng.integers(2, max(2, min(longest, len(order))), endpoint=True)
    first = rng.integers(0, len(order) - length, endpoint=True)
    return rng.permutation(order[first : first + length])


def intervals(longest: Callable[[int], int]) -> Draw:
    def draw(rng: np.random.Generator, n: int, size: int) -> Subsets:
        order = rng.permutation(n)
        found: list[np.ndarray] = []
        while size > 0:
            found.append(interval(rng, order, longest(n)))
            size -= len(found[-1])
        return Subsets.of(found)

    return draw


def nested(rng: np.random.Generator, n: int, size: int) -> Subsets:
    found = [rng.permutation(n)]
    for each in found:
        cut = rng.integers(len(each) // 3, 2 * len(each) // 3, endpoint=True)
        found += [part for part in (each[:cut], each[cut:]) if len(part) > 1]
    found = [found[k] for k in rng.permutation(len(found))]
    ends = np.cumsum([len(each) for each in found])
    return Subsets.of(found[: max(1, np.searchsorted(ends, size))])


def mixed(rng: np.random.Generator, n: int, size: int) -> Subsets:
    order = rng.permutation(n)
    found: list[np.ndarray] = []
    while size > 0:
        found.append(interval(rng, order, 20))
        found.append(rng.choice(n, len(found[-1]), replace=False))
        size -= 2 * len(found[-1])
    return Subsets.of(found)


def refused(rng: np.random.Generator, n: int, size: int) -> Subsets:
    """Draws prefixes of three groups, which make paths; then the deepest leaves."""
    # Longer paths would need subsets of quadratic total size.
    depth = min(n // 3, 1000)
    groups = np.split(np.arange(3 * depth), 3)
    paths = [group[:k] for group in groups for k in range(2, depth + 1)]
    deepest = np.array([group[0] for group in groups])
    return Subsets.of([*paths, *[deepest] * min(1000, size // 3)], prepare=len(paths))


DRAW: dict[str, Draw] = {
    "short": intervals(lambda n: 5),
    "medium": intervals(lambda n: 200),
    "long": intervals(lambda n: n // 2),
    "nested": nested,
    "mixed": mixed,
    "refused": refused,
}


@njit(nogil=True)
def reduce_all(
    tree: tuple[np.ndarray, np.ndarray],
    start: np.ndarray,
    leaves: np.ndarray,
    first: int,
    last: int,
) -> int:
    accepted = 0
    for k in range(first, last):
        subset = leaves[start[k] : start[k + 1]]
        accepted += reduce(tree, subset, len(subset))
    return accepted


@njit(nogil=True)
def make_many(trees: int, n: int, start: np.ndarray, leaves: np.ndarray) -> int:
    total = 0
    for _ in range(trees):
        tree = new_tree(n)
        reduce_all(tree, start, leaves, 0, len(start) - 1)
        total += frontier(tree)[0]
    return total


def timed(rounds: int, call: Callable[[], float]) -> float:
    return min(call() for _ in range(rounds))


def line(kind: str, n: int, subsets: Subsets, rounds: int) -> str:
    m = len(subsets.start) - 1 - subsets.prepare
    s = int(subsets.start[-1] - subsets.start[subsets.prepare])
    accepted = 0

    def call() -> float:
        nonlocal accepted
        arrays = subsets.start, subsets.leaves
        begin = time.perf_counter()
        tree = new_tree(n)
        made = time.perf_counter() - begin
        reduce_all(tree, *arrays, 0, subsets.prepare)
        begin = time.perf_counter()
        accepted = reduce_all(tree, *arrays, subsets.prepare, len(subsets.start) - 1)
        frontier(tree)
        return made + time.perf_counter() - begin

    seconds = timed(rounds, call)
    per = f"{1e9 * seconds / (n + m + s):.1f}"
    return ROW.format(kind, n, m, s, accepted, f"{1e3 * seconds:.2f}", per)


def small_line(n: int, rounds: int, rng: np.random.Generator) -> str:
    order = rng.permutation(n)
    subsets = Subsets.of([interval(rng, order, n // 2) for _ in range(3)])
    trees = max(1, 100_000 // n)

    def call() -> float:
        begin = time.perf_counter()
        make_many(trees, n, subsets.start, subsets.leaves)
        return (time.perf_counter() - begin) / trees

    seconds = timed(rounds, call)
    return SMALL_ROW.format(n, f"{1e6 * seconds:.2f}", f"{1e9 * seconds / n:.1f}")


def main(arguments: Arguments) -> None:
    make_many(1, 2, np.array([0, 2]), np.arange(2, dtype=np.int32))  # compiles
    print(HEAD)
    for kind in arguments.kinds.split(","):
        n = arguments.most_leaves
        counts = [n]
        while n >= 10_000:
            n //= 10
            counts.append(n)
        for n in reversed(counts):
            rng = np.random.default_rng(arguments.seed)
            subsets = DRAW[kind.strip()](rng, n, arguments.size * n)
            print(line(kind.strip(), n, subsets, arguments.rounds), flush=True)
    print()
    print(SMALL_HEAD)
    for n in SMALL:
        rng = np.random.default_rng(arguments.seed)
        print(small_line(n, arguments.rounds, rng))


if __name__ == "__main__":
    main(parse_arguments(Arguments, __doc__))
