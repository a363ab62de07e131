"""Runs tasks ahead in background threads and yields their results in order."""

import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from edbatch.errors import LoaderError

Task = TypeVar("Task")
Result = TypeVar("Result")

THREAD_NAME = "edbatch-loader"


def map_ahead(
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    ahead: int,
    threads: int = 1,
    ended: Callable[[], None] = lambda: None,
) -> Generator[Result, None, None]:
    """Applies a function to tasks in background threads, some tasks ahead.

    The threads start when the first result is requested. They end when the tasks are
    exhausted, when the function raises, and when the iterator is closed or collected;
    calls that are running are waited for.

    Args:
        function: Called in the threads.
        tasks: Its arguments; iterated in the thread that requests results.
        ahead: Number of tasks started beyond the one whose result is in use; 0 to call
            the function only when its result is requested, without threads.
        threads: Number of threads.
        ended: Called when no more results will be requested, before the threads are
            waited for; it can end calls that are blocked.

    Yields:
        The results, in the order of the tasks; an exception of the function is raised
        in place of its result.

    Raises:
        LoaderError: This process is a fork of the one that requested the first result.

    Example:
        >>> list(map_ahead(abs, [3, -4, -5], ahead=2))
        [3, 4, 5]
    """
    if not ahead:
        try:
            yield from map(function, tasks)
        finally:
            ended()
        return
    remaining = iter(tasks)
    begun: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix=THREAD_NAME)
    # Local names: modules may be gone when an abandoned iterator is collected.
    python_ends, pid, owner = sys.is_finalizing, os.getpid, os.getpid()
    try:
        begun.extend(pool.submit(function, each) for each in islice(remaining, ahead))
        while begun:
            if pid() != owner:
                raise LoaderError(
                    "a loop over a loader began in the process that this one is a fork"
                    " of, and the threads that plan ahead are there; begin a loop in"
                    " each process, or start processes by multiprocessing's 'spawn'"
                )
            # Submitted before waiting and yielding, so that the threads keep working.
            begun.extend(pool.submit(function, each) for each in islice(remaining, 1))
            yield begun.popleft().result()
    finally:
        ended()
        # Otherwise Python has ended the threads itself, or this is a fork without them.
        if not python_ends() and pid() == owner:
            pool.shutdown(wait=True, cancel_futures=True)
