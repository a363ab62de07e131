"""Arrival times of requests: Poisson, or in bursts.

Bursts are a Markov-modulated Poisson process with a quiet and a busy state. The rate of
the busy state is `burst` times that of the quiet one. The durations of both states are
exponentially distributed with the same mean.
"""

from dataclasses import dataclass

import numpy as np

from edbatch.arguments import check_number
from edbatch.errors import PolicyError

_SPANS = 64  # states drawn at once; even, so each block begins with the same state


@dataclass(frozen=True)
class Arrivals:
    """A random process of arrivals.

    Attributes:
        rate: Mean number of requests per second.
        burst: Ratio of the rate of the busy state to that of the quiet one; 1 is a
            Poisson process.
        dwell_ms: Mean duration of either state, in milliseconds.

    Raises:
        PolicyError: A number is out of range.

    Example:
        >>> times = Arrivals(rate=100).draw(np.random.default_rng(0), 1000)
        >>> round(float(times[-1]) / 1000)  # milliseconds per request
        10
    """

    rate: float
    burst: float = 1.0
    dwell_ms: float = 100.0

    def __post_init__(self) -> None:
        for name in ("rate", "burst", "dwell_ms"):
            check_number(PolicyError, f"{name} of arrivals", getattr(self, name), 0)
        if not self.rate > 0 or not self.burst >= 1 or not self.dwell_ms > 0:
            raise PolicyError(
                "arrivals have a rate and a dwell_ms above 0 and a burst of 1 or more"
                f" but this is {self}; give for example Arrivals(rate=100, burst=4)"
            )

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Draws arrival times.

        Args:
            rng: Random number generator.
            count: Number of arrivals.

        Returns:
            Milliseconds, ascending; ``[count] float64``.
        """
        check_number(PolicyError, "the count of arrivals", count, 0, whole=True)
        if count == 0:
            return np.empty(0)
        # A Poisson process of rate 1, on a clock that runs at the rate of each state.
        work = np.cumsum(rng.exponential(1.0, count))
        if self.burst == 1:
            return work * (1000 / self.rate)
        quiet = 2 * self.rate / 1000 / (1 + self.burst)  # per ms
        rates = np.array([quiet, quiet * self.burst])
        first = int(rng.integers(2))
        rate_of = rates[(first + np.arange(_SPANS)) % 2]
        arrivals = np.empty(count)
        given = 0  # arrivals before the current block of states
        times, done = np.zeros(_SPANS + 1), np.zeros(_SPANS + 1)
        while done[-1] <= work[-1]:
            spans = rng.exponential(self.dwell_ms, _SPANS)
            times[0], done[0] = times[-1], done[-1]
            times[1:] = times[0] + np.cumsum(spans)
            done[1:] = done[0] + np.cumsum(spans * rate_of)
            # At low rates many blocks have no arrival.
            if work[given] < done[-1]:
                until = given + int(np.searchsorted(work[given:], done[-1]))
                arrivals[given:until] = np.interp(work[given:until], done, times)
                given = until
        return arrivals
