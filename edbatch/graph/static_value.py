"""When two constants are the same.

Python takes 2, 2.0 and True for equal, and 0.0 for -0.0, but a cell may compute
something else for each; and not-a-number, which equals nothing, is one constant.
"""

from collections.abc import Hashable
from typing import Any

import numpy as np

_INEXACT = (float, complex, np.inexact)


def exactly(value: Any) -> Hashable:
    """Returns what is equal for the same constants alone.

    Args:
        value: A static argument, hashable. Of what is inside it, tuples and frozen sets
            are looked through; other objects say themselves when they are equal.

    Returns:
        A key for dictionaries.

    Example:
        >>> 2 == 2.0 == np.float32(2), exactly(2) == exactly(2.0)
        (True, False)
    """
    kind = type(value)
    if isinstance(value, tuple):
        return kind, tuple(map(exactly, value))
    if isinstance(value, frozenset):
        return kind, frozenset(map(exactly, value))
    if isinstance(value, _INEXACT):
        return kind, repr(value)
    return kind, value
