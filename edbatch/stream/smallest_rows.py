"""The least rows of pools and arenas: some, so that few programs are compiled.

But not many bytes, which are written for each minibatch, and kept.

Gain: an input of 15 MB took a pool of 977 MB, whose least rows were 64; it takes 31.
"""

from edbatch.graph.array_kinds import ArrayKinds

_FEW_BYTES = 2**21  # up to which rows that are not needed cost little


def smallest_rows(kinds: ArrayKinds, name: str, floor: int) -> int:
    """Returns the least size of a named dimension.

    Args:
        kinds: The model's array kinds.
        name: The dimension, such as ``pool 3``, the rows of the pool of a kind.
        floor: The least size where elements are small.

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
