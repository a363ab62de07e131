"""Ctrl-C in the commands: at any moment, a line on stderr and exit code 130.

Python may raise `KeyboardInterrupt` between any two steps, including those of imports,
destructors and compiled code. In such a place it becomes a traceback, a `SystemError`,
a crash, or is ignored. A command therefore does not unwind: its process ends at once.
Nothing is lost, because operations that must not be interrupted, such as writing a
file, defer the interrupt (`edbatch.schedule.interrupt`).

This module imports nothing slow, and the package imports it before all others: the
script of a command cannot run any code before the package is imported, which takes a
second or two.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

EXIT_INTERRUPTED = 130  # as shells report a command that Ctrl-C ended
_COMMANDS = ("edbatch", "train-policy")
_SHOW_CURSOR = "\x1b[?25h\r\n"  # progress bars hide it
_ending = threading.Lock()
TO_REMOVE: list[str] = []  # files that must not outlive the process
_LIKE_CTRL_C: set[int] = set()  # signals that are handled like Ctrl-C


def is_command() -> bool:
    """Whether this process runs the script of a command."""
    script = sys.argv[0] if getattr(sys, "argv", None) else ""
    return os.path.basename(script) in _COMMANDS and os.path.isfile(script)


def end_at_ctrl_c() -> None:
    """Makes Ctrl-C end this process, unless it is ignored or has another handler."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        return
    signal.signal(signal.SIGINT, _end)
    # Python runs a handler only once the main thread returns from compiled code, and
    # XLA may compile for a minute. The wakeup pipe notifies another thread at once.
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader,), daemon=True).start()


def ends_at_ctrl_c() -> bool:
    """Whether Ctrl-C would end this process now, without unwinding.

    Example:
        >>> ends_at_ctrl_c()  # in Python it raises KeyboardInterrupt
        False
    """
    return signal.getsignal(signal.SIGINT) is _end


class _Ignored:
    """Ctrl-C handler that ignores Ctrl-C but not the signals handled like it.

    Attributes:
        is_ignored: Whether SIGINT is ignored; False once SIGTERM or SIGHUP has arrived.
    """

    is_ignored = True

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Ends a command, or unwinds any other program, unless SIGINT is ignored."""
        if not self.is_ignored:
            if is_command():
                _end(number, frame)
            signal.default_int_handler(number, frame)


@contextmanager
def kill_as_ctrl_c() -> Iterator[None]:
    """Handles SIGTERM and SIGHUP like Ctrl-C while the context is open.

    Job managers send SIGTERM. A closed terminal sends SIGHUP; nothing is written to the
    terminal after that. Signals that are ignored stay ignored, as under `nohup`. So
    does Ctrl-C itself, which shells ignore for jobs that a script starts with ``&``;
    SIGTERM and SIGHUP still end those.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}
    ignored = _Ignored()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, ignored)
    terminals = [each for each in (1, 2) if os.isatty(each)]

    def as_ctrl_c(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGTERM:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for each in terminals:
                os.dup2(nowhere, each)
            os.close(nowhere)
        ignored.is_ignored = False
        signal.raise_signal(signal.SIGINT)

    for number in filter(None, (signal.SIGTERM, getattr(signal, "SIGHUP", None))):
        if signal.getsignal(number) == signal.SIG_DFL:
            before[number] = signal.signal(number, as_ctrl_c)
    _LIKE_CTRL_C.update(before)
    try:
        yield
    finally:
        for number, handler in before.items():
            _LIKE_CTRL_C.discard(number)
            signal.signal(number, handler)


def ignore_ctrl_c() -> None:
    """Ignores Ctrl-C from now on; for a command that has finished its work."""
    if ends_at_ctrl_c():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _watch(reader: int) -> None:
    """Ends the process at Ctrl-C, unless that is deferred by another handler."""
    while received := os.read(reader, 1):
        if received[0] in (signal.SIGINT, *_LIKE_CTRL_C) and ends_at_ctrl_c():
            _end(signal.SIGINT, None)


def _end(number: int, frame: FrameType | None) -> None:
    """Ends the process; if two threads call it, only the first has an effect."""
    if not _ending.acquire(blocking=False):
        return
    line = "Interrupted.\n"
    try:
        if os.isatty(2):
            line = _SHOW_CURSOR + line
        os.write(2, line.encode())
    except OSError:
        pass  # stderr has no reader
    for path in TO_REMOVE:
        with suppress(OSError):
            os.unlink(path)
    os._exit(EXIT_INTERRUPTED)


if is_command():
    end_at_ctrl_c()
