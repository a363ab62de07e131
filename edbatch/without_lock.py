"""Base class for objects shared by threads, with consistent pickles."""

import copy
import threading
from typing import Any


class WithoutLock:
    """Pickles all attributes except the lock, which is held while copying.

    Attributes:
        lock: Guards the object.
    """

    lock: Any

    def __getstate__(self) -> dict[str, Any]:
        """Copies all attributes except the lock."""
        with self.lock:
            state = {name: x for name, x in vars(self).items() if name != "lock"}
            return copy.deepcopy(state)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores the attributes, with a new lock."""
        vars(self).update(state, lock=threading.Lock())
