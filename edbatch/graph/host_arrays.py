"""Arrays of NumPy whose owners may write to them later."""

from typing import Any

import numpy as np

_LARGE_BYTES = 4096  # of an array that is compared without a copy


def may_change(value: Any) -> bool:
    """Tells whether somebody may write to an array, or to what it is a view of.

    Of memory that is neither NumPy's nor of bytes, nobody knows who writes to it: views
    of arrays of JAX count, too.

    Args:
        value: An array of NumPy or JAX, or anything else.

    Returns:
        Whether it has to be copied to be kept as it is.
    """
    if not isinstance(value, np.ndarray):  # one of JAX
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
    """Tells whether an array is still what it was when it was copied.

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
