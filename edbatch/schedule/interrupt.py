"""Handles Ctrl-C: deferred to a safe moment, and always as `KeyboardInterrupt`."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

_Handler = Callable[[int, FrameType | None], object]


def is_ctrl_c(error: BaseException) -> bool:
    """Returns whether an exception is due to Ctrl-C.

    Args:
        error: The exception, in the thread in which it was raised.

    Returns:
        Whether it is a `KeyboardInterrupt` in the main thread, the only thread that
        receives Ctrl-C. In another thread, the user's code has raised it.

    Example:
        >>> is_ctrl_c(KeyboardInterrupt()), is_ctrl_c(SystemExit())
        (True, False)
    """
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and isinstance(error, KeyboardInterrupt)


class _Deferral:
    """A handler that records Ctrl-C, and passes on the second one unless it is held."""

    def __init__(self, before: _Handler) -> None:
        self.before = before
        self.pressed = False
        self.pressed_again = False
        self.holds = 0  # number of blocks that hold back the second Ctrl-C, too

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if getattr(self.before, "is_ignored", False):
            return
        if self.pressed and self.holds:
            self.pressed_again = True
        elif self.pressed:
            self.before(number, frame)
        self.pressed = True

    def check(self) -> None:
        if self.pressed:
            self.pressed = False
            raise KeyboardInterrupt

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Holds back the second Ctrl-C, too; it acts at the end of the block."""
        self.holds += 1
        try:
            yield
        finally:
            self.holds -= 1
            if self.pressed_again and not self.holds:
                self.pressed_again = False
                self.before(signal.SIGINT, None)


@contextmanager
def deferred_interrupt(*, short: bool = False) -> Iterator[Callable[[], None]]:
    """Defers Ctrl-C: to the end of the block, or to safe moments within it.

    For operations that must not be interrupted, such as writing a file, and for
    compiled code, which may not survive an exception while it runs. A second Ctrl-C
    acts at once, in case no safe moment comes. A block within another leaves Ctrl-C to
    the end of the outer one. Where Ctrl-C is ignored, it remains so.

    Args:
        short: Whether the block ends by itself within moments; if so, a second Ctrl-C
            is deferred to its end, too.

    Yields:
        A function to call at safe moments; it raises `KeyboardInterrupt` if Ctrl-C was
        pressed. The Ctrl-C is handled then.

    Example:
        >>> with deferred_interrupt() as check:
        ...     check()
    """
    before = signal.getsignal(signal.SIGINT)
    # Only the main thread may handle signals, and only it receives Ctrl-C.
    if not _in_main_thread() or not callable(before):
        yield _nothing
        return
    if isinstance(before, _Deferral):
        with before.hold() if short else nullcontext():
            yield before.check
        return
    deferral = _Deferral(before)
    signal.signal(signal.SIGINT, deferral)
    try:
        with deferral.hold() if short else nullcontext():
            yield deferral.check
    finally:
        signal.signal(signal.SIGINT, before)
        if deferral.pressed:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def keyboard_interrupts() -> Iterator[None]:
    """Raises `KeyboardInterrupt` even if compiled code turned it into another error.

    Numba calls Python for each array that a compiled function returns. Ctrl-C raises
    `KeyboardInterrupt` there; Numba continues, and Python reports a `SystemError`.

    Raises:
        KeyboardInterrupt: The block was interrupted.

    Example:
        >>> try:
        ...     with keyboard_interrupts():
        ...         raise SystemError from KeyboardInterrupt()
        ... except KeyboardInterrupt:
        ...     print("interrupted")
        interrupted
    """
    try:
        yield
    except SystemError as error:
        cause: BaseException | None = error
        while isinstance(cause, SystemError):
            cause = cause.__cause__ or cause.__context__
        if isinstance(cause, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _nothing() -> None:
    """Does nothing: no Ctrl-C is deferred."""
