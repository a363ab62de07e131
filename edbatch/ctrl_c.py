"""Ctrl-C in the commands: a line on stderr and exit code 130, at any moment.

Python raises `KeyboardInterrupt` between any two of its steps, also those that an
import, a destructor or compiled code takes. There it becomes a traceback, a
`SystemError`, a crash, or nothing at all. So a command does not unwind: its process
ends at once. Nothing is lost by that, since whatever must not be cut in two, such as
writing a file, defers the interrupt (`edbatch.schedule.interrupt`).

This module imports nothing that takes time. The package imports it before all others:
the script of a command cannot call anything before the package is imported, which
takes a second or two.
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
_TAKEN: set[int] = set()  # signals that are taken for Ctrl-C


def is_command() -> bool:
    """Whether this process runs the script of a command."""
    script = sys.argv[0] if getattr(sys, "argv", None) else ""
    return os.path.basename(script) in _COMMANDS and os.path.isfile(script)


def end_at_ctrl_c() -> None:
    """Lets Ctrl-C end this process, unless it is ignored or handled otherwise."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        return
    signal.signal(signal.SIGINT, _end)
    # Python calls a handler once the main thread is back from compiled code. XLA may
    # compile for a minute: another thread is told at once.
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader,), daemon=True).start()


def ends_at_ctrl_c() -> bool:
    """Whether Ctrl-C would end this process now, and unwind nothing.

    Example:
        >>> ends_at_ctrl_c()  # in Python it raises KeyboardInterrupt
        False
    """
    return signal.getsignal(signal.SIGINT) is _end


class _Ignored:
    """A handler of Ctrl-C where it is ignored, which lets what is taken for it act.

    Attributes:
        is_ignored: Whether what comes is Ctrl-C itself.
    """

    is_ignored = True

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Ends the command, or unwinds the program, unless it is ignored."""
        if not self.is_ignored:
            if is_command():
                _end(number, frame)
            signal.default_int_handler(number, frame)


@contextmanager
def kill_as_ctrl_c() -> Iterator[None]:
    """Takes SIGTERM and SIGHUP for Ctrl-C, as long as it is open.

    Whatever ends jobs sends the one, a terminal that is closed the other, to which
    nothing is then written any more. Those that are ignored remain so, as below
    `nohup`. So does Ctrl-C itself, which shells ignore for what a script starts with
    ``&``: whatever ends jobs ends that all the same.
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
    _TAKEN.update(before)
    try:
        yield
    finally:
        for number, handler in before.items():
            _TAKEN.discard(number)
            signal.signal(number, handler)


def ignore_ctrl_c() -> None:
    """Ignores Ctrl-C from now on: the command is done, and has said so."""
    if ends_at_ctrl_c():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _watch(reader: int) -> None:
    """Ends the process unless Ctrl-C is deferred, which is a handler of its own."""
    while received := os.read(reader, 1):
        if received[0] in (signal.SIGINT, *_TAKEN) and ends_at_ctrl_c():
            _end(signal.SIGINT, None)


def _end(number: int, frame: FrameType | None) -> None:
    """Ends the process; of two threads that come here, the first does."""
    if not _ending.acquire(blocking=False):
        return
    line = "Interrupted.\n"
    try:
        if os.isatty(2):
            line = _SHOW_CURSOR + line
        os.write(2, line.encode())
    except OSError:
        pass  # nobody reads
    for path in TO_REMOVE:
        with suppress(OSError):
            os.unlink(path)
    os._exit(EXIT_INTERRUPTED)


if is_command():
    end_at_ctrl_c()
