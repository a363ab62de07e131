"""Priority queue of a server's waiting requests, the most urgent first.

The cost per turn of the server's thread does not grow with the number of waiting
requests; otherwise a server that has fallen behind would get slower, and never catch
up. A request that is taken, cancelled or late is therefore removed from one dict only.
Its heap entries are dropped when they reach the front, or when stale entries outnumber
the others (lazy deletion).
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any

from edbatch.errors import ServerClosedError, ServerError, ServerFullError, user_line
from edbatch.serving.request import Request
from edbatch.serving.request_future import RequestFuture
from edbatch.serving.stats import Counts

_LEAST_ENTRIES = 64  # a heap of fewer entries is never rebuilt


class Queue:
    """Thread-safe queue of waiting requests.

    Args:
        most: Maximum number of waiting requests, not counting cancelled ones.
        counts: The server's counts.

    Attributes:
        changed: Condition to wait on for requests; its lock guards the queue.
        closed: Whether it accepts no more requests.
        deadline: When to look for late requests: no waiting request has an earlier
            deadline.
        thread: The thread that answers the requests, once it runs.
    """

    def __init__(self, most: int, counts: Counts) -> None:
        self._most, self._counts = most, counts
        self._numbers = 0
        self._waiting: dict[int, Request] = {}  # by number
        self._by_urgency = _Heap(self._waiting, lambda each: -each.priority)
        self._by_arrival = _Heap(self._waiting, lambda each: each.submitted)
        self._by_deadline = _Heap(self._waiting, lambda each: each.deadline)
        self._cancelled: deque[int] = deque()  # numbers; some may no longer wait
        self.changed = threading.Condition()
        self.closed = False
        self.thread: int | None = None
        self._why_closed = "it was drained or closed; send them to another one"
        self.deadline = math.inf

    def __len__(self) -> int:
        return len(self._waiting)

    def put(
        self, instances: Sequence[Any], deadline_ms: float | None, priority: float
    ) -> list[Request]:
        """Adds requests: all of them, or none.

        Raises:
            ServerFullError: There is no room for all.
            ServerClosedError: The queue is closed.
        """
        count = len(instances)
        with self.changed:
            if self.closed:
                raise self._closed_error()
            if len(self._waiting) + count > self._most:
                self._drop_cancelled()
            if len(self._waiting) + count > self._most:
                raise self._full(count)
            now = time.perf_counter()
            deadline = None if deadline_ms is None else now + 1e-3 * deadline_ms
            requests = []
            for instance in instances:
                number = self._numbers
                # Takes no lock: the thread that calls it may hold the queue's lock.
                noted = partial(self._cancelled.append, number)
                future = RequestFuture(noted, self.check_thread)
                request = Request(
                    instance, number, priority, deadline, future, submitted=now
                )
                self._numbers += 1
                requests.append(request)
                self._add(request)
            if requests:
                self.changed.notify()
            return requests

    def check_thread(self) -> None:
        """Checks that a request's answer may be waited for in this thread.

        Raises:
            ServerError: This is the server's own thread, which answers the requests.
        """
        if threading.get_ident() == self.thread:
            raise ServerError(
                "the server's own thread waits for a request, in its model or in a"
                f" callback of a future ({user_line()}), where nothing would run that"
                " request meanwhile; call the cells in the model itself, or wait in"
                " another thread"
            )

    def _full(self, count: int) -> ServerFullError:
        """Returns the error for `count` requests that do not fit."""
        if count == 1:
            return ServerFullError(
                f"the queue is full: {self._most} requests are waiting; try again"
                " later, or raise max_waiting of eb.Server"
            )
        fix = "try again later" if count <= self._most else "submit fewer at once"
        return ServerFullError(
            f"{count} requests do not fit into the queue, where {len(self._waiting)} of"
            f" at most {self._most} are waiting, so none was accepted; {fix}, or raise"
            " max_waiting of eb.Server"
        )

    def _add(self, request: Request) -> None:
        """Adds a request; the caller holds the lock."""
        self._waiting[request.number] = request
        self._by_urgency.push(request)
        self._by_arrival.push(request)
        if request.deadline is not None:
            self._by_deadline.push(request)
            self.deadline = min(self.deadline, request.deadline)

    def _drop_cancelled(self) -> None:
        """Drops cancelled requests; the caller holds the lock."""
        dropped = 0
        while self._cancelled:
            number = self._cancelled.popleft()
            dropped += self._waiting.pop(number, None) is not None
        if dropped:
            self._counts.add(cancelled=dropped)

    def take_late(self) -> list[Request]:
        """Removes and returns late requests; drops cancelled ones."""
        now = time.perf_counter()
        if now <= self.deadline and not self._cancelled:
            return []
        with self.changed:
            self._drop_cancelled()
            late = []
            while (first := self._by_deadline.first()) and first.is_late(now):
                late.append(self._waiting.pop(first.number))
            self.deadline = math.inf
            if first is not None and first.deadline is not None:
                self.deadline = first.deadline
            return late

    def take(self, most: int) -> list[Request]:
        """Removes and returns the most urgent requests, at most `most`."""
        with self.changed:
            found: list[Request] = []
            while len(found) < most and (first := self._by_urgency.first()):
                found.append(self._waiting.pop(first.number))
            return found

    def oldest(self) -> float:
        """Submission time of the oldest waiting request; infinite if none waits."""
        with self.changed:
            first = self._by_arrival.first()
            return math.inf if first is None else first.submitted

    def close(self) -> None:
        """Accepts no more requests; waiting requests stay."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def after_fork(self) -> None:
        """Closes the queue in a forked process, where the server has no thread."""
        self.changed = threading.Condition()  # the parent's may be locked
        self.closed = True
        self._why_closed = (
            "this process was forked, and the server's thread runs only in its parent;"
            " start processes by multiprocessing's 'spawn', since JAX does not survive"
            " forks either, and make a server in each"
        )

    def check_open(self) -> None:
        """Checks that the queue accepts requests.

        Raises:
            ServerClosedError: The queue is closed.
        """
        if self.closed:
            raise self._closed_error()

    def _closed_error(self) -> ServerClosedError:
        return ServerClosedError(
            f"the server takes no requests any more: {self._why_closed}"
        )


class _Heap:
    """Heap of request numbers by a key, including stale ones that no longer wait.

    Args:
        waiting: The waiting requests, by number; changed by the queue.
        key: Returns the key of a request; None to leave it out.
    """

    def __init__(
        self, waiting: dict[int, Request], key: Callable[[Request], float | None]
    ) -> None:
        self._waiting, self._key = waiting, key
        self._entries: list[tuple[float, int]] = []  # equal keys in order of arrival

    def push(self, request: Request) -> None:
        """Adds a waiting request, unless its key is None."""
        if len(self._entries) > _LEAST_ENTRIES + 2 * len(self._waiting):
            self._entries = []
            for each in self._waiting.values():
                if (key := self._key(each)) is not None:
                    self._entries.append((key, each.number))
            heapify(self._entries)
        elif (key := self._key(request)) is not None:
            heappush(self._entries, (key, request.number))

    def first(self) -> Request | None:
        """Returns the waiting request with the smallest key; None if there is none."""
        entries = self._entries
        while entries:
            if (found := self._waiting.get(entries[0][1])) is not None:
                return found
            heappop(entries)
        return None
