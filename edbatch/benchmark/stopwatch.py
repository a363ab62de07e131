"""Times plans on a machine whose speed varies.

Every run is timed next to a run of one fixed plan, the standard, and only their ratio
is kept. At the end, the standard's median time over the whole session converts ratios
to microseconds, so that a temporary load on the machine affects all times equally.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from edbatch.measuring import timed
from edbatch.plan import Plan


class Stopwatch:
    """Times plans relative to a standard.

    Attributes:
        standard: The plan that all times are relative to.
    """

    def __init__(self, apply: Callable[[Plan], Any], standard: Plan) -> None:
        self.standard = standard
        self._apply = apply
        self._ms: list[float] = []
        self._time(standard)  # compiles

    def ratio(self, *plans: Plan) -> np.ndarray:
        """Runs the standard and then each plan, once.

        Args:
            *plans: The plans; their programs must already be compiled.

        Returns:
            The time of each plan relative to the standard's; ``[plans] float64``.
        """
        self._ms.append(self._time(self.standard))
        return np.array([self._time(plan) for plan in plans]) / self._ms[-1]

    def warm_up(self, plan: Plan) -> None:
        """Runs a plan so that its program is compiled."""
        self._time(plan)

    @property
    def standard_us(self) -> float:
        """Median time of the standard so far, in microseconds."""
        return 1e3 * float(np.median(self._ms))

    def _time(self, plan: Plan) -> float:
        return timed(self._apply, plan)[1]
