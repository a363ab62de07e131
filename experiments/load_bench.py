"""The load test of one model: starts the server's process and makes runs against it."""

import multiprocessing
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from load_generator import Generator, Run
from load_models import same_answer
from load_server import ONE_BY_ONE, ServerSettings
from load_server import main as serve

_BURST = 96  # requests before each run, so that arenas and pages are allocated
_WARM_UP_S = 1800.0  # maximum time until a server is ready
_OUTSTANDING = 512  # requests of a closed loop, more than any system runs at once
_LEAST = 100  # minimum number of requests of a run, for a 99th percentile
_LONGER = 2.0  # maximum factor by which a run may be longer to reach that minimum
_AGAIN = 3  # maximum number of tries of a run in which something was compiled


@dataclass(frozen=True)
class Point:
    """One system at one load.

    Attributes:
        system: The system's name.
        rate: Offered load, in requests per second.
        requests: Number of requests.
        answered: Number of answered requests.
        wrong: Number of answers that differ from the unbatched model's.
        reached: Answers per second.
        goodput: Answers within the limit, per second.
        latency_ms: 50th, 95th and 99th percentile of the time from the intended start
            to the answer; None if infinite.
        mean_ms: Mean of the time to the answer; None if an answer is missing.
        first_value_ms: The same percentiles for the first value that a request reads.
        late_sends_ms: 99th percentile of the generator's delay.
        facts: The server process's facts about the run.
    """

    system: str
    rate: float
    requests: int
    answered: int
    wrong: int
    reached: float
    goodput: float
    latency_ms: dict[str, float | None]
    mean_ms: float | None
    first_value_ms: dict[str, float | None]
    late_sends_ms: float | None
    facts: dict[str, Any]

    def keeps(self, limit_ms: float) -> bool:
        """Whether 99% of the requests are answered within a limit."""
        p99 = self.latency_ms["p99"]
        return p99 is not None and p99 <= limit_ms


def percentiles(milliseconds: np.ndarray) -> dict[str, float | None]:
    """Returns the 50th, 95th and 99th percentile; None for an infinite one.

    Example:
        >>> percentiles(np.array([1.0, 2.0, np.inf]))
        {'p50': 2.0, 'p95': None, 'p99': None}
    """
    found = np.percentile(milliseconds, [50, 95, 99], method="higher").tolist()
    names = ("p50", "p95", "p99")
    return {
        name: each if np.isfinite(each) else None
        for name, each in zip(names, found, strict=True)
    }


class Bench:
    """The process that serves one model, from its start to its end.

    Args:
        settings: The settings of the server's process.
        seconds: Length of a run.
        max_requests: Maximum number of requests of a run.
        limit_ms: Latency limit of goodput.
        say: Prints a line of progress.

    Attributes:
        data: The source of the instances.
        discarded: Number of runs that were repeated because something was compiled.
    """

    def __init__(
        self,
        settings: ServerSettings,
        *,
        seconds: float,
        max_requests: int,
        limit_ms: float,
        say: Callable[[str], None],
    ) -> None:
        self.settings, self._say = settings, say
        self._seconds, self._max_requests = seconds, max_requests
        self._limit_ms = limit_ms
        self._runs = self.discarded = 0
        context = multiprocessing.get_context("spawn")
        self._control, theirs = context.Pipe()
        self._process = context.Process(
            target=serve, args=(settings, theirs), daemon=True
        )
        self._process.start()
        theirs.close()
        self._ready = self._receive(_WARM_UP_S)
        self.data: str = self._ready["data"]

    def close(self) -> None:
        """Ends the process."""
        with suppress(OSError):  # if it has ended
            self._control.send(None)
        self._process.join(30)
        if self._process.is_alive():
            self._process.terminate()

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def capacity(self, system: str) -> tuple[float, dict[str, Any]]:
        """Measures a system's throughput while it always has requests.

        Args:
            system: The system's name.

        Returns:
            Answers per second, and the server process's facts about the run.
        """
        seconds = max(1.0, self._seconds)
        outstanding = 4 if system == ONE_BY_ONE else _OUTSTANDING
        self._control.send(system)
        with self._generator() as generator:
            found = generator.closed_loop(outstanding, seconds)
        facts = self._receive(60 + seconds)
        self._say(f"{system}: capacity {found:.1f} requests/s{_compiled(facts)}")
        return found, facts

    def alone_ms(self, system: str, count: int = 30) -> float:
        """Measures requests that are sent one at a time.

        Args:
            system: The system's name.
            count: Number of requests.

        Returns:
            The median latency.
        """
        self._control.send(system)
        with self._generator() as generator:
            latencies = [generator.burst(1, 60.0).latency_ms[0] for _ in range(count)]
        self._receive(120)
        return float(np.median(latencies))

    def point(self, system: str, rate: float) -> Point:
        """Measures a system at one load.

        Args:
            system: The system's name.
            rate: Requests per second.

        Returns:
            The measurements. A run in which something was compiled is repeated, up to
            a limit.
        """
        found = self._one_point(system, rate)
        for _ in range(_AGAIN - 1):
            if not found.facts["compilations"]:
                break
            self.discarded += 1
            found = self._one_point(system, rate)
        return found

    def _one_point(self, system: str, rate: float) -> Point:
        least = min(_LEAST, int(_LONGER * rate * self._seconds))
        count = max(10, least, int(rate * self._seconds))
        count = min(self._max_requests, count)
        self._control.send(system)
        with self._generator() as generator:
            burst = generator.burst(4 if system == ONE_BY_ONE else _BURST, 60.0)
            if not np.isfinite(burst.latency_ms).all():
                raise RuntimeError(
                    f"{system} of {self.settings.workload} did not answer the requests"
                    f" before a run: {[a for a in burst.answers if a][:1]}"
                )
            run = generator.open_loop(rate, count, max(2.0, 0.5 * self._seconds))
        facts = self._receive(120) | {"requests_before": len(burst.intended)}
        found = self._point(system, rate, run, facts)
        self._say(
            f"{system}: at {rate:.1f}/s p50 {_shown(found.latency_ms['p50'])}, p99"
            f" {_shown(found.latency_ms['p99'])} ms, {found.answered} of"
            f" {found.requests} answered{_compiled(found.facts)}"
        )
        return found

    def _point(
        self, system: str, rate: float, run: Run, facts: dict[str, Any]
    ) -> Point:
        expected, asks = self._ready["expected"], self._ready["asks"]
        answered = np.isfinite(run.latency_ms)
        wrong = sum(
            not same_answer(answer.content, expected[k], asks=asks)
            for k, answer, ok in zip(
                run.instance, run.answers, answered.tolist(), strict=True
            )
            if ok and answer is not None
        )
        good = int((run.latency_ms <= self._limit_ms).sum())
        late = percentiles(run.late_sends_ms)["p99"]
        return Point(
            system=system,
            rate=rate,
            requests=len(run.intended),
            answered=int(answered.sum()),
            wrong=wrong,
            reached=float(answered.sum() / max(run.seconds, 1e-9)),
            goodput=float(good / max(run.intended[-1], 1e-9)),
            latency_ms=percentiles(run.latency_ms),
            mean_ms=float(run.latency_ms.mean()) if answered.all() else None,
            first_value_ms=percentiles(run.first_value_ms),
            late_sends_ms=late,
            facts=facts,
        )

    def _generator(self) -> Generator:
        """Connects; each run has its own requests and times, the same in every test."""
        self._runs += 1
        rng = np.random.default_rng([self.settings.seed, self._runs])
        return Generator(self._ready["address"], self.settings.instances, rng)

    def _receive(self, limit_s: float) -> Any:
        """Waits for a message of the process, as long as the process lives."""
        end = time.monotonic() + limit_s
        while not self._control.poll(0.2):
            if not self._process.is_alive() or time.monotonic() > end:
                raise RuntimeError(
                    f"the server of {self.settings.workload} has ended or hangs; its"
                    " messages are above"
                )
        return self._control.recv()


def _shown(milliseconds: float | None) -> str:
    return "∞" if milliseconds is None else f"{milliseconds:.1f}"


def _compiled(facts: dict[str, Any]) -> str:
    count = facts["compilations"]
    return f"; {count} COMPILATIONS" if count else ""
