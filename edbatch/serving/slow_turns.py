"""Time breakdown of the slowest turns of a server's loop.

In each turn, a server's thread starts new requests, launches a wave, takes the values
of an earlier one, and runs the requests that waited for them. Requests wait for whole
turns, so the slowest turns determine the tail latency. Each turn is recorded as a row
of a ring buffer, which costs microseconds and a fixed amount of memory.
"""

import gc
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from edbatch.waves.runner import WaveRunner

_KEPT = 1024  # number of latest turns
_SLOWEST = 8  # how many of them are reported


@dataclass(frozen=True)
class SlowTurn:
    """One turn of a server's thread; times are in milliseconds.

    Attributes:
        ago_s: How long ago it ended, in seconds.
        total_ms: Total time of the turn.
        start_ms: Time to start requests: the model runs until it first reads a value.
        schedule_ms: Time to schedule and encode waves, and to make room for values.
        run_ms: Time in calls of programs, including the wait for their values.
        resume_ms: Time to answer requests, and to resume those that read values.
        collector_ms: Pauses of Python's garbage collector, included in these times.
        off_cpu_ms: Time outside `run_ms` in which the thread did not run, because
            another thread held the GIL or another process used the core.
        started: Number of requests started.
        nodes: Number of nodes that ran.
        batches: Number of batches in the waves' schedules.
        moves: How often rows were moved to make room.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> with eb.Server(eb.batch(double, params=2.0), 2.0) as server:
        ...     answer = server.submit_nowait(3.0).result()
        >>> turns = server.stats().slowest_turns
        >>> sum(turn.started for turn in turns)
        1
    """

    ago_s: float
    total_ms: float
    start_ms: float
    schedule_ms: float
    run_ms: float
    resume_ms: float
    collector_ms: float
    off_cpu_ms: float
    started: int
    nodes: int
    batches: int
    moves: int


_FIELDS = tuple(SlowTurn.__dataclass_fields__)
_COUNTS = ("started", "nodes", "batches", "moves")
_values = attrgetter(*_FIELDS)
_of_waves = attrgetter("run_ms", "host_ms", "run_cpu_ms", "nodes", "batches", "moves")


class _CollectorPauses:
    """Adds up the pauses of Python's garbage collector, which stop all threads."""

    def __init__(self) -> None:
        self.total_ms = 0.0
        self._began = 0.0
        self._lock = threading.Lock()
        self._is_listening = False

    def listen(self) -> None:
        """Starts listening; calls after the first have no effect."""
        with self._lock:
            if not self._is_listening:
                gc.callbacks.append(self._note)
            self._is_listening = True

    def _note(self, phase: str, info: object) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.total_ms += 1e3 * (time.perf_counter() - self._began)


PAUSES = _CollectorPauses()


class TurnClock:
    """Measures the turns of one thread."""

    def __init__(self) -> None:
        self._start_s = self._admitted_s = self._cpu_s = 0.0
        self._pauses_ms = 0.0
        self._started = 0
        self._runners: Sequence[WaveRunner] = ()
        self._before: list[tuple[Any, ...]] = []  # `_of_waves` of the runners

    def begin(self) -> None:
        """Begins a turn."""
        self._pauses_ms = PAUSES.total_ms
        self._start_s, self._cpu_s = time.perf_counter(), time.thread_time()

    def admitted(self, started: int, runners: Sequence[WaveRunner]) -> None:
        """Marks the end of starting requests; the rest of the turn runs waves."""
        self._started, self._runners = started, runners
        self._admitted_s = time.perf_counter()
        self._before = [_of_waves(each.counts) for each in runners]

    def end(self) -> SlowTurn:
        """Ends a turn."""
        cpu_ms = 1e3 * (time.thread_time() - self._cpu_s)
        end_s = time.perf_counter()
        total_ms = 1e3 * (end_s - self._start_s)
        more = [0.0, 0.0, 0.0, 0, 0, 0]
        for runner, before in zip(self._runners, self._before, strict=True):
            for k, value in enumerate(_of_waves(runner.counts)):
                more[k] += value - before[k]
        run_ms, schedule_ms, run_cpu_ms, nodes, batches, moves = more
        waves_ms = 1e3 * (end_s - self._admitted_s)
        return SlowTurn(
            ago_s=end_s,
            total_ms=total_ms,
            start_ms=total_ms - waves_ms,
            schedule_ms=schedule_ms,
            run_ms=run_ms,
            resume_ms=max(0.0, waves_ms - schedule_ms - run_ms),
            collector_ms=PAUSES.total_ms - self._pauses_ms,
            off_cpu_ms=max(0.0, total_ms - run_ms - cpu_ms + run_cpu_ms),
            started=self._started,
            nodes=int(nodes),
            batches=int(batches),
            moves=int(moves),
        )


class TurnLog:
    """The latest turns of a server; written by its thread, read by others."""

    def __init__(self) -> None:
        self._rows = np.zeros((_KEPT, len(_FIELDS)))
        self._count = 0
        self._lock = threading.Lock()
        PAUSES.listen()

    def add(self, turn: SlowTurn) -> None:
        """Adds a turn that has just ended; its `ago_s` holds the clock at its end."""
        with self._lock:
            self._rows[self._count % _KEPT] = _values(turn)
            self._count += 1

    def slowest(self) -> tuple[SlowTurn, ...]:
        """Returns the slowest of the latest turns, the slowest first."""
        with self._lock:
            rows = self._rows[: min(self._count, _KEPT)].copy()
        order = np.argsort(-rows[:, _FIELDS.index("total_ms")], kind="stable")
        rows[:, 0] = time.perf_counter() - rows[:, 0]
        found = []
        for row in rows[order[:_SLOWEST]].tolist():
            named = dict(zip(_FIELDS, row, strict=True))
            named |= {name: int(named[name]) for name in _COUNTS}
            found.append(SlowTurn(**named))
        return tuple(found)
