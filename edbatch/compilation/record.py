"""The record of one compilation."""

import time
from dataclasses import dataclass, field
from typing import Literal

State = Literal["waiting", "running", "finished", "failed"]


@dataclass
class Runs:
    """Number of runs of the programs of one signature.

    Attributes:
        coarse: Runs of the coarse program.
        fine: Runs of the fine program.
    """

    coarse: int = 0
    fine: int = 0


@dataclass
class Compilation:
    """One compilation: its function, reason, start time and duration.

    Attributes:
        function: Name of the function.
        tier: ``"fine"`` or ``"coarse"``.
        reason: Clause that says what was new in the signature.
        background: Whether the background thread compiled, while calls went on.
        state: ``"waiting"`` for the background thread, ``"running"``, ``"finished"`` or
            ``"failed"``.
        started: Start time, as returned by `time.time`.
        trace_s: Seconds that JAX took to trace the function.
        lower_s: Seconds that it took to lower the trace to StableHLO.
        compile_s: Seconds that XLA took to compile the StableHLO, or that reading the
            program from the cache took.
        from_cache: Whether the program was found in the persistent cache.
        error: Type and message of the error; None if there was none.
        programs: Run counts of the programs of its signature, of both tiers.

    Example:
        >>> import edbatch as eb
        >>> with eb.use_tiers("fine"):
        ...     eb.jit(lambda x: 4 * x)(1.0).item()
        4.0
        >>> record = eb.compile_report().records[-1]
        >>> record.tier, record.state, record.background
        ('fine', 'finished', False)
    """

    function: str
    tier: str
    reason: str
    background: bool = False
    state: State = "waiting"
    started: float = field(default_factory=time.time)
    trace_s: float = 0.0
    lower_s: float = 0.0
    compile_s: float = 0.0
    from_cache: bool = False
    error: str | None = None
    programs: Runs = field(default_factory=Runs, repr=False)

    @property
    def seconds(self) -> float:
        """Total seconds to trace, lower and compile."""
        return self.trace_s + self.lower_s + self.compile_s

    @property
    def runs(self) -> int:
        """Number of runs of the program; 0 if its compilation failed."""
        if self.state == "failed":  # the runs are those of a later compilation
            return 0
        return self.programs.fine if self.tier == "fine" else self.programs.coarse
