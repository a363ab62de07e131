"""Sorting functions for compiled code, each for one dtype.

Numba compiles its own sorts again for every array type and every function that uses
them, which takes a second or two each; these are compiled once.
"""

import numpy as np

from edbatch.kernel import kernel

_RUN = 16  # items sorted by insertion before runs are merged


@kernel
def stable_order(key: np.ndarray) -> np.ndarray:
    """Returns the indices that sort keys in ascending order; stable.

    A bottom-up merge sort, O(n log n).

    Args:
        key: The keys, ``[n] int64``.

    Returns:
        The indices, ``[n] int64``.

    Example:
        >>> stable_order(np.array([3, 1, 3, 0])).tolist()
        [3, 1, 0, 2]
    """
    n = len(key)
    order = np.empty(n, np.int64)
    for k in range(n):
        at = k
        while at % _RUN > 0 and key[order[at - 1]] > key[k]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = k
    other = np.empty(n if n > _RUN else 0, np.int64)
    width = _RUN
    while width < n:
        for first in range(0, n, 2 * width):
            middle, last = min(first + width, n), min(first + 2 * width, n)
            left, right = first, middle
            for k in range(first, last):
                if right == last or (
                    left < middle and key[order[left]] <= key[order[right]]
                ):
                    other[k] = order[left]
                    left += 1
                else:
                    other[k] = order[right]
                    right += 1
        order, other = other, order
        width *= 2
    return order


@kernel
def order_by_weight(weight: np.ndarray) -> np.ndarray:
    """Returns the indices that sort weights in descending order; stable.

    Args:
        weight: Numbers of at least 0, ``[n] float64``, contiguous.

    Returns:
        The indices, ``[n] int64``.

    Example:
        >>> order_by_weight(np.array([2.0, 0.0, 7.5, 2.0])).tolist()
        [2, 0, 3, 1]
    """
    bits = weight.view(np.int64)  # has the order of the weights, as none is negative
    key = np.empty(len(bits), np.int64)
    for k in range(len(bits)):
        key[k] = ~bits[k]
    return stable_order(key)


@kernel
def distinct(key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the distinct keys, as `numpy.unique` with ``return_inverse=True``.

    Args:
        key: The keys, ``[n] int64``.

    Returns:
        The distinct keys, ascending, ``[m] int64``, and the index of each key among
        them, ``[n] int32``.

    Example:
        >>> keys, place = distinct(np.array([5, 2, 5]))
        >>> keys.tolist(), place.tolist()
        ([2, 5], [1, 0, 1])
    """
    found = np.empty(len(key), np.int64)
    place = np.empty(len(key), np.int32)
    count = 0
    for k in stable_order(key):
        if count == 0 or found[count - 1] != key[k]:
            found[count] = key[k]
            count += 1
        place[k] = count - 1
    return found[:count], place


@kernel
def sort_in_place(values: np.ndarray) -> None:
    """Sorts a small array in ascending order.

    A shell sort with gaps of 1, 4, 13, 40 and so on (Knuth 1973), O(n ** 1.5).

    Args:
        values: The numbers, ``[n] int32``.

    Example:
        >>> values = np.array([3, 1, 2], np.int32)
        >>> sort_in_place(values)
        >>> values.tolist()
        [1, 2, 3]
    """
    n = len(values)
    gap = 1
    while 3 * gap + 1 < n:
        gap = 3 * gap + 1
    while gap > 0:
        for k in range(gap, n):
            moved = values[k]
            at = k
            while at >= gap and values[at - gap] > moved:
                values[at] = values[at - gap]
                at -= gap
            values[at] = moved
        gap //= 3
