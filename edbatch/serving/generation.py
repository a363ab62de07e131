"""`Generation`: the requests in flight that share one set of parameters."""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from edbatch.graph.type_limit import TypeLimit
from edbatch.schedule.interrupt import is_ctrl_c
from edbatch.schedule.schedule import Schedule
from edbatch.serving.decisions import WaveDecider
from edbatch.serving.flight_nodes import flight_nodes
from edbatch.serving.held_requests import HeldRequests
from edbatch.serving.request import Request, copy_of, late
from edbatch.serving.stats import Counts
from edbatch.waves.asked_values import Asked
from edbatch.waves.runner import WaveRunner
from edbatch.waves.wave_execution import NoRoomError

_NUMBERS = 2**31  # random keys are derived from 32-bit numbers
_TWO_PARTS = 32  # minimum number of requests to run in two parts
_UNEVEN = 1.25  # maximum size of a part, as a multiple of half of all requests
_MOST_IDLE_WAITS = 64  # consecutive decisions to wait


class Generation:
    """Requests in flight, run by one runner. Used by one thread only.

    If there are many, they run in two parts: while the device computes the values of
    one, the other runs in Python. With a serving policy, each part has its own decider,
    which tracks since when its nodes are ready.

    Args:
        runner: A new runner.
        model: Runs one instance, with handles.
        max_nodes: Maximum number of nodes that an instance records between two values.
        type_limit: A limit on the types of cells that requests bring, or None.
        counts: The server's counts.
        deciders: One per part, deciding which nodes its waves run; empty to run all
            nodes that are needed.
        holds: Whether a larger program is compiled in the background. Meanwhile waves
            are split to fit the present program, and requests that need the larger one
            are held. If False, all requests wait for it.

    Attributes:
        runner: The runner.
    """

    def __init__(
        self,
        runner: WaveRunner,
        model: Callable[[Any], Any],
        max_nodes: int,
        type_limit: TypeLimit | None,
        counts: Counts,
        deciders: Sequence[WaveDecider] = (),
        *,
        holds: bool = True,
    ) -> None:
        self.runner, self._model = runner, model
        self._deciders, self._start_s = deciders, time.perf_counter()
        self._max_nodes, self._counts = max_nodes, counts
        runner.tape.type_limit = type_limit
        self._refusal = (
            f"the request needs more than {max_nodes:,} calls of cells at once, which"
            " is max_nodes of the server; send a smaller instance"
        )
        self._requests: dict[int, Request] = {}
        self._waiting: list[Request] = []  # for the next wave
        self._held = HeldRequests(runner, self._fail, self.__len__)
        self._holds = holds
        self._launched: deque[tuple[list[Request], Asked]] = deque()
        self._part_of: dict[int, int] = {}  # part of each request, used with a policy
        self._running: dict[int, float] = {}  # start time of each part's running wave
        self._idle_waits = 0  # decisions to wait since a request joined or a wave ran
        self._most = math.inf  # how many requests the next wave tries, see `_launch`

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def requests(self) -> list[Request]:
        """All requests in flight."""
        return list(self._requests.values())

    @property
    def held(self) -> int:
        """Number of requests held until a program is compiled."""
        return len(self._held)

    @property
    def waits_for_compiler(self) -> bool:
        """Whether all requests are held until a program is compiled."""
        return len(self._held) == len(self) > 0

    def has_values(self) -> bool:
        """Whether the values of the oldest wave are ready."""
        if not self._launched:
            return False
        values: dict[int, Any] = self._launched[0][1].values
        return all(each.is_ready() for each in values.values())

    def start(self, request: Request) -> None:
        """Runs a request until it reads a value, ends or fails.

        Args:
            request: The request.
        """
        if not self._is_dropped(request, time.perf_counter()) and self._run_part(
            request,
            lambda: self._start_run(request),
        ):
            self._requests[id(request)] = request
            self._enqueue(request)
            self._idle_waits = 0
            if len(self._deciders) > 1 and len(self) >= _TWO_PARTS:
                second = sum(self._part_of.values())
                self._part_of[id(request)] = int(2 * second < len(self._part_of))
            else:
                self._part_of[id(request)] = 0
        self._tidy_if_idle()

    def _enqueue(self, request: Request) -> None:
        """Queues a request for the next wave, or holds it for a compilation."""
        if not (self._holds and self._held.holds(request)):
            self._waiting.append(request)

    def _tidy_if_idle(self) -> None:
        """Frees what ended requests have left behind, if no request is in flight."""
        if not self._requests:
            self.runner.tidy()

    def _start_run(self, request: Request) -> None:
        number = request.number % _NUMBERS
        call = partial(self._model, request.instance)
        request.run = self.runner.new_run(number)
        self.runner.start_run(request.run, call)

    def _run_part(self, request: Request, step: Callable[[], None]) -> bool:
        """Runs a part of an instance; returns whether it waits for values.

        If the part fails, its nodes are removed from the tape that all instances share.
        """
        tape = self.runner.tape
        mark = tape.mark()
        tape.limit_nodes(self._max_nodes, self._refusal)
        try:
            step()
            run = request.run
            assert run is not None, "it was started"
            tape.check_refused()
            tape.check_numbers(mark)
            if run.ended and not request.ask_for_result():
                self._finish(request, request.answer([]))
                return False
        except BaseException as error:
            self.runner.cut_back(request.run, mark)
            if is_ctrl_c(error):
                raise
            self._fail(request, error)
            return False
        return True

    def step(self, arrived: int = 0, *, may_wait: bool = True) -> bool:
        """Launches a wave if there is room for one, otherwise waits for the oldest one.

        After enough steps, all requests have their values.

        Args:
            arrived: Number of requests that have not joined, for the serving policy.
            may_wait: Whether the policy may decide to wait; if not, all nodes run
                instead.

        Returns:
            Whether there was progress: False if the policy decided to wait, or all
            requests are held for a compilation.

        Raises:
            PolicyError: The policy made an invalid decision.
            Exception: Raised by the policy.
        """
        if self._held.is_busy:
            ready = self._held.take_ready()
            if ready:
                self._waiting[:0], self._most = ready, math.inf
            if not (self._waiting or self._launched) and len(self):
                return False
        room = self._parts - len(self._launched)
        if self._deciders:
            return self._launch_decided(arrived, may_wait) or self._end_decided()
        if self._waiting and room > 0:
            self._launch(self._take_part())
        elif self._launched:
            self._resume(*self._launched.popleft())
        return True

    @property
    def _parts(self) -> int:
        """Number of parts that requests run in; one while waves lack room."""
        is_short = self.runner.execution.lacking
        return 2 if len(self) >= _TWO_PARTS and not is_short else 1

    def _launch_decided(self, arrived: int, may_wait: bool) -> bool:
        """Launches a wave, chosen by the policy, for a part without a running one."""
        for part, decider in enumerate(self._deciders):
            own = [r for r in self._waiting if self._part_of[id(r)] == part]
            if not own or part in self._running:
                continue
            decided = self._decide(decider, own, arrived)
            if isinstance(decided, int):
                if self._running or (may_wait and self._may_keep_waiting()):
                    continue
                decided = None
            self._waiting = [r for r in self._waiting if self._part_of[id(r)] != part]
            begin_ms = self._now_ms()
            if self._launch(own, decided, decider):
                self._running[part] = begin_ms
            return True
        return False

    def _may_keep_waiting(self) -> bool:
        """Counts a decision to wait; returns whether it is obeyed.

        While nothing runs and no request joins, many policies would wait forever.
        """
        self._idle_waits += 1
        if self._idle_waits <= _MOST_IDLE_WAITS:
            return True
        self._counts.add(overruled=1)
        return False

    def _end_decided(self) -> bool:
        """Waits for the oldest wave; False if there is none, but requests wait."""
        if not self._launched:
            return not self._waiting
        requests, asked = self._launched.popleft()
        part = next(iter(self._running))  # waves run in launch order
        began_ms = self._running.pop(part)
        if not asked.places:
            self.runner.wait()  # the wave returns no values to wait for
        self._resume(requests, asked)
        self._waiting.sort(key=lambda each: each.submitted)
        now_ms = self._now_ms()
        self._deciders[part].ran(began_ms, now_ms)
        for other in self._running:  # the device begins their waves now
            self._running[other] = now_ms
        return True

    def _decide(
        self, decider: WaveDecider, requests: Sequence[Request], arrived: int
    ) -> Schedule | int | None:
        """Asks the policy; returns None if it is not asked, or overruled."""
        nodes, chosen = flight_nodes(self.runner, requests, self._start_s)
        if not len(chosen):
            return None  # all values that requests wait for are computed
        decided = decider.decide(nodes, self._now_ms(), arrived)
        if isinstance(decided, Schedule):
            return replace(decided, order=chosen[decided.order])
        if decided is None:
            self._counts.add(overruled=1)
        elif self._has_answer(requests):
            nothing = np.zeros(0, np.int32)
            return Schedule(nothing, np.zeros(1, np.int32), nothing)
        return decided

    def _has_answer(self, requests: Sequence[Request]) -> bool:
        """Whether all values that some request waits for are already computed."""
        return any(
            bool((self.runner.rows_of([h._value for h in each.run.asked]) >= 0).all())
            for each in requests
            if each.run is not None
        )

    def _now_ms(self) -> float:
        return 1e3 * (time.perf_counter() - self._start_s)

    def _take_part(self) -> list[Request]:
        """Takes the requests of the next wave: all or some of those that wait.

        Usually one of two parts and a few new requests are waiting. If the new ones
        were left out, their nodes would have to be merged with later ones. If more than
        `_UNEVEN` times half of all requests wait, half of all are taken.
        """
        count = -(-len(self) // self._parts)
        if len(self._waiting) <= _UNEVEN * count:
            count = len(self._waiting)
        own, self._waiting = self._waiting[:count], self._waiting[count:]
        return own

    def _launch(
        self,
        requests: list[Request],
        schedule: Schedule | None = None,
        decider: WaveDecider | None = None,
    ) -> bool:
        """Launches a wave; requests that it does not serve wait for another one.

        If the wave would need a larger program, the requests are halved until the wave
        fits; it then runs all nodes that these need, whatever the policy decided. The
        larger program is compiled in the background. A request that needs it even in a
        wave of its own is held. Since each try plans a wave, the next wave is tried
        with only twice as many requests as had room.

        Returns whether a wave was launched.
        """
        runner, before = self.runner, self.runner.counts.copy()
        asked, apart = None, self._most < len(requests)
        if apart:
            if decider is not None:
                decider.forget()
            requests, schedule = self._leave_out(requests, int(self._most)), None
        while asked is None:
            try:
                asked = runner.launch(
                    [each.run for each in requests if each.run],
                    schedule=schedule,
                    may_grow=not self._holds,
                    apart=apart,
                )
            except NoRoomError as error:
                if decider is not None:
                    decider.forget()
                if apart and len(requests) == 1:
                    self._held.hold_for_room(requests[0], error)
                    self._most = 1
                    return False
                half = -(-len(requests) // 2)
                requests = self._leave_out(requests, half, oldest=error.is_half_full)
                schedule, apart = None, True
            except BaseException:
                self._waiting += requests
                raise
        if schedule is not None:
            served = {id(run) for run, _ in asked.places}
            self._waiting += [r for r in requests if id(r.run) not in served]
            requests = [each for each in requests if id(each.run) in served]
        self._most = 2 * len(requests) if apart else math.inf
        for each in requests:
            each.left_over = False
            if each.run is not None and each.run.ended:
                runner.release(each.run)  # the launched wave returns its result
        self._launched.append((requests, asked))
        self._idle_waits = 0
        after = runner.counts
        self._counts.add(
            waves=1,
            nodes=after.nodes - before.nodes,
            batches=after.batches - before.batches,
            rows=after.rows - before.rows,
        )
        return True

    def _leave_out(
        self, requests: list[Request], count: int, *, oldest: bool = False
    ) -> list[Request]:
        """Keeps `count` requests for a wave and puts the others back; returns the kept.

        Requests that were left out before have precedence. With `oldest`, set when
        values begin to fill the arenas, the oldest do, since they end first and free
        rows.
        """
        own = sorted(
            requests, key=lambda each: (oldest or not each.left_over, each.number)
        )
        for each in own[count:]:
            each.left_over = True
        self._waiting[:0] = own[count:]
        return own[:count]

    def _resume(self, requests: list[Request], asked: Asked) -> None:
        """Passes values to requests, and runs them to their next read or their end."""
        runner = self.runner
        left = {id(request.run): request for request in requests}
        try:
            for run, answers in runner.answers(asked):
                request = left.pop(id(run))
                if request.first_value is None:
                    request.first_value = time.perf_counter()
                if run.ended:
                    self._answer(request, answers)
                elif self._is_dropped(request, time.perf_counter()):
                    continue
                elif self._run_part(request, partial(runner.resume, run, answers)):
                    self._enqueue(request)
        finally:
            self._waiting += left.values()
        self._tidy_if_idle()

    def _answer(self, request: Request, values: list[np.ndarray]) -> None:
        """Answers a request; it fails if its result cannot be rebuilt with arrays."""
        try:
            result = request.answer(values)  # rebuilds pytree nodes of user classes
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            self._fail(request, error)
        else:
            self._finish(request, result)

    def _fail(self, request: Request, error: BaseException) -> None:
        request.fail(error, self._counts)
        self._end(request)

    def fail_all(self, error: BaseException) -> None:
        """Fails all requests with an exception, each with its own copy."""
        for request in self.requests:
            self._fail(request, copy_of(error))
        self._waiting = []
        self._launched.clear()
        self._running.clear()

    def drop(self) -> None:
        """Ends cancelled and late requests, except those in a launched wave."""
        now = time.perf_counter()
        self._waiting = [r for r in self._waiting if not self._is_dropped(r, now)]
        for each in self._held.all():
            self._is_dropped(each, now)
        self._tidy_if_idle()

    def _is_dropped(self, request: Request, now: float) -> bool:
        """Ends a request that was cancelled or is late; returns whether it was."""
        if request.future.cancelled():
            self._counts.add(cancelled=1)
        elif request.is_late(now):
            request.fail(late(request), self._counts, "expired")
        else:
            return False
        self._end(request)
        return True

    def _finish(self, request: Request, result: Any) -> None:
        now = time.perf_counter()
        first, counts = request.first_value or now, self._counts
        if request.resolve(result, counts):
            counts.latency.append(1e3 * (now - request.submitted))
            counts.first_value.append(1e3 * (first - request.submitted))
        self._end(request)

    def _end(self, request: Request) -> None:
        """Ends the instance of a request, and frees its rows."""
        self._requests.pop(id(request), None)
        self._held.discard(request)
        self._part_of.pop(id(request), None)
        run = request.run
        if run is None:
            return
        try:
            self.runner.close(run)
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            # The request already has its answer: errors in clean-up code are dropped.
            error.add_note("raised while a request was ended")
        self.runner.release(run)
