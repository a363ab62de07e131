"""When two constants are the same.

Python takes 2, 2.0 and True for equal, and 0.0 for -0.0, but a cell may compute
something else for each; and not-a-number, which equals nothing, is one constant.
"""

import dataclasses
from collections.abc import Hashable
from typing import Any

import numpy as np

_INEXACT = (float, complex, np.inexact)


def exactly(value: Any) -> Hashable:
    """Returns what is equal for the same constants alone.

    Args:
        value: A static argument, hashable. Tuples, frozen sets and dataclasses are
            looked through; other objects say themselves when they are equal.

    Returns:
        A key for dictionaries.

    Example:
        >>> 2 == 2.0, exactly(2) == exactly(2.0)
        (True, False)
    """
    kind = type(value)
    if isinstance(value, tuple):
        return kind, tuple(map(exactly, value))
    if isinstance(value, frozenset):
        return kind, frozenset(map(exactly, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [each.name for each in dataclasses.fields(value) if each.compare]
        return kind, value, tuple(exactly(getattr(value, name)) for name in fields)
    if isinstance(value, _INEXACT):
        return kind, repr(value)
    return kind, value
