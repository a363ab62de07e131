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
        text: The signature, described.
        reason: What was new in it.
        runs: How often each tier ran.
        lock: Of whoever compiles what a call waits for; not held by what compiles
            ahead, which is in `refining`.
        fine: The jitted function of the fine one; None if it is not compiled.
        coarse: The jitted function of the coarse one; None if it is not compiled, or
            dropped because the fine one is.
        refining: The compilation of the fine one ahead of calls, in the background or
            by a `warm_up`, once asked for.
        ended_coarse: Whether what was compiled ahead last is the coarse one, since that
            was the setting.
        refine_after: Runs of the coarse one before the fine one is asked for.
        only_coarse: Whether the plans name the coarse tier themselves: there is one
            program, in `fine`, which is a coarse one.
        first_trace: What the coarse one was traced to, until the fine one is there,
            where the function may read variables that change.
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
        """Whether nobody has asked for the fine program."""
        refining = self.refining
        return refining is None or (self.ended_coarse and refining.done)
