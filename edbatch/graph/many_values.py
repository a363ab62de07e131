"""Counts values each of which makes a type, to warn of those that keep coming."""

import weakref
from collections.abc import Callable
from typing import Any

MANY = 16  # values
# Instances that have brought a new one: the numbers of layers all come with the first.
_MANY_INSTANCES = 8


class ManyValues:
    """The values that something had, such as the static argument of a cell.

    Attributes:
        values: The values.
    """

    def __init__(self) -> None:
        self.values: set[Any] = set()
        self._instances = 0  # that brought a new one
        self._latest: Callable[[], Any] = lambda: None
        self._has_warned = False

    def add(self, value: Any, by: Any) -> bool:
        """Adds a value; returns whether it is time to warn, which is once.

        Args:
            value: The value, which has a hash.
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
