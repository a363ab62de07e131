"""The background thread that compiles programs, one after the other.

One thread serves all functions, in order of arrival: XLA's own threads already use the
cores, and the calls that run meanwhile need some. It exits when the queue is empty.

When the process exits, nobody needs what the thread is compiling. Python would kill the
thread wherever it is, which C++ code on the thread's stack treats as an error and
aborts. XLA's compiler cannot be interrupted, and waiting for it could take a minute. So
the thread is stopped by an exception while it traces and lowers, and gets some time to
finish reading from the cache. While XLA compiles, C++'s terminate handler is replaced
by one that sleeps. Once Python has shut down, the process exits at once, before C++
destroys data that XLA's threads still read.
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

EXIT_WAIT_S = 2.0  # at exit, time for the thread to stop tracing, lowering or reading
_AT_COMPILER_S = 0.05

log = logging.getLogger("edbatch")


class _Stop(BaseException):
    """Raised in the thread, wherever it is in Python code, when the process exits."""


class Work:
    """A compilation that is queued, running or done.

    Attributes:
        finished: Set once the compilation is done or has failed.
        error: The exception if it failed; otherwise None.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work
        self.finished = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        """Runs the compilation and stores its exception, if any; re-raises `_Stop`."""
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
        """Marks it as finished without running it: failed, or compiled elsewhere."""
        self._work, self.error = None, error
        self.finished.set()


class Pending:
    """Handle for programs that are being compiled, or are compiled already.

    Attributes:
        programs: Number of these programs, without those that existed before.
        works: Compilations to wait for; empty if the programs are compiled already.

    Example:
        >>> Pending(0).done, Pending(0).wait()
        (True, True)
    """

    def __init__(self, programs: int, works: Sequence[Work] = ()) -> None:
        self.programs = programs
        self.works = tuple(works)

    @property
    def done(self) -> bool:
        """Whether each program is compiled or has failed."""
        return all(each.finished.is_set() for each in self.works)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until all are compiled.

        Args:
            timeout: Seconds to wait at most; None for no limit.

        Returns:
            Whether all are compiled.

        Raises:
            Exception: Raised by a compilation.
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
        """Waits until each program is compiled or has failed; raises nothing."""
        for each in self.works:
            each.finished.wait()

    def __repr__(self) -> str:
        """Returns the number of programs, and how many are still to compile."""
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
        self._urgent = 0  # number of urgent works, at the front of the queue
        self._running: Work | None = None
        self._thread: threading.Thread | None = None
        self._closing = False
        self.in_compiler = False
        self._compiler_wait_s = _AT_COMPILER_S

    def submit(self, work: Callable[[], None], *, is_urgent: bool = False) -> Pending:
        """Queues a compilation.

        Args:
            work: Function that compiles one or more programs.
            is_urgent: Whether anything waits for it, such as held instances; urgent
                works come before all others.

        Returns:
            Its handle.
        """
        own = Work(work)
        pending = Pending(1, [own])
        with self._condition:
            if self._closing:
                own.abandon(_ending())
                return pending
            if not self._at_exit:  # registered after JAX's handler, so it runs before
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
        """Removes a compilation from the queue, so that the caller can run it now.

        Args:
            pending: The handle that `submit` returned.

        Returns:
            Whether it was removed; False if it has started. After a removal the caller
            must call `Work.abandon` once it has compiled.
        """
        with self._condition:
            if not pending.works or pending.works[0] not in self._queue:
                return False
            place = self._queue.index(pending.works[0])
            del self._queue[place]
            self._urgent -= place < self._urgent
            return True

    def at_compiler(self, is_there: bool, *, reads: bool = False) -> None:
        """Records that the thread enters or leaves XLA's compiler.

        Args:
            is_there: Whether the thread is in the compiler.
            reads: Whether it only reads a program from the cache. The exit of the
                process waits for that, because a thread that returned to Python at the
                wrong moment would use freed memory.
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
        if self._closing:  # may be stopped at any moment: take no lock
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
        """Stops the thread when the process exits."""
        with self._condition:
            self._closing = True
            thread, lost = self._thread, list(self._queue)
            self._queue.clear()
        for each in lost:
            each.abandon(_ending())
        if thread is None:
            return
        sys.unraisablehook = _without_stops(sys.unraisablehook)
        gc.disable()  # otherwise the exception might be raised in a gc callback
        end = time.monotonic() + EXIT_WAIT_S
        while thread.is_alive() and time.monotonic() < end:
            if self.in_compiler:
                thread.join(self._compiler_wait_s)
                break
            _raise_in(thread)
            thread.join(_AT_COMPILER_S)
        if thread.is_alive():
            _exit_during_compilation()
        # No later exit handler waits for the thread. It may have been stopped while it
        # held the lock, which nobody can release then.
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
        """Starts over in a forked process, where the thread does not exist."""
        lost = [*([self._running] if self._running else []), *self._queue]
        self._begin()
        for each in lost:
            each.finished = threading.Event()  # the old event's lock may be held
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
    """Waits until the background thread has nothing left to compile.

    Args:
        timeout: Seconds to wait at most; None for no limit.

    Returns:
        Whether nothing is left to compile.

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


def _exit_during_compilation() -> None:
    """Lets the process exit while a thread is in XLA's compiler (Linux with glibc)."""
    if sys.platform != "linux":
        return
    try:
        libc: Any = ctypes.CDLL(None)
        # Called instead of abort() by a thread that Python kills while C++ frames are
        # on its stack.
        set_terminate: Any = ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE
        set_terminate.argtypes = [ctypes.c_void_p]
        set_terminate(ctypes.cast(libc.pause, ctypes.c_void_p))
        # Exit handlers run in reverse order of their registration: this one runs first,
        # gets the exit status, and ends the process before any other one of C or C++.
        libc.fflush(None)
        libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)
    except (OSError, AttributeError):  # another C library
        return


WORKER = Worker()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WORKER.reset)
