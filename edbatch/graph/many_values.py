"""Counts values that each make a type, to warn when new ones keep coming."""

import weakref
from collections.abc import Callable
from typing import Any

MANY = 16  # minimum number of values for a warning
# Minimum number of instances that brought a new value. Layer indices, for example, all
# come with the first instance.
_MANY_INSTANCES = 8


class ManyValues:
    """The distinct values of something, such as a static argument of a cell.

    Attributes:
        values: The values so far.
    """

    def __init__(self) -> None:
        self.values: set[Any] = set()
        self._instances = 0  # number of instances that brought a new value
        self._latest: Callable[[], Any] = lambda: None
        self._has_warned = False

    def add(self, value: Any, by: Any) -> bool:
        """Adds a value; returns whether to warn now, which happens once.

        Args:
            value: The value, hashable.
            by: The recorder of the instance that it came with.
        """
        if self._has_warned or value in self.values:
            return False
        self.values.add(value)
        if self._latest() is not by:
            self._instances += 1
            self._latest = weakref.ref(by)
        self._has_warned = (
            len(self.values) >= MANY and self._instances >= _MANY_INSTANCES
        )
        return self._has_warned
