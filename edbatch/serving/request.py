"""A request to a server, from its submission to its answer."""

import math
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import InvalidStateError
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

import jax
import numpy as np

from edbatch.errors import (
    DeadlineError,
    ServerClosedError,
    ServerError,
    ServerFullError,
    shown,
)
from edbatch.graph.handle import Handle
from edbatch.serving.request_future import RequestFuture
from edbatch.serving.stats import Counts
from edbatch.waves.asked_values import returned_handles
from edbatch.waves.instance_run import InstanceRun


@dataclass(eq=False)
class Request:
    """One instance to run.

    Attributes:
        instance: The instance.
        number: How many were submitted before it; its cells' keys follow from it.
        priority: Requests of higher priority run first.
        deadline: When it is to be answered, by `time.perf_counter`; or None.
        future: Where its answer goes.
        submitted: When it was submitted.
        run: The instance, once it runs.
    """

    instance: Any
    number: int
    priority: float
    deadline: float | None
    future: RequestFuture = field(default_factory=RequestFuture)
    submitted: float = field(default_factory=time.perf_counter)
    run: InstanceRun | None = None
    first_value: float | None = None

    def __lt__(self, other: "Request") -> bool:
        """Orders requests: first of higher priority, then as they came."""
        return (-self.priority, self.number) < (-other.priority, other.number)

    def is_late(self, now: float) -> bool:
        """Whether its deadline has passed."""
        return self.deadline is not None and now > self.deadline

    def answer(self, values: list[np.ndarray]) -> Any:
        """Returns what the model returned, with values in place of handles."""
        assert self.run is not None, "it ran"
        found = iter(values)
        return jax.tree.map(
            lambda leaf: next(found) if type(leaf) is Handle else leaf, self.run.result
        )

    def ask_for_result(self) -> bool:
        """Lets an instance that has ended wait for its result; False if it has it.

        Raises:
            RecordingError: It has returned a handle of another instance.
        """
        assert self.run is not None and self.run.ended, "it has ended"
        self.run.asked = returned_handles(self.run)
        return bool(self.run.asked)

    def resolve(self, result: Any) -> bool:
        """Answers; returns whether somebody still waits for it."""
        try:
            self.future.set_result(result)
        except InvalidStateError:
            return False
        return True

    def fail(self, error: BaseException) -> bool:
        """Ends with an exception; returns whether somebody still waits for it.

        What is no `Exception` would end the client's thread or event loop, too, so the
        client gets a `ServerError` that it is the cause of.
        """
        if not isinstance(error, Exception):
            error = _harmless(error)
        try:
            self.future.set_exception(error)
        except InvalidStateError:
            return False
        return True


def _harmless(error: BaseException) -> ServerError:
    """Returns an exception that ends no program, in place of one that may."""
    found = ServerError(
        f"the request raised {type(error).__name__} ({shown(error)}), which is no"
        " Exception but ends a program or a task; it ended this request alone; raise an"
        " Exception in the model, and call sys.exit outside"
    )
    found.__cause__ = error
    return found


def late(request: Request) -> DeadlineError:
    """Returns the error of a request whose deadline has passed."""
    assert request.deadline is not None, "it has a deadline"
    allowed = 1e3 * (request.deadline - request.submitted)
    return DeadlineError(
        f"the request was not answered within its deadline of {allowed:.3g} ms, and"
        " what was left of it did not run; allow more time, or send fewer requests"
    )


class Queue:
    """Requests that wait, the most urgent first; threads share it.

    Args:
        most: How many may wait. Those that were cancelled do not count.
        counts: The server's counts.

    Attributes:
        changed: A condition of whoever waits for requests; its lock guards the queue.
        closed: Whether it takes no more.
        deadline: When to look for late ones: no request that waits has an earlier
            deadline.
    """

    def __init__(self, most: int, counts: Counts) -> None:
        self._most, self._counts = most, counts
        self._requests: list[Request] = []
        self._numbers = 0
        self.changed = threading.Condition()
        self.closed = False
        self.deadline = math.inf
        self._has_cancelled = False  # perhaps among those that wait

    def __len__(self) -> int:
        return len(self._requests)

    def put(
        self, instances: Sequence[Any], deadline_ms: float | None, priority: float
    ) -> list[Request]:
        """Adds requests: all of them, or none.

        Raises:
            ServerFullError: There is no room for all.
            ServerClosedError: It takes no more.
        """
        count = len(instances)
        with self.changed:
            if self.closed:
                raise ServerClosedError(
                    "the server takes no requests any more: it was drained or closed;"
                    " send them to another one"
                )
            if len(self._requests) + count > self._most:
                self._drop_cancelled()
            if len(self._requests) + count > self._most:
                raise self._full(count)
            now = time.perf_counter()
            deadline = None if deadline_ms is None else now + 1e-3 * deadline_ms
            if deadline is not None and count:
                self.deadline = min(self.deadline, deadline)
            requests = []
            for instance in instances:
                future = RequestFuture(self._note_cancelled)
                request = Request(
                    instance, self._numbers, priority, deadline, future, submitted=now
                )
                self._numbers += 1
                heappush(self._requests, request)
                requests.append(request)
            if requests:
                self.changed.notify()
            return requests

    def _full(self, count: int) -> ServerFullError:
        """Returns the error of so many requests for which there is no room."""
        if count == 1:
            return ServerFullError(
                f"{self._most} requests wait already, as many as may wait; try again"
                " later, or raise max_waiting of eb.Server"
            )
        mend = "try again later" if count <= self._most else "submit fewer at once"
        return ServerFullError(
            f"{count} requests came at once where {len(self._requests)} wait already,"
            f" and {self._most} may wait, so none of them was taken; {mend}, or raise"
            " max_waiting of eb.Server"
        )

    def _note_cancelled(self) -> None:
        self._has_cancelled = True

    def _drop_cancelled(self) -> None:
        """Takes out those that were cancelled, if any may be; the lock is held."""
        if not self._has_cancelled:
            return
        self._has_cancelled = False
        kept = [each for each in self._requests if not each.future.cancelled()]
        self._counts.add(cancelled=len(self._requests) - len(kept))
        self._replace(kept)

    def _replace(self, requests: list[Request]) -> None:
        heapify(requests)
        self._requests = requests
        deadlines = (each.deadline for each in requests if each.deadline is not None)
        self.deadline = min(deadlines, default=math.inf)

    def take_late(self) -> list[Request]:
        """Takes those whose deadline has passed; drops those that were cancelled."""
        now = time.perf_counter()
        if now <= self.deadline and not self._has_cancelled:
            return []
        with self.changed:
            self._drop_cancelled()
            late = [each for each in self._requests if each.is_late(now)]
            self._replace([each for each in self._requests if not each.is_late(now)])
            return late

    def take(self, most: int) -> list[Request]:
        """Takes some of the most urgent requests, at most so many."""
        with self.changed:
            count = min(most, len(self._requests))
            return [heappop(self._requests) for _ in range(count)]

    def give_back(self, requests: Iterable[Request]) -> None:
        """Lets requests that were taken wait again, as if they had not been."""
        with self.changed:
            self._replace([*self._requests, *requests])

    def oldest(self) -> float:
        """Time of submission of the first waiting request; infinite if none waits."""
        with self.changed:
            return min((each.submitted for each in self._requests), default=math.inf)

    def close(self) -> None:
        """Takes no more; what waits stays."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
