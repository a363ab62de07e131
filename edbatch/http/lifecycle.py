"""Life cycle of a server: its phase, and the requests it has accepted."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

from edbatch.http.refusal import retry_later, shutting_down


class Phase(Enum):
    """Phase of a server's life."""

    WARMING_UP = "warming up"
    READY = "ready"
    DRAINING = "shutting down"


class Lifecycle:
    """The phase and active requests of a server. Used in the event loop only.

    Attributes:
        phase: The phase.
        began: Start time of the server, in seconds since the epoch.
        active: Number of accepted requests without an answer.
    """

    def __init__(self) -> None:
        self.phase = Phase.WARMING_UP
        self.began = time.time()
        self.active = 0
        self._readers: set[asyncio.Task[Any] | None] = set()
        self._taken: set[asyncio.Task[Any] | None] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def ready(self) -> None:
        """Accepts requests from now on, unless the server is already shutting down."""
        if self.phase is Phase.WARMING_UP:
            self.phase = Phase.READY

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Context for reading the body of a request; a shutdown aborts it.

        Raises:
            Refusal: The server is shutting down.
        """
        with self._until_cancelled(self._readers):
            yield

    @contextmanager
    def _until_cancelled(self, tasks: set[asyncio.Task[Any] | None]) -> Iterator[None]:
        """Adds the current task to a set of tasks that a shutdown cancels.

        Raises:
            Refusal: The task was cancelled by the shutdown.
        """
        task = asyncio.current_task()
        tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            # Refuse only if nobody but the shutdown has cancelled the task.
            if (
                self.phase is Phase.DRAINING
                and task is not None
                and not task.uncancel()
            ):
                raise shutting_down() from None
            raise
        finally:
            tasks.discard(task)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Context of an accepted request, until its answer.

        Raises:
            Refusal: The server does not accept requests, or gave up on this one.
        """
        if self.phase is Phase.WARMING_UP:
            raise retry_later(
                503, "warming_up", "the server is warming up; send it again soon"
            )
        if self.phase is Phase.DRAINING:
            raise shutting_down()
        self.active += 1
        self._idle.clear()
        try:
            with self._until_cancelled(self._taken):
                yield
        finally:
            self.active -= 1
            if not self.active:
                self._idle.set()

    async def drain(self, timeout_s: float) -> bool:
        """Accepts no more requests, and waits for the answers of accepted ones.

        Requests whose body is still being read are refused at once.

        Args:
            timeout_s: Maximum seconds to wait.

        Returns:
            Whether all accepted requests have an answer.
        """
        self.phase = Phase.DRAINING
        _cancel(self._readers)
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def give_up(self) -> None:
        """Refuses all accepted requests that have no answer."""
        _cancel(self._taken)


def _cancel(tasks: set[asyncio.Task[Any] | None]) -> None:
    for each in tasks:
        if each is not None:
            each.cancel()
