"""Objects that threads share, pickled as they are at one moment."""

import copy
import threading
from typing import Any


class WithoutLock:
    """Pickles everything but the lock, which guards the rest meanwhile.

    Attributes:
        lock: Guards the object.
    """

    lock: Any

    def __getstate__(self) -> dict[str, Any]:
        """Copies what the object holds."""
        with self.lock:
            state = {name: x for name, x in vars(self).items() if name != "lock"}
            return copy.deepcopy(state)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes over what an object held; the lock is a new one."""
        vars(self).update(state, lock=threading.Lock())
