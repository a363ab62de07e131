"""`eb.Server`: requests join at the next wave, and leave as soon as they are done.

This is continuous batching, as in vLLM and Orca (OSDI 2022), for any model: a new
request does not wait for others to finish, and a finished one does not wait for the
rest. Requests run wave by wave if the model reads values (`edbatch.value`), otherwise
in a single wave.

One thread runs the model and the waves, since a suspended instance cannot move to
another thread. Requests may be submitted from any thread or event loop.
"""

import asyncio
import atexit
import math
import os
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import cycle, islice
from os import PathLike
from typing import Any, NoReturn

import numpy as np

from edbatch.arguments import check_number, list_of
from edbatch.batched import Batched
from edbatch.compilation.warm_up import warm_up
from edbatch.compilation.worker import Pending
from edbatch.errors import (
    EdbatchError,
    PickleError,
    PolicyError,
    ServerFullError,
    shown,
)
from edbatch.graph.node_type import TypeKey
from edbatch.graph.parameter_structure import abstract, check_params
from edbatch.graph.type_limit import TypeLimit
from edbatch.schedule.serving.policy import JOIN_AT_ONCE, ServingPolicy
from edbatch.serving.decisions import (
    WaveDecider,
    as_serving_policy,
    of_another_model,
)
from edbatch.serving.generation import Generation
from edbatch.serving.loop_answers import LoopAnswers
from edbatch.serving.new_types import limit_of
from edbatch.serving.queue import Queue
from edbatch.serving.request import Request
from edbatch.serving.stats import Counts, ServerStats
from edbatch.serving.wave_loop import WaveLoop
from edbatch.waves.programs import as_arrays

_AT_EXIT_S = 5.0  # how long a process that ends waits for models running in Python
FOR_INSTANCE = "for instance "  # prefix of notes that a warm-up adds to exceptions
_PARTS = 2  # one runs in Python while the device computes the other

_threads: "weakref.WeakSet[_Thread]" = weakref.WeakSet()


class Server:
    """Serves requests with a batched function; see `submit`.

    A server that is garbage-collected without `drain` or `close` answers all accepted
    requests, then ends.

    Args:
        batched: The batched function, for one device.
        params: The model's parameters.
        policy: Decides which batches the next wave runs, whether to wait for more
            requests, and when they join: a file from ``train-policy --serving``, or an
            `edbatch.schedule.serving.ServingPolicy`. Default: requests join at the next
            wave, and a wave runs all nodes that they need, scheduled by the batched
            function's policy.
        max_rows: Maximum rows of a batch that the policy chooses.
        patience_ms: If the policy makes a node that is ready wait for longer than this,
            or repeatedly makes an idle device wait, the next wave runs all nodes that
            are needed.
        max_waiting: Maximum number of queued requests; more are refused at once.
        max_in_flight: Maximum number of requests that run at the same time.
        max_nodes: Maximum number of cell calls that an instance makes between two
            values it reads. A larger request fails alone, even if its model catches the
            error.
        max_new_types: Maximum number of node types (a cell with the shapes, dtypes and
            static arguments of a call) that requests may add to those of the warm-up. A
            request that exceeds it fails alone. Each type is compiled, in the
            background, into the program that runs all requests; requests with that type
            are held until then. None for no limit.
        rng: The key for cells that draw random numbers. The keys of a request are
            derived from it and from the number of earlier requests.

    Raises:
        EdbatchError: An argument has the wrong type or is out of range; or a parameter
            is not an array, or was deleted.

    Example:
        >>> import edbatch as eb
        >>> import jax.numpy as jnp
        >>> twice = eb.batch(eb.cell(lambda params, x: params * x))
        >>> with eb.Server(twice, jnp.float32(2)) as server:
        ...     futures = [server.submit_nowait(float(k)) for k in range(3)]
        ...     [each.result().item() for each in futures]
        [0.0, 2.0, 4.0]
    """

    def __init__(
        self,
        batched: Batched,
        params: Any,
        *,
        policy: ServingPolicy | str | PathLike[str] | None = None,
        max_rows: int = 256,
        patience_ms: float = 1000.0,
        max_waiting: int = 1024,
        max_in_flight: int = 256,
        max_nodes: int = 100_000,
        max_new_types: int | None = None,
        rng: Any = None,
    ) -> None:
        if not isinstance(batched, Batched):
            raise EdbatchError(
                "eb.Server takes a batched function for one device, as returned by"
                f" eb.batch, but received {shown(batched)}, of type"
                f" {type(batched).__name__}"
            )
        for name, value in (
            ("max_rows", max_rows),
            ("max_waiting", max_waiting),
            ("max_in_flight", max_in_flight),
            ("max_nodes", max_nodes),
        ):
            check_number(EdbatchError, f"{name} of eb.Server", value, 1, whole=True)
        check_number(EdbatchError, "patience_ms of eb.Server", patience_ms, 0)
        if max_new_types is not None:
            what = "max_new_types of eb.Server"
            check_number(EdbatchError, what, max_new_types, 0, whole=True)
        abstract(params)  # raises if a leaf is no array or number, but a setting
        params = as_arrays(params)
        self._policy = None if policy is None else as_serving_policy(policy)
        self._admission = JOIN_AT_ONCE
        if self._policy is not None:
            self._admission = self._policy.admission
            max_in_flight = min(max_in_flight, self._admission.max_requests)
        self._new = partial(
            _generation,
            batched,
            rng,
            int(max_rows),
            float(patience_ms),
            int(max_nodes),
            set(),
        )
        self._max_in_flight = int(max_in_flight)
        self._counts = Counts()
        self._type_limit = limit_of(max_new_types)
        self._queue = Queue(int(max_waiting), self._counts)
        self._answers = LoopAnswers()
        self._loop = WaveLoop(  # holds no reference to the server
            self._queue,
            self._counts,
            partial(
                self._new,
                counts=self._counts,
                policy=self._policy,
                type_limit=self._type_limit,
            ),
            params,
            self._admission,
            self._max_in_flight,
            self._answers,
        )
        self._thread = _Thread(self._loop, self._queue)
        self._thread.start()
        weakref.finalize(self, self._queue.close).atexit = False

    def warm_up(self, sample: Iterable[Any], *, block: bool = True) -> Pending:
        """Compiles ahead of time the programs for requests like those of a sample.

        The sample is run by coarse programs, as if all of its requests arrived at once.
        It is repeated until `max_in_flight` requests have run.

        Args:
            sample: A few representative instances.
            block: Whether to wait until everything is compiled. Otherwise a background
                thread compiles, and until then requests run coarse programs.

        Returns:
            A handle with ``wait()`` and ``done``, as for `edbatch.Batched.warm_up`.

        Raises:
            Exception: Raised by the model, with a note that names the instance.
            PolicyError: The server's policy was trained on none of the cells that the
                model calls.
            ServerClosedError: The server was drained or closed.
        """
        self._queue.check_open()
        given = list_of(EdbatchError, "a sample", sample)
        most = max(len(given), self._max_in_flight)
        instances = list(islice(cycle(given), most))
        calls: list[Any] = []
        # Sizes grow in the first rounds.
        rounds = (None, None) if self._policy is None else (None, *2 * [self._policy])
        for policy in rounds:
            own = self._new(
                self._loop.params,
                counts=Counts(),
                policy=policy,
                type_limit=None,
                holds=False,
            )
            requests = [Request(each, k, 0, None) for k, each in enumerate(instances)]
            for first in range(0, len(requests), self._max_in_flight):
                for each in requests[first : first + self._max_in_flight]:
                    own.start(each)
                while len(own):
                    own.step(may_wait=False)
            for k, each in enumerate(requests):
                try:
                    each.future.result(0)
                except BaseException as error:
                    note = f"{FOR_INSTANCE}{k % len(given)} of the sample"
                    if note not in getattr(error, "__notes__", ()):
                        error.add_note(note)
                    raise
            if self._type_limit is not None:
                self._type_limit.reset()
            calls = own.runner.execution.calls()
            self._check_policy(own.runner.tape.types.keys)
        return warm_up(calls, block)

    def _check_policy(self, type_keys: Sequence[TypeKey]) -> None:
        """Raises `PolicyError` if the policy was trained for another model."""
        sentence = of_another_model(self._policy, type_keys)
        if sentence is not None:
            raise PolicyError(sentence)

    def submit_nowait(
        self,
        instance: Any,
        *,
        deadline_ms: float | None = None,
        priority: float = 0,
    ) -> "Future[Any]":
        """Submits a request, from any thread.

        Args:
            instance: The instance. The server's thread reads it later, so its arrays
                must not be modified before the request is answered.
            deadline_ms: Time limit for the answer. After it, the rest of the request
                does not run.
            priority: Waiting requests of higher priority run first.

        Returns:
            A future of the model's result, with NumPy arrays in place of cell outputs.
            It raises the model's exception, `edbatch.errors.DeadlineError` or
            `edbatch.errors.ServerClosedError`. Cancelling it ends the request and frees
            its rows. Its callbacks run in the server's thread, as models do, and must
            not wait for another request of the server.

        Raises:
            ServerFullError: `max_waiting` requests are waiting.
            ServerClosedError: The server was drained or closed.
            EdbatchError: The deadline or the priority is not a number.
        """
        [future] = self._submit([instance], deadline_ms, priority)
        return future

    def submit_many(
        self,
        instances: Iterable[Any],
        *,
        deadline_ms: float | None = None,
        priority: float = 0,
    ) -> "list[Future[Any]]":
        """Submits several requests at once, from any thread: all of them, or none.

        They are queued consecutively, in the order of the instances. This takes one
        lock and wakes the server once, so the requests join the same wave if there is
        room.

        Args:
            instances: The instances.
            deadline_ms: As for `submit_nowait`, for each request.
            priority: As for `submit_nowait`, for each request.

        Returns:
            The futures, as for `submit_nowait`. Each request can be cancelled, late or
            fail independently.

        Raises:
            ServerFullError: There is not enough room; none was accepted.
            ServerClosedError: The server was drained or closed.
            EdbatchError: The deadline or the priority is not a number.

        Example:
            >>> import edbatch as eb
            >>> import jax.numpy as jnp
            >>> twice = eb.batch(eb.cell(lambda params, x: params * x))
            >>> with eb.Server(twice, jnp.float32(2)) as server:
            ...     [each.result().item() for each in server.submit_many([1.0, 4.0])]
            [2.0, 8.0]
        """
        given = list_of(EdbatchError, "what submit_many takes", instances)
        return self._submit(given, deadline_ms, priority)

    def _submit(
        self, instances: Sequence[Any], deadline_ms: float | None, priority: float
    ) -> "list[Future[Any]]":
        # Convert to Python numbers: NumPy scalars of few bits overflow and round.
        if deadline_ms is not None:
            check_number(EdbatchError, "deadline_ms of a request", deadline_ms, 0)
            deadline_ms = float(deadline_ms)
        check_number(EdbatchError, "the priority of a request", priority)
        if isinstance(priority, np.generic):
            priority = priority.item()
        try:
            requests = self._queue.put(instances, deadline_ms, priority)
        except ServerFullError:
            self._counts.add(refused=len(instances))
            raise
        self._counts.add(submitted=len(requests))
        return [each.future for each in requests]

    def submit_in_loop(
        self,
        instance: Any,
        *,
        deadline_ms: float | None = None,
        priority: float = 0,
    ) -> "asyncio.Future[Any]":
        """Submits a request, in an event loop, without waiting for its answer.

        The loop is woken once for all of its requests that end together, whereas
        ``asyncio.wrap_future(server.submit_nowait(...))`` wakes it for each.

        Args:
            instance: As for `submit_nowait`.
            deadline_ms: As for `submit_nowait`.
            priority: As for `submit_nowait`.

        Returns:
            A future of the running event loop. Cancelling it cancels the request.

        Raises:
            EdbatchError: As for `submit_nowait`.
            RuntimeError: No event loop is running in this thread.
        """
        asyncio.get_running_loop()  # raises before anything is submitted
        self._queue.check_thread()
        future = self.submit_nowait(
            instance, deadline_ms=deadline_ms, priority=priority
        )
        return self._answers.future(future)

    async def submit(
        self,
        instance: Any,
        *,
        deadline_ms: float | None = None,
        priority: float = 0,
    ) -> Any:
        """Submits a request and waits for its answer, in an event loop.

        Args:
            instance: As for `submit_nowait`.
            deadline_ms: As for `submit_nowait`.
            priority: As for `submit_nowait`.

        Returns:
            The model's result, as for `submit_nowait`.

        Raises:
            Exception: As for `submit_nowait` and its future. Cancelling the task
                cancels the request.
        """
        return await self.submit_in_loop(
            instance, deadline_ms=deadline_ms, priority=priority
        )

    def swap_params(self, params: Any) -> None:
        """Replaces the parameters for all requests that start from now on.

        Requests in flight keep their parameters; nothing stops, nothing is compiled.

        Args:
            params: Parameters of the same structure, shapes and dtypes.

        Raises:
            PlanError: They differ in one of these, or were deleted.
            ServerClosedError: The server has ended, so no more requests start.
        """
        if not self.is_running:  # a draining server still starts waiting requests
            self._queue.check_open()
        check_params(
            params,
            abstract(self._loop.params),
            "the server was started",
            "swap in parameters of the same structure, shapes and dtypes, or start a"
            " server for these",
        )
        self._loop.swap_params(as_arrays(params))

    @property
    def is_running(self) -> bool:
        """Whether the server's thread is alive; it ends by `drain` or `close`."""
        return self._thread.is_alive()

    @property
    def max_in_flight(self) -> int:
        """Maximum number of requests that run at the same time."""
        return self._max_in_flight

    def stats(self) -> ServerStats:
        """Returns the server's statistics so far."""
        waiting, in_flight = len(self._queue), self._loop.in_flight
        return self._counts.summary(
            waiting, in_flight, self._loop.held, self._loop.turns.slowest()
        )

    def drain(self, timeout: float | None = None) -> bool:
        """Stops accepting requests, and waits until all accepted ones are answered.

        Args:
            timeout: Maximum seconds to wait; None or infinity for no limit.

        Returns:
            Whether all are answered; if not, they continue to run.

        Raises:
            EdbatchError: The timeout is not a number, or below zero.
        """
        timeout = _checked_timeout("drain", timeout)
        self._queue.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def close(self, timeout: float | None = None) -> bool:
        """Ends the server at once: requests without an answer fail.

        Python code that a model runs between two cell calls is waited for, since a
        thread cannot be interrupted in it.

        Args:
            timeout: Maximum seconds to wait, as for `drain`.

        Returns:
            Whether the server has ended; if not, it ends once the model's code returns.

        Raises:
            EdbatchError: As for `drain`.
        """
        timeout = _checked_timeout("close", timeout)
        self._loop.stopped = True
        return self.drain(timeout)

    def __reduce__(self) -> NoReturn:
        """Raises `PickleError`: a server cannot leave its process."""
        raise PickleError(
            "a server answers in the process that made it, so it can be neither pickled"
            " nor copied; pickle the batched function and the parameters, and make an"
            " eb.Server of them in the other process"
        )

    def __enter__(self) -> "Server":
        """Returns the server, which is already running."""
        return self

    def __exit__(self, *error: object) -> None:
        """Drains the server; closes it at once if the block raised."""
        if error[0] is None:
            self.drain()
        else:
            self.close()

    async def __aenter__(self) -> "Server":
        """Returns the server, which is already running."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Like `__exit__`, without blocking the event loop.

        Tasks created in the block submit their requests first. If the current task is
        cancelled while it waits, the server is closed.
        """
        if error[0] is not None:
            self._loop.stopped = True
        else:
            await asyncio.sleep(0)  # lets new tasks begin
        self._queue.close()  # now, since a thread for `drain` may start much later
        try:
            await asyncio.to_thread(self.drain)
        except asyncio.CancelledError:
            self._loop.stopped = True
            self._queue.close()  # wakes the server's thread
            raise

    def __repr__(self) -> str:
        """Numbers of waiting and running requests, in one line."""
        return (
            f"<eb.Server: {len(self._queue)} requests waiting,"
            f" {self._loop.in_flight} in flight>"
        )


def _generation(
    batched: Batched,
    rng: Any,
    max_rows: int,
    patience_ms: float,
    max_nodes: int,
    told: set[str],
    params: Any,
    *,
    counts: Counts,
    policy: ServingPolicy | None,
    type_limit: TypeLimit | None,
    holds: bool = True,
) -> Generation:
    runner, model = batched.wave_runner(params, rng)
    deciders = [
        WaveDecider(policy, max_rows, patience_ms, told)
        for _ in range(_PARTS)
        if policy is not None
    ]
    return Generation(
        runner, model, max_nodes, type_limit, counts, deciders, holds=holds
    )


class _Thread(threading.Thread):
    """The thread of a server; it may outlive the server object."""

    def __init__(self, loop: WaveLoop, queue: Queue) -> None:
        super().__init__(target=loop.run, name="edbatch server", daemon=True)
        self.loop, self.queue = loop, queue
        _threads.add(self)

    def run(self) -> None:
        """Answers requests."""
        self.queue.thread = threading.get_ident()
        try:
            super().run()
        finally:
            self.queue.thread = None  # thread identifiers are reused

    def stop(self) -> None:
        """Ends the thread once the model's code returns; waiting requests fail."""
        self.loop.stopped = True
        self.queue.close()


def _after_fork() -> None:
    for each in list(_threads):
        each.queue.after_fork()
    _threads.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _close_servers() -> None:
    """Ends all servers, so that no thread of theirs runs in the interpreter's shutdown.

    A model that never returns does not block exit: the thread is a daemon.
    """
    threads, until = list(_threads), time.monotonic() + _AT_EXIT_S
    for each in threads:
        each.stop()  # all first, so that they end in parallel
    for each in threads:
        if each is not threading.current_thread() and each.is_alive():
            each.join(max(0.0, until - time.monotonic()))


def _checked_timeout(name: str, timeout: float | None) -> float | None:
    if timeout is None or timeout == math.inf:
        return None
    check_number(EdbatchError, f"the timeout of {name} of eb.Server", timeout, 0)
    return min(timeout, threading.TIMEOUT_MAX)
