"""Measures how long the consumer of a loader waits for plans."""

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class LoaderReport:
    """Times of loops over a loader.

    The consumer's wait is an upper bound of the device's: while the consumer waits for
    a plan, the device may still run work that was dispatched before.

    Attributes:
        minibatches: Number of minibatches yielded.
        start_ms: Waits for the first minibatch of each loop, which cannot be planned
            ahead; not part of the times below.
        wait_ms: Waits for all other minibatches.
        elapsed_ms: Time from the first minibatch of each loop to its last request:
            waits and the consumer's own work.

    Example:
        >>> print(LoaderReport(101, start_ms=9.0, wait_ms=12.0, elapsed_ms=3000.0))
        waited 0.4% of the time for plans (12 ms of 3.00 s, 101 minibatches)
    """

    minibatches: int = 0
    start_ms: float = 0.0
    wait_ms: float = 0.0
    elapsed_ms: float = 0.0

    @property
    def wait_share(self) -> float:
        """Share of the time that the consumer waited, from 0 to 1."""
        return self.wait_ms / self.elapsed_ms if self.elapsed_ms else 0.0

    def __str__(self) -> str:
        return (
            f"waited {self.wait_share:.1%} of the time for plans ({self.wait_ms:.0f} ms"
            f" of {self.elapsed_ms / 1e3:.2f} s, {self.minibatches} minibatches)"
        )


class WaitClock:
    """Adds up the times of a `LoaderReport`."""

    def __init__(self) -> None:
        self._minibatches = 0
        self._start_s = 0.0
        self._wait_s = 0.0
        self._elapsed_s = 0.0
        self._asked = 0.0
        self._handed: float | None = None  # time when the loop got its last minibatch

    def begin(self) -> None:
        """Notes that a new loop begins."""
        self._handed = None

    def ask(self) -> None:
        """Notes that the consumer requests a minibatch."""
        self._asked = time.perf_counter()
        if self._handed is not None:
            self._elapsed_s += self._asked - self._handed

    def hand_out(self) -> None:
        """Notes that the consumer gets the requested minibatch."""
        now = time.perf_counter()
        waited = now - self._asked
        if self._handed is None:
            self._start_s += waited
        else:
            self._wait_s += waited
            self._elapsed_s += waited
        self._minibatches += 1
        self._handed = now

    @property
    def report(self) -> LoaderReport:
        """The times so far."""
        return LoaderReport(
            self._minibatches,
            1e3 * self._start_s,
            1e3 * self._wait_s,
            1e3 * self._elapsed_s,
        )
