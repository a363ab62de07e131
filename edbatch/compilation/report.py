"""The report of all compilations of the process."""

import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from edbatch.compilation.record import Compilation

_KEPT = 10_000  # most records kept; older ones are dropped

_records: deque[Compilation] = deque(maxlen=_KEPT)
_lock = threading.Lock()


def keep(record: Compilation) -> Compilation:
    """Adds a record to the report.

    Args:
        record: The record; it may still be filled in afterwards.

    Returns:
        The same record.
    """
    with _lock:
        _records.append(record)
    return record


@dataclass(frozen=True)
class CompileReport:
    """Report of compilations: iterable as records, printed as a table.

    Attributes:
        records: The compilations, in the order in which they were recorded.

    Example:
        >>> import edbatch as eb
        >>> report = eb.compile_report()
        >>> len(report.records) >= report.background_started
        True
    """

    records: tuple[Compilation, ...]

    def __repr__(self) -> str:
        """Returns a one-line summary."""
        return f"<CompileReport: {self._summary()}>"

    def __iter__(self) -> Iterator[Compilation]:
        """Iterates over the records."""
        return iter(self.records)

    def __len__(self) -> int:
        """Returns the number of compilations."""
        return len(self.records)

    @property
    def seconds(self) -> float:
        """Seconds that calls waited, without compilations in the background."""
        return sum(each.seconds for each in self.records if not each.background)

    @property
    def background_started(self) -> int:
        """Number of compilations that the background thread started."""
        return sum(each.background and each.state != "waiting" for each in self.records)

    @property
    def background_finished(self) -> int:
        """Number of compilations that the background thread finished."""
        return sum(
            each.background and each.state == "finished" for each in self.records
        )

    @property
    def background_failed(self) -> int:
        """Number of compilations that failed in the background thread."""
        return sum(each.background and each.state == "failed" for each in self.records)

    @property
    def coarse_runs(self) -> int:
        """Number of runs of coarse programs."""
        return sum(each.coarse for each in self._programs())

    @property
    def fine_runs(self) -> int:
        """Number of runs of fine programs."""
        return sum(each.fine for each in self._programs())

    def _programs(self) -> list[Any]:
        return list({id(each.programs): each.programs for each in self}.values())

    def __str__(self) -> str:
        """Returns the table."""
        rows = [_HEADS, *map(_row, self.records)]
        widths = [max(len(row[k]) for row in rows) for k in range(len(_HEADS) - 1)]
        lines = [
            "  ".join(
                text.ljust(width) if k < _TEXTS else text.rjust(width)
                for k, (text, width) in enumerate(zip(row, widths, strict=False))
            )
            + f"  {row[-1]}"
            for row in rows
        ]
        return "\n".join([*lines, self._summary()])

    def _summary(self) -> str:
        return (
            f"{len(self)} compilations, calls waited {self.seconds:.1f} s;"
            f" in the background {self.background_started} started,"
            f" {self.background_finished} finished, {self.background_failed} failed;"
            f" {self.coarse_runs} coarse and {self.fine_runs} fine runs"
        )


_HEADS = (
    *("at", "function", "tier", "state"),
    *("trace s", "lower s", "compile s", "runs", "why"),
)
_TEXTS = 4  # left-aligned text columns, before the right-aligned numbers


def _row(record: Compilation) -> tuple[str, ...]:
    state = record.state + (", background" if record.background else "")
    return (
        time.strftime("%H:%M:%S", time.localtime(record.started)),
        record.function,
        record.tier,
        f"{state}, cached" if record.from_cache else state,
        f"{record.trace_s:.2f}",
        f"{record.lower_s:.2f}",
        f"{record.compile_s:.2f}",
        str(record.runs),
        record.reason if record.error is None else f"{record.reason}: {record.error}",
    )


def compile_report() -> CompileReport:
    """Reports what `edbatch` compiled in this process, and why.

    It covers direct calls of batched functions, their gradients outside of compiled
    functions, and functions of `eb.jit`, but not functions of `jax.jit`.

    Returns:
        A snapshot of the report; ``print`` shows it as a table.

    Example:
        >>> import edbatch as eb
        >>> double = eb.jit(lambda x: 2 * x)
        >>> double(1.0).item(), double(3.0).item()
        (2.0, 6.0)
        >>> *_, last = eb.compile_report()
        >>> last.tier, last.runs, last.reason
        ('fine', 2, 'it is the first call')
    """
    with _lock:
        return CompileReport(tuple(_records))
