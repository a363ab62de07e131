"""Runs work in daemon threads, which do not keep the process from ending."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def begin_in_daemon_thread(work: Callable[[], T]) -> Future[T]:
    """Starts a function in a new daemon thread, independent of any event loop.

    Args:
        work: The function.

    Returns:
        A future of its result or exception, as for `in_daemon_thread`.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(work())
        except StopIteration as raised:  # futures do not accept it
            future.set_exception(_wrapped(raised))
        except Exception as raised:
            future.set_exception(raised)
        except BaseException as raised:
            future.set_exception(_wrapped(raised))

    threading.Thread(target=run, name="edbatch work", daemon=True).start()
    return future


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Runs a function in a new daemon thread, and awaits its result.

    With `asyncio.to_thread` the event loop would wait for its threads before it ends,
    and XLA may compile for minutes.

    Args:
        work: The function.

    Returns:
        Its result.

    Raises:
        Exception: Raised by the function. A `BaseException` that is not an `Exception`
            would end the event loop, so it is wrapped in a `RuntimeError` as its cause.
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
        result: T | None = None
        error: Exception | None = None
        try:
            result = work()
        except StopIteration as raised:  # futures do not accept it
            error = _wrapped(raised)
        except Exception as raised:
            error = raised
        except BaseException as raised:
            error = _wrapped(raised)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=run, name="edbatch work", daemon=True).start()
    return await future


def _wrapped(error: BaseException) -> RuntimeError:
    found = RuntimeError(
        f"work in a thread of the event loop raised {type(error).__name__}"
    )
    found.__cause__ = error
    return found
