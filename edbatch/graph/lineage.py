"""Tables of types that have the same beginning, in whatever process they are.

A table only grows. What is pickled with a table carries its *marks*: names of tables,
and how many types and array kinds at the beginning are theirs, too. So what comes back
to a process where such a table exists is given that very table, and no copy.
"""

import itertools
import os
import threading
import uuid

Name = tuple[str, int]  # process, serial number
Size = tuple[int, int]  # types, array kinds
Marks = dict[Name, Size]

lock = threading.RLock()  # guards the set of all tables while one is read from a pickle
_serials = itertools.count()
_process = uuid.uuid4().hex


def _begin_process() -> None:
    """Tells a forked process from the one that it began as: its tables go apart."""
    global _process
    _process = uuid.uuid4().hex


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_process)


class Lineage:
    """The names of one table.

    Attributes:
        shared: Marks of other tables.
    """

    def __init__(self) -> None:
        self.shared: Marks = {}
        self._serial = next(_serials)

    def marks(self, size: Size) -> Marks:
        """Returns the marks of the table, which has a size by now."""
        return self.shared | {(_process, self._serial): size}


def common(one: Marks, other: Marks) -> Size:
    """Finds how much of two tables is the same.

    Args:
        one: Marks of a table.
        other: Marks of another.

    Returns:
        Types and array kinds at the beginning of both; -1 if they have no name in
        common.

    Example:
        >>> common({("a", 0): (3, 4)}, {("a", 0): (2, 5), ("b", 0): (7, 7)})
        (2, 4)
        >>> common({("a", 0): (3, 4)}, {("b", 0): (2, 5)})
        (-1, -1)
    """
    sizes = [
        (min(one[name][0], other[name][0]), min(one[name][1], other[name][1]))
        for name in one.keys() & other.keys()
    ]
    return max(sizes, default=(-1, -1))
