"""The record of one compilation."""

import time
from dataclasses import dataclass, field
from typing import Literal

State = Literal["waiting", "running", "finished", "failed"]


@dataclass
class Runs:
    """Number of runs of the programs of one signature.

    Attributes:
        coarse: Runs of the coarse one.
        fine: Runs of the fine one.
    """

    coarse: int = 0
    fine: int = 0


@dataclass
class Compilation:
    """One compilation: of what, why, when, and how long it took.

    Attributes:
        function: Name of the function.
        tier: ``"fine"`` or ``"coarse"``.
        reason: What was new: a clause.
        background: Whether a thread of its own compiled, while calls went on.
        state: ``"waiting"`` for the background thread, ``"running"``, ``"finished"`` or
            ``"failed"``.
        started: When it began, in seconds since the epoch of `time.time`.
        trace_s: Seconds that JAX took to trace the function.
        lower_s: Seconds that it took to lower the trace to StableHLO.
        compile_s: Seconds that XLA took to compile that, or to load it from the cache.
        from_cache: Whether the program was found in the persistent cache.
        error: What went wrong; None if nothing did.
        programs: How often the programs of its signature ran, of both tiers.

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
        """Seconds in all."""
        return self.trace_s + self.lower_s + self.compile_s

    @property
    def runs(self) -> int:
        """Number of runs of the program; none of one whose compilation failed."""
        if self.state == "failed":  # what runs was compiled again
            return 0
        return self.programs.fine if self.tier == "fine" else self.programs.coarse
