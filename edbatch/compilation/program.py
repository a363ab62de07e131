"""The programs of one signature of a function: a coarse one, a fine one, or both."""

import threading
from dataclasses import dataclass, field
from typing import Any

from edbatch.compilation.first_trace import FirstTrace
from edbatch.compilation.record import Runs
from edbatch.compilation.settings import REFINE_AFTER
from edbatch.compilation.signature import Key
from edbatch.compilation.worker import Pending


@dataclass(eq=False)
class Programs:
    """Compiled programs of a signature, and their number of runs.

    Attributes:
        key: The signature.
        text: The signature as text, from `signature.describe`.
        reason: Clause that says what was new in the signature.
        runs: Number of runs of each tier.
        lock: Held while a program that a call waits for is compiled. Compilations ahead
            of calls do not hold it; they are in `refining`.
        fine: The jitted function of the fine program; None if it is not compiled.
        coarse: The jitted function of the coarse program; None if it is not compiled,
            or was dropped because the fine one is compiled.
        refining: Compilation of the final program (the fine one, or the coarse one if
            the tiers setting is ``"coarse"``) ahead of calls, in the background or by
            `warm_up`; None if it was never requested.
        ended_coarse: Whether the last compilation ahead of calls compiled the coarse
            program, because of the tiers setting.
        refine_after: Number of the run of the coarse program, counted from 1, that
            requests the fine one.
        only_coarse: Whether the plans themselves name the coarse tier. Then there is
            only one program, a coarse one, stored in `fine`.
        first_trace: Trace of the coarse program, until the fine one is compiled; None
            unless the function may read variables that change.
    """

    key: Key
    text: dict[str, str]
    reason: str
    runs: Runs = field(default_factory=Runs)
    lock: threading.Lock = field(default_factory=threading.Lock)
    fine: Any = None
    coarse: Any = None
    refining: Pending | None = None
    ended_coarse: bool = False
    refine_after: int = REFINE_AFTER
    only_coarse: bool = False
    first_trace: FirstTrace | None = None

    @property
    def is_fine(self) -> bool:
        """Whether the fine program is compiled."""
        return self.fine is not None

    @property
    def may_refine(self) -> bool:
        """Whether the fine program may still be requested."""
        refining = self.refining
        return refining is None or (self.ended_coarse and refining.done)
