"""Ctrl-C at a safe moment."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], None]]:
    """Holds Ctrl-C back, because compiled code in its midst may not survive it.

    A second Ctrl-C acts at once, in case that a safe moment does not come.

    Yields:
        A function to call at safe moments; it raises `KeyboardInterrupt` if Ctrl-C was
        pressed.

    Example:
        >>> with deferred_interrupt() as check:
        ...     check()
    """
    pressed = False

    def hold(number: int, frame: Any) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    # Only the main thread may handle signals, and only it receives Ctrl-C.
    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    before = signal.signal(signal.SIGINT, hold)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
