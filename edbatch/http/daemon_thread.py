"""Work beside the event loop that does not hold the process back when it ends."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Does work in a thread of its own.

    `asyncio.to_thread` has the event loop wait for its threads before it ends, and XLA
    may compile for minutes.

    Args:
        work: What to do.

    Returns:
        What it returns.

    Raises:
        Exception: What it raises.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=run, name="edbatch beside", daemon=True).start()
    return await future
