"""Worker processes, whose answers are read in the order of the tasks.

Workers are spawned. A fork of a process that runs JAX may hang: JAX and XLA run
threads, and a fork copies their locks in whatever state they are. A fork server is
still there after a loader is closed, and is shared by the whole program. A spawned
worker starts from scratch, takes about two seconds for its imports, and leaves nothing
behind.

Workers send answers through a pipe. Reading 35 kB, the recording of 64 trees, takes
this process 11 µs in one message, 16 µs with buffers in separate messages, and 47 µs
from a block of shared memory; 110 kB take 18, 17 and 62 µs. From 1 MB on, shared memory
is as fast; 10 MB take 9.6, 14.2 and 2.8 ms.
"""

import os
import pickle
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from edbatch.errors import LoaderError, shown
from edbatch.loader.worker import (
    PROTOCOL,
    STARTED,
    Failure,
    Task,
    WorkerTraceback,
    serve,
)

PROCESS_NAME = "edbatch-loader"
_POLL_S = 0.05  # interval for checking whether an answer is still wanted
_GRACE_S = 1.0  # for a worker to end by itself
_EXIT_S = 10.0  # for a worker that has closed its pipe to finish its exit handlers
_starting = threading.Lock()


class Stopped(Exception):
    """The loop that waited for an answer has ended."""


class _Worker:
    """One process, and the parent's end of its pipe."""

    def __init__(self, process: BaseProcess, connection: Connection) -> None:
        self.process = process
        self.connection = connection
        self.waiting = 0  # number of tasks sent whose answers were not read
        self.started = False

    def send(self, message: bytes) -> None:
        self.waiting += 1
        with suppress(OSError):  # it has ended, and reading the answer will raise
            self.connection.send_bytes(message)

    def receive(self, serial: int, stopped: threading.Event) -> Any:
        """Reads the answer to a task; drops answers to earlier tasks.

        Raises:
            EOFError: The process has ended.
            Stopped: Nobody waits for the answer any more.
        """
        while True:
            ready = wait([self.connection, self.process.sentinel], _POLL_S)
            if stopped.is_set():
                raise Stopped
            if self.connection in ready:
                try:
                    number, answer = pickle.loads(self.connection.recv_bytes())
                except OSError:
                    raise EOFError from None
                self.started = True
                if number == STARTED:
                    continue
                self.waiting -= 1
                if number == serial:
                    return answer
            elif ready:
                raise EOFError


class Ticket:
    """A task that was given to a worker; made by `Workers.submit`."""

    def __init__(
        self, workers: "Workers", worker: _Worker, serial: int, task: Task
    ) -> None:
        self._workers = workers
        self.worker = worker
        self.serial = serial
        self.numbers = task.numbers
        self.outcome: Callable[[], Any] | None = None

    def result(self) -> Any:
        """Waits for the answer; answers to earlier tasks are read before it.

        Returns:
            The answer, converted by the `read` function of `Workers`.

        Raises:
            Exception: Raised in the worker; its cause is a `WorkerTraceback`.
            LoaderError: The worker has ended.
            Stopped: The loop has ended.
        """
        return self._workers.result(self)


class Workers:
    """Processes that record, for one loop at a time.

    Args:
        count: Number of processes.
        setup: A pickled `edbatch.loader.worker.Setup`.
        read: Converts an answer; called in the order of the tasks.
    """

    def __init__(self, count: int, setup: bytes, read: Callable[[Any], Any]) -> None:
        self._read = read
        self._order: deque[Ticket] = deque()
        self._lock = threading.Lock()
        self._serial = 0
        self._workers: list[_Worker] = []
        self._owner = os.getpid()
        # The finalizer must not keep this object alive.
        self._finish = weakref.finalize(self, _end, self._workers, self._owner)
        with _start_of_workers():
            for k in range(count):
                self._workers.append(_start(f"{PROCESS_NAME}-{k}", setup))
        self.stopped = threading.Event()

    def submit(self, task: Task) -> Ticket:
        """Gives a task to the worker with the fewest unread answers."""
        worker = min(self._workers, key=lambda each: each.waiting)
        self._serial += 1
        ticket = Ticket(self, worker, self._serial, task)
        try:
            pickled = pickle.dumps(task, PROTOCOL)
        except Exception as error:
            raise LoaderError(
                "a loader with workers sends instances to other processes, but one of"
                f" {shown(list(task.numbers))} cannot be pickled: {error}; leave out"
                " what cannot (open files, functions), read instances by number"
                " (a data set with __getitem__), or leave workers out"
            ) from error
        message = pickle.dumps((self._serial, pickled), PROTOCOL)
        worker.send(message)
        self._order.append(ticket)
        return ticket

    def result(self, ticket: Ticket) -> Any:
        """Reads answers in the order of the tasks, up to a ticket's; returns that."""
        with self._lock:
            while ticket.outcome is None:
                if self.stopped.is_set() or not self._order:
                    raise Stopped
                head = self._order.popleft()
                head.outcome = self._outcome(head)
        return ticket.outcome()

    def _outcome(self, ticket: Ticket) -> Callable[[], Any]:
        worker = ticket.worker
        try:
            answer = worker.receive(ticket.serial, self.stopped)
        except EOFError:
            return partial(_raise, _ended(worker, ticket.numbers))
        if isinstance(answer, Failure):
            failure, text = answer
            failure.__cause__ = WorkerTraceback(text)
            return partial(_raise, failure)
        try:
            found = self._read(answer)
        except Exception as error:  # later answers can still be read
            return partial(_raise, error)
        return lambda: found

    def begin(self) -> threading.Event:
        """Begins a loop; the tasks of an earlier loop are dropped.

        Returns:
            The event to set when nobody waits for answers any more.
        """
        self._drop_all()
        self.stopped = threading.Event()
        return self.stopped

    def _drop_all(self) -> None:
        self.stopped.set()
        with self._lock:
            self._order.clear()

    @property
    def alive(self) -> bool:
        """Whether all processes run, and were started by this process."""
        workers = self._workers
        if os.getpid() != self._owner:
            return False
        return bool(workers) and all(each.process.is_alive() for each in workers)

    def close(self) -> None:
        """Ends the processes; their unfinished recordings are dropped."""
        if os.getpid() == self._owner:  # in a fork, a lock may be held forever
            self._drop_all()
        self._finish()


def _raise(error: Exception) -> Any:
    raise error


def _start(name: str, setup: bytes) -> _Worker:
    context = get_context("spawn")
    own, its = context.Pipe()
    try:
        process = context.Process(
            target=serve, args=(its, setup), name=name, daemon=True
        )
        process.start()
    except BaseException:
        own.close()
        raise
    finally:
        its.close()
    return _Worker(process, own)


@contextmanager
def _start_of_workers() -> Iterator[None]:
    """Context in which started processes use no GPU and ignore Ctrl-C.

    Ctrl-C reaches all processes of a terminal. The loader ends its workers itself.
    """
    blocks = hasattr(signal, "pthread_sigmask")
    with _starting:
        before = os.environ.get("JAX_PLATFORMS")
        os.environ["JAX_PLATFORMS"] = "cpu"
        if blocks:  # started later, the tracker would unblock the signals
            resource_tracker.ensure_running()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ()) if blocks else set()
        try:
            if blocks:  # processes inherit it
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            yield
        finally:
            if before is None:
                del os.environ["JAX_PLATFORMS"]
            else:
                os.environ["JAX_PLATFORMS"] = before
            if blocks:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _end(workers: list[_Worker], owner: int) -> None:
    """Ends processes: idle ones by closing their pipes, others by a signal.

    A fork of the process that started them only closes its ends of the pipes.
    """
    for each in workers:
        each.connection.close()
    if os.getpid() != owner:
        return
    for each in workers:
        if each.waiting:
            each.process.terminate()
    for each in workers:
        each.process.join(_GRACE_S)
        if each.process.is_alive():
            each.process.kill()
            each.process.join()
        each.process.close()
    workers.clear()


def _ended(worker: _Worker, numbers: list[int]) -> LoaderError:
    """Returns the error for a process that has ended by itself."""
    worker.process.join(_EXIT_S)
    code = worker.process.exitcode
    how = "closed its pipe" if code is None else f"ended with exit code {code}"
    which = f"instances {numbers[0]} to {numbers[-1]}"
    if sorted(numbers) != list(range(numbers[0], numbers[0] + len(numbers))):
        which = f"a minibatch with instance {numbers[0]}"
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return LoaderError(
            f"a worker process of a loader records until the loader is closed, but"
            f" {name} ended one while it had {which} to record; usually the system had"
            " no memory left; use fewer workers, or smaller minibatches"
        )
    if not worker.started:
        return LoaderError(
            f"a worker process of a loader {how} before it had recorded anything; see"
            " stderr for the reason; usually the script starts workers whenever it is"
            ' imported; put its code below if __name__ == "__main__":'
        )
    return LoaderError(
        f"a worker process of a loader records until the loader is closed, but one"
        f" {how} while it had {which} to record; usually the data set or the model"
        " ends the process; let it raise an exception"
    )
