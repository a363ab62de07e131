"""From warming up to shut down: whether requests are taken, and how many run."""

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
    """The phase of a server. All of it happens in the event loop.

    Attributes:
        phase: The phase.
        began: When it began, in seconds since the epoch.
        active: Requests that were taken and have no answer yet.
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
        """Takes requests from now on, unless it is shutting down already."""
        if self.phase is Phase.WARMING_UP:
            self.phase = Phase.READY

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Reads the body of a request; not on when no more requests are taken.

        Raises:
            Refusal: No more are taken.
        """
        with self._until_cancelled(self._readers):
            yield

    @contextmanager
    def _until_cancelled(self, tasks: set[asyncio.Task[Any] | None]) -> Iterator[None]:
        """Keeps the task among others, which a shutdown cancels.

        Raises:
            Refusal: In place of the cancellation.
        """
        task = asyncio.current_task()
        tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            # By the shutdown, unless somebody else has cancelled it, too.
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
        """Takes a request, which has an answer at the end.

        Raises:
            Refusal: No requests are taken, or this one was given up.
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
        """Takes no more requests, and waits until all taken have an answer.

        Those whose body is still being read are refused at once.

        Args:
            timeout_s: Seconds to wait at most.

        Returns:
            Whether all have one.
        """
        self.phase = Phase.DRAINING
        _cancel(self._readers)
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def give_up(self) -> None:
        """Refuses the requests that were taken and have no answer."""
        _cancel(self._taken)


def _cancel(tasks: set[asyncio.Task[Any] | None]) -> None:
    for each in tasks:
        if each is not None:
            each.cancel()
