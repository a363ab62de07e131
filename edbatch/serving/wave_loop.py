"""The loop of a server's thread: in each turn, admits requests and runs waves."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from edbatch.compilation.jax_settings import settings, under
from edbatch.errors import ServerClosedError
from edbatch.schedule.serving.policy import Admission
from edbatch.schedule.serving.simulation import QUANTUM_MS
from edbatch.serving.generation import Generation
from edbatch.serving.loop_answers import LoopAnswers
from edbatch.serving.queue import Queue
from edbatch.serving.request import Request, copy_of, late
from edbatch.serving.slow_turns import TurnClock, TurnLog
from edbatch.serving.stats import Counts

_AT_ONCE = 32  # start at least this many waiting requests, so that waves are wide
_COMPILER_S = 0.005  # polling interval while a program is compiled
_FEW = 4  # requests started between two checks of the device


class WaveLoop:
    """Runs the requests of a queue until it is closed and empty.

    Args:
        queue: The queue, filled by other threads.
        counts: The server's counts.
        new: Creates a generation of requests for given parameters.
        params: The first parameters.
        admission: When requests join.
        max_in_flight: Maximum number of requests that run at the same time.
        answers: Sends answers to event loops.

    Attributes:
        params: The parameters of requests that start from now on.
        turns: The latest turns of the thread.
        stopped: Whether to end at once; unanswered requests fail.
    """

    def __init__(
        self,
        queue: Queue,
        counts: Counts,
        new: Callable[[Any], Generation],
        params: Any,
        admission: Admission,
        max_in_flight: int,
        answers: LoopAnswers,
    ) -> None:
        self.params = params
        self.stopped = self._swapped = False
        self._queue, self._counts, self._new = queue, counts, new
        self._admission, self._max_in_flight = admission, max_in_flight
        self._answers, self._settings = answers, settings()
        self.turns = TurnLog()
        self._generations = [new(params)]
        self._taken: deque[Request] = deque()  # taken off the queue, not yet started

    @property
    def in_flight(self) -> int:
        """Number of running requests."""
        return sum(map(len, self._generations))

    @property
    def held(self) -> int:
        """Number of held requests."""
        return sum(each.held for each in self._generations)

    def swap_params(self, params: Any) -> None:
        """Replaces the parameters for all requests that start from now on."""
        with self._queue.changed:
            self.params = params
            self._swapped = True
            self._queue.changed.notify_all()

    def run(self) -> None:
        """Runs the server's thread; fails all remaining requests when it ends."""
        self._answers.begin()
        try:
            with under(self._settings):
                self._run_waves()
        finally:
            self._queue.close()
            self._end_all()
            self._answers.end()

    def _run_waves(self) -> None:
        """Runs waves until the queue is closed and empty."""
        queue, clock = self._queue, TurnClock()
        while not self.stopped:
            clock.begin()
            started = self._admit()
            self._answers.send()  # before waiting for the device
            generations = tuple(self._generations)
            clock.admitted(started, [each.runner for each in generations])
            did = [self._step(each) for each in generations]
            if any(did):
                self.turns.add(clock.end())
                self._compile_later_needs()
            with queue.changed:
                if not any(did):
                    self._wait()
                if queue.closed and not len(queue) and not self.in_flight:
                    return

    def _compile_later_needs(self) -> None:
        """Compiles, in the background, programs that later waves may need.

        A method of its own, so that its loop variable does not outlive the call.
        """
        for each in self._generations:
            each.runner.execution.compile_later_needs()

    def _wait(self) -> None:
        """Waits after a turn without progress.

        If there are no requests, waits for one. If none may join, waits until the
        admission window ends or a deadline passes, or, with requests in flight, for a
        short time.
        """
        queue = self._queue
        while not (len(queue) or self.in_flight or queue.closed):
            if self._swapped:  # return to free generations with old parameters
                return
            queue.changed.wait()
        if not self._joining():
            wait_s = 1e-3 * QUANTUM_MS
            if all(g.waits_for_compiler for g in self._generations if len(g)):
                wait_s = _COMPILER_S
            if not self.in_flight:
                opens = queue.oldest() + 1e-3 * (self._admission.window_ms or 0.0)
                until = min(opens, queue.deadline)
                wait_s = min(until - time.perf_counter(), threading.TIMEOUT_MAX)
            if not queue.closed or self.in_flight:
                queue.changed.wait(max(0.0, wait_s))

    def _joining(self) -> int:
        """Number of waiting requests that may join; see `Admission`.

        Held requests do not count as in flight, since they run later.
        """
        queue, window_ms = self._queue, None
        flight = self.in_flight - self.held
        if not queue.closed:
            window_ms = self._admission.window_ms
        if window_ms is not None and len(queue):
            is_full = len(queue) >= self._max_in_flight
            is_over = time.perf_counter() >= queue.oldest() + 1e-3 * window_ms
            if flight or not (is_full or is_over):
                return 0
        # Held requests take no place, up to `max_in_flight` of them.
        most = min(self._max_in_flight, 2 * self._max_in_flight - self.held)
        return min(len(queue), max(0, most - flight))

    def _take_params(self) -> None:
        with self._queue.changed:
            swapped, params = self._swapped, self.params
            self._swapped = False
        if swapped:
            self._generations.append(self._new(params))
        self._generations = [
            each for each in self._generations[:-1] if len(each)
        ] + self._generations[-1:]

    def _admit(self) -> int:
        """Starts requests and fails late ones; returns how many were started.

        Requests start one after the other, a fraction of a millisecond each. So that
        many of them do not delay the others, requests that wait for a wave go first
        once its values are ready.
        """
        for each in self._queue.take_late():
            each.fail(late(each), self._counts, "expired")
        joining, started = self._joining(), 0
        self._taken.extend(self._queue.take(min(_AT_ONCE, joining)))
        self._take_params()  # includes any swapped in before these requests arrived
        while self._taken:
            while self._taken:
                self._start(self._taken[0])
                self._taken.popleft()
                started += 1
            if started >= _AT_ONCE and self._has_values():
                break
            self._taken.extend(self._queue.take(min(_FEW, joining - started)))
            self._take_params()
        return started

    def _start(self, request: Request) -> None:
        """Starts a request; errors outside its model are handled as in `_step`."""
        generation = self._generations[-1]
        try:
            generation.start(request)
        except BaseException as error:
            self._end(generation, error)
            if not request.future.done():
                request.fail(copy_of(error), self._counts)

    def _has_values(self) -> bool:
        """Whether the values of a wave are ready."""
        return any(each.has_values() for each in self._generations)

    def _step(self, generation: Generation) -> bool:
        """Advances a generation; if a wave fails, its requests fail, not the server.

        Returns whether there was progress.
        """
        if not len(generation):
            return False
        try:
            generation.drop()
            self._answers.send()
            waits = not self._queue.closed  # a closed queue gets no more requests
            return generation.step(len(self._queue), may_wait=waits)
        except BaseException as error:
            self._end(generation, error)
            return True
        finally:
            self._answers.send()

    def _end(self, generation: Generation, error: BaseException) -> None:
        """Fails all requests of a generation; later ones run in a new generation."""
        generation.fail_all(error)
        self._generations.remove(generation)
        self._generations.append(self._new(self.params))

    def _end_all(self) -> None:
        error = ServerClosedError(
            "the server was closed before it answered; send the request to another one"
        )
        for each in self._generations:
            each.fail_all(error)
        for request in (*self._taken, *self._queue.take(len(self._queue))):
            request.fail(copy_of(error), self._counts)
