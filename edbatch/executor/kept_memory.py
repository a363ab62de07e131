"""Memory of the host that the next call finds again.

Each call of a compiled program on a CPU allocates its arenas and tapes anew. glibc gets
blocks of their size from the system and gives them back at once, so that every call has
the system clear and map each page again.

Gain (`experiments/gradient_profile.py --keep-memory`): the gradient of tree-lstm at
hidden 256 takes 90 in place of 102 ms on one core; at 128 nothing.
"""

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # of glibc's malloc.h
_MOST = 2**31 - 1
_PAD = 1 << 28  # asked of the system at once; pages are mapped when they are written


def keep_memory() -> bool:
    """Lets this process keep the memory that it frees, for the next call.

    On a CPU this saves the system the clearing and mapping of pages in each call, of
    which there are most in gradients of wide cells. It concerns the whole process,
    which stays as large as it ever was, and cannot be undone. Programs do well to call
    it once, as the training scripts do; libraries leave it to them.

    Returns:
        Whether the C library can do that: glibc can, other libraries are left as they
        are.

    Example:
        >>> keep_memory() in (True, False)
        True
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # no glibc; Windows has no None
        return False
    wanted = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _MOST), (_TOP_PAD, _PAD))
    return all([mallopt(*each) for each in wanted])
