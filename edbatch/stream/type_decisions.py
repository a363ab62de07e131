"""Decisions about each type of a model, made by the first minibatch that has it."""

import threading
from typing import Generic, TypeVar

from edbatch.without_lock import WithoutLock

Decided = TypeVar("Decided")


class TypeDecisions(WithoutLock, Generic[Decided]):
    """Decisions by type, shared by the threads that plan for a model.

    Without the sample of `edbatch.Batched.fit`, plans depend on which minibatch came
    first: later ones do not change what was decided about a type.
    """

    def __init__(self) -> None:
        self._decided: dict[int, Decided] = {}
        self._frozen = False
        self.lock = threading.Lock()

    def freeze(self) -> None:
        """Stops deciding: new types get a default that needs no sample."""
        with self.lock:
            self._frozen = True

    def known(self) -> dict[int, Decided]:
        """Returns the decisions made so far, by type."""
        with self.lock:
            return dict(self._decided)
