"""Sends requests at given times and measures the latency of their answers.

The loop is open: requests are sent at times drawn in advance, whether or not the server
keeps up, and latency counts from these times. So a server that stalls is charged for
every request that was due meanwhile. Every run is bounded in requests and in seconds.
"""

import gc
import select
import socket
import time
from dataclasses import dataclass

import numpy as np
from load_wire import ANSWERED, REQUEST, Answer, Reader

_LEAD_S = 0.02  # time between the setup of a run and its first request


@dataclass(frozen=True, eq=False)
class Run:
    """``R`` requests and their answers.

    Attributes:
        intended: Intended times of sending, in seconds from the start; [R] float64.
        latency_ms: From the intended time to the answer; [R] float64, infinite without
            an answer.
        first_value_ms: From the intended time to the first value; [R] float64, infinite
            without an answer.
        instance: Indices of the requests' instances; [R] int64.
        answers: The answers; None for requests without one.
        late_sends_ms: How much later than intended requests were sent; [R] float64.
        seconds: Time from the start to the last answer.
    """

    intended: np.ndarray
    latency_ms: np.ndarray
    first_value_ms: np.ndarray
    instance: np.ndarray
    answers: list[Answer | None]
    late_sends_ms: np.ndarray
    seconds: float


class Generator:
    """Sends requests over one connection and waits for their answers.

    Args:
        address: The server's address, on the loopback interface.
        num_instances: Number of different requests.
        rng: The random generator for requests and their times.
    """

    def __init__(
        self, address: tuple[str, int], num_instances: int, rng: np.random.Generator
    ) -> None:
        self._connection = socket.create_connection(address)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = Reader(self._connection)
        self._num_instances, self._rng = num_instances, rng

    def close(self) -> None:
        """Hangs up."""
        self._connection.close()

    def __enter__(self) -> "Generator":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def burst(self, count: int, limit_s: float) -> Run:
        """Sends requests all at once and waits for their answers.

        Args:
            count: Number of requests.
            limit_s: Maximum time to wait, in seconds.

        Returns:
            The run.
        """
        return self._run(np.zeros(count), limit_s)

    def open_loop(self, rate: float, count: int, limit_s: float) -> Run:
        """Sends requests as a Poisson process.

        Args:
            rate: Requests per second.
            count: Number of requests.
            limit_s: Maximum time to wait for answers after the last request, in
                seconds.

        Returns:
            The run.
        """
        intended = np.cumsum(self._rng.exponential(1 / rate, count))
        return self._run(intended, float(intended[-1]) + limit_s)

    def closed_loop(self, outstanding: int, seconds: float) -> float:
        """Keeps a number of requests outstanding, to measure the server's throughput.

        Args:
            outstanding: Number of requests.
            seconds: Length of the run.

        Returns:
            Answers per second in the last three quarters of the time.

        Raises:
            RuntimeError: A request failed. Failures are fast and would inflate the
                throughput.
        """
        start = time.monotonic()
        warm, end = start + 0.25 * seconds, start + seconds
        number = answered = 0
        self._send(np.arange(outstanding), self._draw(outstanding))
        number = outstanding
        first = last = warm
        while (now := time.monotonic()) < end:
            if not select.select([self._connection], [], [], end - now)[0]:
                break
            answers = self._reader.answers()
            failed = [each for each in answers if each.status != ANSWERED]
            if failed:
                raise RuntimeError(
                    "the server failed a request while its capacity was measured:"
                    f" {failed[0]}"
                )
            count = len(answers)
            now = time.monotonic()
            if now < warm:
                first = now
            else:
                answered, last = answered + count, now
            self._send(np.arange(number, number + count), self._draw(count))
            number += count
        return answered / max(last - first, 1e-9)

    def _draw(self, count: int) -> np.ndarray:
        return self._rng.integers(self._num_instances, size=count)

    def _send(self, numbers: np.ndarray, instances: np.ndarray) -> None:
        pairs = zip(numbers.tolist(), instances.tolist(), strict=True)
        self._connection.sendall(b"".join(REQUEST.pack(*each) for each in pairs))

    def _run(self, intended: np.ndarray, limit_s: float) -> Run:
        """Sends each request at its time; see `Run`."""
        count, instance = len(intended), self._draw(len(intended))
        answers: list[Answer | None] = [None] * count
        came, sent = np.full(count, np.inf), np.full(count, np.inf)
        gc.collect()
        gc.disable()
        try:
            start = time.monotonic() + _LEAD_S
            due = start + intended
            next_one = answered = 0
            while answered < count and (now := time.monotonic()) < start + limit_s:
                last = int(np.searchsorted(due, now, "right"))
                if last > next_one:
                    some = slice(next_one, last)
                    self._send(np.arange(next_one, last), instance[some])
                    sent[some], next_one = now, last
                end = due[next_one] if next_one < count else start + limit_s
                wait = max(0.0, end - time.monotonic())
                if select.select([self._connection], [], [], wait)[0]:
                    found = self._reader.answers()
                    now = time.monotonic()
                    for each in found:
                        answers[each.number], came[each.number] = each, now
                    answered += len(found)
        finally:
            gc.enable()
        first = np.array(
            [np.inf if each is None else each.first_value for each in answers]
        )
        failed = [each is None or each.status != ANSWERED for each in answers]
        came[failed] = first[failed] = np.inf
        return Run(
            intended=intended,
            latency_ms=1e3 * (came - due),
            first_value_ms=1e3 * (first - due),
            instance=instance,
            answers=answers,
            late_sends_ms=1e3 * (sent - due),
            seconds=float(max(came[np.isfinite(came)], default=start) - start),
        )
