"""Work done ahead in threads, whose results come in the order of the tasks."""

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

    The threads start with the first result asked for. They end when the tasks do, when
    the function raises, and when the iterator is closed or collected; what they have
    begun is waited for.

    Args:
        function: Called in the threads.
        tasks: Its arguments; read in the thread that asks for results.
        ahead: How many tasks are begun beyond the one whose result is in use; 0 to
            call the function only when its result is asked for, without threads.
        threads: Number of threads.
        ended: Called when no more results will be asked for, before the threads are
            waited for: lets a function return that waits for something else.

    Yields:
        The results, in the order of the tasks; an exception of the function arrives in
        its result's place.

    Raises:
        LoaderError: This process is a fork of the one that asked for the first result.

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
    # A local name: modules may be gone when a forgotten iterator is collected.
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
            # Before the wait, and before the consumer's own work: the threads go on.
            begun.extend(pool.submit(function, each) for each in islice(remaining, 1))
            yield begun.popleft().result()
    finally:
        ended()
        # Else Python has ended the threads itself, or a fork of the process has none.
        if not python_ends() and pid() == owner:
            pool.shutdown(wait=True, cancel_futures=True)
