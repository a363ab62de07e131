"""Detects NumPy arrays that may be modified, or have been since they were copied."""

from typing import Any

import numpy as np

_LARGE_BYTES = 4096  # from this size on, arrays are compared without a copy


def may_change(value: Any) -> bool:
    """Tells whether an array, or the memory that it is a view of, may be modified.

    Memory that belongs to neither NumPy nor a bytes object counts as modifiable, since
    its writers are unknown. This includes views of JAX arrays.

    Args:
        value: A NumPy or JAX array, or anything else.

    Returns:
        Whether the value must be copied to preserve its contents.
    """
    if not isinstance(value, np.ndarray):  # a JAX array
        return False
    owner: Any = value
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return True
        if owner.base is None:
            return not owner.flags.owndata
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    return not isinstance(owner, bytes)


def same_bytes(copy: np.ndarray, array: np.ndarray) -> bool:
    """Tells whether an array is unchanged since it was copied.

    Args:
        copy: The copy, contiguous.
        array: The array, of the same shape and dtype.

    Returns:
        Whether all bytes are the same.
    """
    if array.nbytes < _LARGE_BYTES or not array.flags.c_contiguous:
        return copy.tobytes() == array.tobytes()
    one, other = (each.reshape(-1).view(np.uint8) for each in (copy, array))
    whole = one.size - one.size % 8
    return np.array_equal(one[whole:], other[whole:]) and np.array_equal(
        one[:whole].view(np.uint64), other[:whole].view(np.uint64)
    )
