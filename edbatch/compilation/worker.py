"""The background thread that compiles, one program after the other.

One thread serves all functions, in order of arrival: XLA's own threads already use the
cores, and the calls that go on meanwhile need some. It ends when nothing is left.

At the end of the process nobody needs what it compiles. Python would end the thread
where it stands, which C++ code below it takes for an error and aborts; XLA's compiler
cannot be interrupted, and waiting for it could take a minute. So the thread is stopped
by an exception while it traces and lowers, and has some time to end what it reads from
the cache. While XLA compiles, C++'s handler of such aborts is replaced by one that
sleeps; and once Python has ended, the process does so at once, before C++ destroys what
XLA's threads still read.
"""

import atexit
import ctypes
import gc
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from edbatch.errors import CompilationError

EXIT_WAIT_S = 2.0  # for the thread to stop tracing, lowering or reading, at exit
_AT_COMPILER_S = 0.05

log = logging.getLogger("edbatch")


class _Stop(BaseException):
    """Stops the thread, wherever it is in Python, at the end of the process."""


class Work:
    """A compilation in the queue, or done.

    Attributes:
        finished: Set once it is done, or has failed.
        error: What went wrong; None if nothing did, or it is not done.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work
        self.finished = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        """Does it; errors are kept, those that end a thread by themselves, too."""
        work, self._work = self._work, None
        try:
            if work is not None:
                work()
        except _Stop:
            self.error = _ending()
            raise
        except BaseException as error:
            self.error = error
        finally:
            self.finished.set()

    def abandon(self, error: BaseException | None) -> None:
        """Notes that it will not be done here: by an error, or since others did it."""
        self._work, self.error = None, error
        self.finished.set()


class Pending:
    """Programs that the background thread has to compile, or that are compiled.

    Attributes:
        programs: How many there are; those that existed before are left out.
        works: What the background thread does for them; none if it is done at once.

    Example:
        >>> Pending(0).done, Pending(0).wait()
        (True, True)
    """

    def __init__(self, programs: int, works: Sequence[Work] = ()) -> None:
        self.programs = programs
        self.works = tuple(works)

    @property
    def done(self) -> bool:
        """Whether all are compiled, or have failed."""
        return all(each.finished.is_set() for each in self.works)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until all are compiled.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            Whether all are compiled.

        Raises:
            Exception: What compiling raised.
        """
        end = None if timeout is None else time.monotonic() + timeout
        for each in self.works:
            done = each.finished.wait(
                None if end is None else max(0, end - time.monotonic())
            )
            if each.error is not None:
                raise each.error
            if not done:
                return False
        return True

    def settle(self) -> None:
        """Waits until all are compiled or have failed; raises nothing."""
        for each in self.works:
            each.finished.wait()

    def __repr__(self) -> str:
        """Says how far it is."""
        waiting = sum(not each.finished.is_set() for each in self.works)
        return f"<{self.programs} programs, {waiting} to compile>"


class Worker:
    """The thread and its queue."""

    def __init__(self) -> None:
        self._begin()
        self._at_exit = False

    def _begin(self) -> None:
        self._condition = threading.Condition()
        self._queue: deque[Work] = deque()
        self._urgent = 0  # of these, the first ones
        self._running: Work | None = None
        self._thread: threading.Thread | None = None
        self._closing = False
        self.in_compiler = False
        self._compiler_wait_s = _AT_COMPILER_S

    def submit(self, work: Callable[[], None], *, is_urgent: bool = False) -> Pending:
        """Puts work at the end of the queue.

        Args:
            work: Compiles something.
            is_urgent: Whether somebody waits for it, so that it comes before what is
                not urgent.

        Returns:
            Its handle.
        """
        own = Work(work)
        pending = Pending(1, [own])
        with self._condition:
            if self._closing:
                own.abandon(_ending())
                return pending
            if not self._at_exit:  # after JAX's own, so that it runs before that
                atexit.register(self._stop)
                self._at_exit = True
            if is_urgent:
                self._queue.insert(self._urgent, own)
                self._urgent += 1
            else:
                self._queue.append(own)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="edbatch-compile", daemon=True
                )
                self._thread.start()
        return pending

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the queue is empty and nothing is being compiled."""
        with self._condition:
            return self._condition.wait_for(lambda: self._thread is None, timeout)

    def withdraw(self, pending: Pending) -> bool:
        """Takes off the queue what has not begun, for the caller to do it now.

        Args:
            pending: What `submit` returned.

        Returns:
            Whether it was taken off; the caller calls `Work.abandon` when it is done.
        """
        with self._condition:
            if not pending.works or pending.works[0] not in self._queue:
                return False
            place = self._queue.index(pending.works[0])
            del self._queue[place]
            self._urgent -= place < self._urgent
            return True

    def at_compiler(self, is_there: bool, *, reads: bool = False) -> None:
        """Is told when the thread enters and leaves XLA's compiler.

        Args:
            is_there: Whether it is there.
            reads: Whether it only reads a program of the cache, for which the end of
                the process waits: back in Python at the wrong moment, the thread would
                use what has been freed.
        """
        self._compiler_wait_s = EXIT_WAIT_S if reads else _AT_COMPILER_S
        self.in_compiler = is_there

    def _run(self) -> None:
        try:
            while (work := self._next()) is not None:
                work.run()
                self.in_compiler = False
        except _Stop:
            pass

    def _next(self) -> Work | None:
        if self._closing:  # who may be stopped at any moment takes no lock
            return None
        with self._condition:
            self._running = None
            if self._queue and not self._closing:
                self._running = self._queue.popleft()
                self._urgent = max(0, self._urgent - 1)
                return self._running
            self._thread = None
            self._condition.notify_all()
            return None

    def _stop(self) -> None:
        """Stops the thread, at the end of the process."""
        with self._condition:
            self._closing = True
            thread, lost = self._thread, list(self._queue)
            self._queue.clear()
        for each in lost:
            each.abandon(_ending())
        if thread is None:
            return
        sys.unraisablehook = _without_stops(sys.unraisablehook)
        gc.disable()  # its callbacks would take the exception for theirs
        end = time.monotonic() + EXIT_WAIT_S
        while thread.is_alive() and time.monotonic() < end:
            if self.in_compiler:
                thread.join(self._compiler_wait_s)
                break
            _raise_in(thread)
            thread.join(_AT_COMPILER_S)
        if thread.is_alive():
            _end_beside_compiler()
        # Nobody waits for it in what else is done at exit. It may have been stopped
        # while it held the lock, which then nobody can release.
        if not self._condition.acquire(timeout=EXIT_WAIT_S):
            self._condition = threading.Condition()
            self._condition.acquire()
        try:
            if self._running is not None and not self._running.finished.is_set():
                self._running.abandon(_ending())
            self._thread = None
            self._condition.notify_all()
        finally:
            self._condition.release()

    def reset(self) -> None:
        """Begins anew, in a forked process, where the thread does not exist."""
        lost = [*([self._running] if self._running else []), *self._queue]
        self._begin()
        for each in lost:
            each.finished = threading.Event()  # the lock of the old one may be taken
            each.abandon(
                CompilationError(
                    "this process was forked while another one compiled the program in"
                    " the background, so it is not compiled here; warm up in this"
                    " process, or start it by spawn"
                )
            )


def _ending() -> CompilationError:
    return CompilationError(
        "this process is ending, so the program is not compiled in the background any"
        " more; wait for it before (eb.wait_for_compilations())"
    )


def wait_for_compilations(timeout: float | None = None) -> bool:
    """Waits until the background thread has compiled everything that it was given.

    Args:
        timeout: Seconds to wait at most; None for as long as it takes.

    Returns:
        Whether everything is compiled.

    Example:
        >>> wait_for_compilations()
        True
    """
    return WORKER.wait(timeout)


def _raise_in(thread: threading.Thread) -> None:
    assert thread.ident is not None, "the thread was started"
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(_Stop)
    )


def _without_stops(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def quiet(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, _Stop):
            hook(unraisable)

    return quiet


def _end_beside_compiler() -> None:
    """Lets the process end while a thread is in XLA's compiler (Linux with glibc)."""
    if sys.platform != "linux":
        return
    try:
        libc: Any = ctypes.CDLL(None)
        # Called by the thread that Python ends below C++, in place of abort().
        set_terminate: Any = ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE
        set_terminate.argtypes = [ctypes.c_void_p]
        set_terminate(ctypes.cast(libc.pause, ctypes.c_void_p))
        # Called with the status first of all that C and C++ do at exit, and the last.
        libc.fflush(None)
        libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)
    except (OSError, AttributeError):  # another C library
        return


WORKER = Worker()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WORKER.reset)
