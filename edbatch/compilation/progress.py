"""Progress line on the terminal while somebody waits for a compilation."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 2.0  # waiting time before the line appears
_EVERY_S = 1.0
_CLEAR = "\r\033[K"


@contextmanager
def progress_line(text: str) -> Iterator[None]:
    """Shows a progress line on the terminal once a compilation takes long.

    Nothing is shown if stderr is not a terminal. If another display has replaced
    `sys.stderr`, it gets one complete line.

    Args:
        text: What is in progress.
    """
    if not _is_terminal():
        yield
        return
    done = threading.Event()
    line = threading.Thread(target=_show, args=(f"edbatch: {text}", done), daemon=True)
    line.start()
    try:
        yield
    finally:
        done.set()
        line.join()


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def _show(text: str, done: threading.Event) -> None:
    began = time.monotonic()
    if done.wait(PATIENCE_S):
        return
    out = sys.__stderr__
    try:
        if out is None or out is not sys.stderr:
            sys.stderr.write(f"{text} ...\n")
            return
        while True:
            seconds = int(time.monotonic() - began)
            out.write(f"{_CLEAR}{text}, {seconds} s ...")
            out.flush()
            if done.wait(_EVERY_S):
                break
        out.write(_CLEAR)
        out.flush()
    except (OSError, ValueError):  # the terminal is gone
        return
