"""Objectives of serving policies: a number per trace, smaller is better."""

from dataclasses import dataclass

import numpy as np

from edbatch.arguments import check_word, is_number, is_positive
from edbatch.errors import PolicyError, nearest, shown
from edbatch.schedule.serving.simulation import Served

_WORDS = ("mean", "p99", "deadline")


@dataclass(frozen=True)
class Objective:
    """The mean or 99th percentile of latencies, or the share of late answers.

    Attributes:
        kind: `"mean"`, `"p99"` or `"deadline"`.
        deadline_ms: Time from arrival to deadline, for `"deadline"`.

    Raises:
        PolicyError: The kind is unknown, `"deadline"` has no time above 0, or another
            kind has a deadline.

    Example:
        >>> Objective.parse("deadline:50")
        Objective(kind='deadline', deadline_ms=50.0)
        >>> str(Objective.parse("p99"))
        'p99'
    """

    kind: str
    deadline_ms: float | None = None

    def __post_init__(self) -> None:
        check_word(PolicyError, "the kind of an objective", self.kind, _WORDS)
        if self.kind != "deadline":
            if self.deadline_ms is not None:
                raise PolicyError(
                    "only the objective 'deadline' has a deadline_ms but this is"
                    f" {self.kind!r} with {shown(self.deadline_ms)}; leave it out"
                )
        elif not (is_number(self.deadline_ms) and is_positive(self.deadline_ms)):
            raise PolicyError(
                "deadline_ms of the objective 'deadline' is a finite number above 0 but"
                f" is {shown(self.deadline_ms)}; give one, as"
                " Objective('deadline', 50.0)"
            )

    @classmethod
    def parse(cls, text: str) -> "Objective":
        """Reads an objective: ``mean``, ``p99`` or ``deadline:MS``.

        Args:
            text: The objective, in one of these forms.

        Returns:
            The objective.

        Raises:
            PolicyError: The text is not an objective.
        """
        kind, colon, number = text.partition(":")
        if kind in ("mean", "p99") and not colon:
            return cls(kind)
        try:
            deadline = float(number)
        except ValueError:
            deadline = 0.0
        if kind == "deadline" and 0 < deadline < np.inf:
            return cls(kind, deadline)
        raise PolicyError(
            "an objective is mean, p99, or deadline: and milliseconds above 0, as"
            f" deadline:50, but this is {shown(text)}"
            + ("" if kind == "deadline" else f"; {nearest(kind, _WORDS)}")
        )

    def __str__(self) -> str:
        """Returns the form that `parse` reads."""
        if self.deadline_ms is None:
            return self.kind
        return f"{self.kind}:{repr(float(self.deadline_ms)).removesuffix('.0')}"

    def value(self, served: Served, patience_ms: float = np.inf) -> float:
        """Returns the number to minimize.

        Args:
            served: The results of the simulation.
            patience_ms: Time after the last arrival at which the simulation was given
                up; requests not done by then count as done at that time.

        Returns:
            Milliseconds; for a deadline, the share of late requests plus a thousandth
            of the mean latency in units of the deadline, which breaks ties.
        """
        end = served.arrival_ms[-1] + patience_ms
        latency = np.minimum(served.finish_ms, end) - served.arrival_ms
        if self.kind == "mean":
            return float(latency.mean())
        if self.kind == "p99":
            return float(np.percentile(latency, 99))
        assert self.deadline_ms is not None, "a deadline has a time"
        late = float(np.mean(served.latency_ms > self.deadline_ms))
        return late + 1e-3 * float(latency.mean()) / self.deadline_ms
