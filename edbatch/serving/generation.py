"""The requests that run with the same parameters."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from edbatch.errors import RecordingError
from edbatch.serving.request import Request, late
from edbatch.serving.stats import Counts
from edbatch.waves.runner import WaveRunner

_NUMBERS = 2**31  # keys are derived from numbers of 32 bits


class Generation:
    """Requests in flight, run by one runner. All of it happens in one thread.

    Args:
        runner: A new runner.
        model: Runs one instance, with handles.
        max_nodes: How many nodes an instance may record between two values.
        counts: The server's counts.

    Attributes:
        runner: The runner.
        requests: The requests.
    """

    def __init__(
        self,
        runner: WaveRunner,
        model: Callable[[Any], Any],
        max_nodes: int,
        counts: Counts,
    ) -> None:
        self.runner, self._model = runner, model
        self._max_nodes, self._counts = max_nodes, counts
        self.requests: list[Request] = []

    def __len__(self) -> int:
        return len(self.requests)

    def start(self, request: Request) -> None:
        """Runs a request until it asks for values, ends or fails.

        Args:
            request: The request.
        """
        if request.is_late(time.perf_counter()):
            self._counts.add(expired=request.fail(late(request)))
        elif request.future.cancelled():
            self._counts.add(cancelled=1)
        elif self._go_on(
            request,
            lambda: self._start_run(request),
        ):
            self.requests.append(request)

    def _start_run(self, request: Request) -> None:
        number = request.number % _NUMBERS
        call = partial(self._model, request.instance)
        request.run = self.runner.new_run(number)
        self.runner.start_run(request.run, call)

    def _go_on(self, request: Request, step: Callable[[], None]) -> bool:
        """Runs a part of an instance; returns whether it waits for values.

        A part that fails leaves nothing behind: it is cut off the tape that all
        instances share.
        """
        tape = self.runner.tape
        mark = tape.mark()
        try:
            step()
            run = request.run
            assert run is not None, "it was started"
            if len(tape.node_type) - mark.nodes > self._max_nodes:
                raise RecordingError(
                    f"the request needs {len(tape.node_type) - mark.nodes:,} calls of"
                    f" cells at once, but max_nodes of the server is"
                    f" {self._max_nodes:,}; send a smaller instance"
                )
            tape.check_numbers(mark)
            if run.ended and not request.ask_for_result():
                self._finish(request, run.result)
                return False
        except Exception as error:
            self.runner.cut_back(request.run, mark)
            self._counts.add(failed=request.fail(error))
            self._end(request)
            return False
        return True

    def run_wave(self) -> None:
        """Runs a wave of all requests, after which each has its values."""
        self._drop()
        if not self.requests:
            return
        runner, before = self.runner, self.runner.counts.copy()
        runs = {id(request.run): request for request in self.requests}
        asked = runner.launch([each.run for each in self.requests if each.run])
        waiting = []
        for run, answers in runner.answers(asked):
            request = runs[id(run)]
            if request.first_value is None:
                request.first_value = time.perf_counter()
            if run.ended:
                self._finish(request, request.answer(answers))
            elif self._go_on(request, partial(runner.resume, run, answers)):
                waiting.append(request)
        self.requests = waiting
        after = runner.counts
        self._counts.add(
            waves=1,
            nodes=after.nodes - before.nodes,
            batches=after.batches - before.batches,
            rows=after.rows - before.rows,
        )

    def fail_all(self, error: BaseException) -> None:
        """Ends all requests with an exception."""
        for request in self.requests:
            self._counts.add(failed=request.fail(error))
            self._end(request)
        self.requests = []

    def _drop(self) -> None:
        """Ends requests that nobody waits for any more."""
        now = time.perf_counter()
        kept = []
        for request in self.requests:
            if request.future.cancelled():
                self._counts.add(cancelled=1)
                self._end(request)
            elif request.is_late(now):
                self._counts.add(expired=request.fail(late(request)))
                self._end(request)
            else:
                kept.append(request)
        self.requests = kept

    def _finish(self, request: Request, result: Any) -> None:
        now = time.perf_counter()
        first, counts = request.first_value or now, self._counts
        counts.add(answered=1)  # before the client can ask for the counts
        if request.resolve(result):
            counts.latency.append(1e3 * (now - request.submitted))
            counts.first_value.append(1e3 * (first - request.submitted))
        else:
            counts.add(answered=-1, cancelled=1)
        self._end(request)

    def _end(self, request: Request) -> None:
        """Frees the rows of a request, and what its instance holds."""
        run = request.run
        if run is None:
            return
        try:
            self.runner.close(run)
        except Exception as error:
            # The request has its answer; clean-up of the user's is not part of it.
            error.add_note("raised while a request was ended")
        self.runner.release(run)
