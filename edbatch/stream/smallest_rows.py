"""Minimum rows of pools and arenas, so that few programs are compiled.

Pools and arenas with large rows get fewer rows, because the bytes are written for each
minibatch and stay allocated.

Gain: an input of 15 MB needed a pool of 977 MB with a minimum of 64 rows; now it takes
31 MB.
"""

from edbatch.graph.array_kinds import ArrayKinds

_FEW_BYTES = 2**21  # up to this size, unused rows cost little


def smallest_rows(kinds: ArrayKinds, name: str, floor: int) -> int:
    """Returns the minimum size of a named dimension.

    Args:
        kinds: The model's array kinds.
        name: The dimension, such as ``pool 3``: the rows of the pool of array kind 3.
        floor: The minimum size for kinds with small rows.

    Returns:
        The floor, or a power of two below it for pools and arenas with large rows.

    Example:
        >>> kinds = ArrayKinds()
        >>> for size in (4, 2**18):
        ...     kind = kinds.number((size,), "float32")
        ...     print(smallest_rows(kinds, f"pool {kind}", 64))
        64
        2
        >>> smallest_rows(kinds, "stream", 64)
        64
    """
    what, _, number = name.partition(" ")
    if what not in ("pool", "arena"):
        return floor
    fitting = max(1, _FEW_BYTES // max(1, kinds.row_bytes(int(number))))
    return min(floor, 1 << (fitting.bit_length() - 1))
