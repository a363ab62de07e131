"""Breakdown of the time of a server's slowest turns.

A server's thread takes turns: it starts requests that have come, launches a wave, takes
the values of an earlier one, and runs the requests that waited for them. A request
waits for whole turns, so the slowest ones make the tail of latencies. What a turn is
made of is noted in a row of an array, of the latest turns only, so this costs
microseconds and no memory.
"""

import gc
import threading
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

from edbatch.waves.runner import WaveRunner
from edbatch.waves.wave_report import WaveReport

_KEPT = 1024  # latest turns
_SLOWEST = 8  # of these, those that are told


@dataclass(frozen=True)
class SlowTurn:
    """One turn of a server's thread; times are in milliseconds.

    Attributes:
        ago_s: How long ago it ended, in seconds.
        total_ms: From its beginning to its end.
        start_ms: To start requests: the model runs until it first asks for values.
        schedule_ms: To schedule and encode waves, and to make room for their values.
        run_ms: In calls of programs, and until values had come back.
        resume_ms: To answer requests, and to run those that asked for values.
        collector_ms: Of all these, pauses of Python's garbage collector.
        off_cpu_ms: Of all but `run_ms`, time in which the thread did not run: another
            thread had Python's lock, or another process the core.
        started: Requests that were started.
        nodes: Nodes that ran.
        batches: Batches of their schedules.
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


class _CollectorPauses:
    """Adds up the pauses of Python's garbage collector, which stop all threads."""

    def __init__(self) -> None:
        self.total_ms = 0.0
        self._began = 0.0
        self._lock = threading.Lock()
        self._is_listening = False

    def listen(self) -> None:
        """Listens from now on; once is enough for a process."""
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
        self._before: list[WaveReport] = []

    def begin(self) -> None:
        """Begins a turn."""
        self._pauses_ms = PAUSES.total_ms
        self._start_s, self._cpu_s = time.perf_counter(), time.thread_time()

    def admitted(self, started: int, runners: Sequence[WaveRunner]) -> None:
        """Notes that requests were started; what follows is waves of runners."""
        self._started, self._runners = started, runners
        self._admitted_s = time.perf_counter()
        self._before = [each.counts.copy() for each in runners]

    def end(self) -> SlowTurn:
        """Ends a turn."""
        cpu_ms = 1e3 * (time.thread_time() - self._cpu_s)
        end_s = time.perf_counter()

        def more(name: str) -> float:
            pairs = zip(self._runners, self._before, strict=True)
            return sum(getattr(r.counts, name) - getattr(b, name) for r, b in pairs)

        total_ms, run_ms = 1e3 * (end_s - self._start_s), more("run_ms")
        schedule_ms = more("host_ms")
        waves_ms = 1e3 * (end_s - self._admitted_s)
        return SlowTurn(
            ago_s=end_s,
            total_ms=total_ms,
            start_ms=total_ms - waves_ms,
            schedule_ms=schedule_ms,
            run_ms=run_ms,
            resume_ms=max(0.0, waves_ms - schedule_ms - run_ms),
            collector_ms=PAUSES.total_ms - self._pauses_ms,
            off_cpu_ms=max(0.0, total_ms - run_ms - cpu_ms + more("run_cpu_ms")),
            started=self._started,
            nodes=int(more("nodes")),
            batches=int(more("batches")),
            moves=int(more("moves")),
        )


class TurnLog:
    """The latest turns of a server; its thread adds, others read."""

    def __init__(self) -> None:
        self._rows = np.zeros((_KEPT, len(_FIELDS)))
        self._count = 0
        self._lock = threading.Lock()
        PAUSES.listen()

    def add(self, turn: SlowTurn) -> None:
        """Adds a turn that has just ended; its `ago_s` is that of the clock."""
        with self._lock:
            self._rows[self._count % _KEPT] = astuple(turn)
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
