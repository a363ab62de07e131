"""`WaveReport`: counts and times of waves."""

from dataclasses import dataclass


@dataclass
class WaveReport:
    """Counts and times of waves.

    Attributes:
        waves: Number of waves.
        recorded: Nodes that were recorded.
        nodes: Nodes that ran; the others were not needed.
        batches: Batches in the waves' schedules.
        chunks: Chunks that ran.
        rows: Rows that were computed, padding included.
        moves: How often rows were moved to make room.
        host_ms: Time to schedule and encode the waves, in milliseconds.
        run_ms: Time in calls of programs, which on CPUs run in part synchronously, and
            waiting for values, in milliseconds.
        run_cpu_ms: CPU time of the thread within `run_ms`, in milliseconds: without
            waiting.

    Example:
        >>> WaveReport(waves=3, nodes=4).copy().waves
        3
    """

    waves: int = 0
    recorded: int = 0
    nodes: int = 0
    batches: int = 0
    chunks: int = 0
    rows: int = 0
    moves: int = 0
    host_ms: float = 0.0
    run_ms: float = 0.0
    run_cpu_ms: float = 0.0

    def copy(self) -> "WaveReport":
        """Returns the counts as they are now."""
        return WaveReport(**vars(self))
