"""Names of type tables, by which tables that begin alike are recognized.

A name is unique across processes. A table only grows. An object that is pickled with a
table carries the table's *marks*: names of tables, and how many of the first types and
array kinds the table shares with each of them. So an object that returns to a process
where such a table exists gets that very table, not a copy.
"""

import itertools
import os
import threading
import uuid

Name = tuple[str, int]  # process, serial number
Size = tuple[int, int]  # types, array kinds
Marks = dict[Name, Size]

lock = threading.RLock()  # guards the set of all tables while a table is unpickled
_serials = itertools.count()
_process = uuid.uuid4().hex


def _begin_process() -> None:
    """Renames a forked process, since its tables diverge from its parent's."""
    global _process
    _process = uuid.uuid4().hex


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_process)


class Lineage:
    """The names of one table.

    Attributes:
        shared: Marks of the other tables that begin like this one.
    """

    def __init__(self) -> None:
        self.shared: Marks = {}
        self._serial = next(_serials)

    def marks(self, size: Size) -> Marks:
        """Returns the marks of the table, given its present size."""
        return self.shared | {(_process, self._serial): size}


def common(one: Marks, other: Marks) -> Size:
    """Finds how much the beginnings of two tables have in common.

    Args:
        one: Marks of a table.
        other: Marks of another table.

    Returns:
        Number of types and of array kinds at the beginning of both; -1 for each if the
        tables have no name in common.

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
