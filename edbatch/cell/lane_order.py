"""The order of lanes in blocks, so that merged nodes read slices.

A node that reads some lanes of a block *wishes* that they stand one after the other, in
the order of its own lanes. Lanes that must agree in order along a chain of such nodes
are one *track*: the product, the sum and the squashed value of one gate, say. One order
of all tracks orders every block, and a PQ-tree holds the orders that fulfil the wishes
granted so far. Which wishes are granted is searched for exactly, for the most elements
that need not be copied; beyond a number of steps they are granted as they come, the
largest first.

A block holds some tracks only, so it needs less than that the tracks of a wish stand
together among all. This way one tree does for all blocks.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from edbatch.memory_planner.pq_tree import PQTree

_MOST_STEPS = 2_000

Lane = tuple[Hashable, int]  # a block, and the number of one of its lanes


@dataclass(frozen=True)
class Wish:
    """Lanes of one block that a reader wants as one slice.

    Attributes:
        lanes: The lanes.
        readers: The reader's own lanes that read them, which should stand in the same
            order; empty if the reader takes them in any order.
        elements: How many elements are copied if the wish is refused.
    """

    lanes: tuple[Lane, ...]
    readers: tuple[Lane, ...]
    elements: int


Orders = Mapping[Hashable, Sequence[int]]


def order_lanes(
    sizes: Mapping[Hashable, int], fixed: Collection[Hashable], wishes: Sequence[Wish]
) -> dict[Hashable, tuple[int, ...]]:
    """Orders the lanes of blocks.

    Args:
        sizes: Number of lanes of each block.
        fixed: Blocks whose lanes stay in the order of their numbers.
        wishes: What readers want.

    Returns:
        The lanes of each block, in their order.

    Example:
        >>> lanes = tuple(("gates", k) for k in (0, 1, 3))  # i, f and o of i, f, g, o
        >>> order_lanes({"gates": 4}, [], [Wish(lanes, (), 96)])
        {'gates': (0, 1, 3, 2)}
    """
    if not wishes:
        return {block: tuple(range(size)) for block, size in sizes.items()}
    by_size = sorted(wishes, key=lambda wish: -wish.elements)
    tracks = _Tracks(sizes)
    possible = [wish for wish in by_size if tracks.align(wish)]
    numbers = tracks.numbers()
    subsets = [_subsets(wish, numbers, fixed) for wish in possible]
    tree = _grant(
        PQTree(max(numbers.values(), default=-1) + 1),
        subsets,
        [wish.elements for wish in possible],
    )
    rank = {track: place for place, track in enumerate(tree.frontier().tolist())}

    def orders(sign: int) -> dict[Hashable, tuple[int, ...]]:
        return {
            block: tuple(
                range(size)
                if block in fixed
                else sorted(range(size), key=lambda k: sign * rank[numbers[block, k]])
            )
            for block, size in sizes.items()
        }

    # A tree does not tell an order from its mirror image; fixed blocks do.
    return max(
        (orders(1), orders(-1)),
        key=lambda each: sum(
            wish.elements for wish in wishes if is_fulfilled(wish, each)
        ),
    )


def is_fulfilled(wish: Wish, orders: Orders) -> bool:
    """Says whether a reader finds its lanes as one slice, in its own order.

    Args:
        wish: What it wants.
        orders: The orders of blocks.

    Returns:
        Whether it does.
    """

    def place(lane: Lane) -> int:
        block, number = lane
        return list(orders[block]).index(number)

    places = [place(lane) for lane in wish.lanes]
    if wish.readers:
        pairs = zip(wish.readers, places, strict=True)
        places = [at for _, at in sorted(pairs, key=lambda pair: place(pair[0]))]
    else:
        places.sort()
    return all(two == one + 1 for one, two in pairwise(places))


class _Tracks:
    """Lanes that share a place in the order of all tracks."""

    def __init__(self, sizes: Mapping[Hashable, int]) -> None:
        self.track_of: dict[Lane, Lane] = {
            (block, k): (block, k) for block, size in sizes.items() for k in range(size)
        }

    def align(self, wish: Wish) -> bool:
        """Joins lanes with their readers, unless a block got two lanes on one track."""
        joined = dict(self.track_of)
        for lane, reader in zip(wish.lanes, wish.readers, strict=False):
            old, new = joined[reader], joined[lane]
            for each, track in joined.items():
                if track == old:
                    joined[each] = new
        if len({(block, joined[block, k]) for block, k in joined}) < len(joined):
            return False
        self.track_of = joined
        return True

    def numbers(self) -> dict[Lane, int]:
        """The number of each lane's track."""
        first: dict[Lane, int] = {}
        for track in self.track_of.values():
            first.setdefault(track, len(first))
        return {lane: first[track] for lane, track in self.track_of.items()}


def _subsets(
    wish: Wish, numbers: Mapping[Lane, int], fixed: Collection[Hashable]
) -> list[set[int]]:
    """The sets of tracks that must be consecutive for a wish."""
    if any(block in fixed for block, _ in wish.lanes):
        # Neighbours pair by pair: of their orders only one and its mirror are left.
        lanes = sorted(wish.lanes, key=lambda lane: lane[1])
        return [{numbers[one], numbers[two]} for one, two in pairwise(lanes)]
    return [{numbers[lane] for lane in wish.lanes}]


def _grant(
    tree: PQTree, subsets: Sequence[list[set[int]]], elements: Sequence[int]
) -> PQTree:
    """The tree with the wishes of the most elements that can be granted together."""
    best, most = tree, 0
    open_ = [(0, tree, 0)]
    for _ in range(_MOST_STEPS):
        if not open_:
            break
        k, before, gained = open_.pop()
        if gained > most:
            best, most = before, gained
        if gained + sum(elements[k:]) <= most:
            continue
        open_.append((k + 1, before, gained))
        after = before.copy()
        if all(after.reduce(sorted(subset)) for subset in subsets[k]):
            open_.append((k + 1, after, gained + elements[k]))
    return best
