"""Training metrics by step: a CSV file and, optionally, TensorBoard event files.

TensorBoard's files are written by tensorboardX, which needs neither TensorFlow nor
PyTorch: ``pip install 'edbatch[tensorboard]'``.
"""

import csv
import io
import math
import time
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from edbatch.errors import MetricLogError, MissingTensorBoardError
from edbatch.policies.files.whole_file import write_whole

_FIRST = ("step", "seconds")  # the first columns of every file


class MetricLog:
    """Writes metrics to a CSV file and TensorBoard event files; a context manager.

    The CSV file has a row per call of `write`, with the step, the seconds since the log
    was opened, and a column per metric, which is empty where a row has no value. The
    file is complete after every row, so it can be read while training runs.

    Args:
        path: The CSV file; replaced if it exists, unless `resume`.
        tensorboard: Folder for TensorBoard event files; None for none.
        resume: Append to the file of an interrupted run, if there is one.
        last_step: With `resume`: the step after which the run resumes. Rows of later
            steps are dropped; None keeps all.

    Attributes:
        path: The CSV file.

    Raises:
        MetricLogError: The file cannot be written, or is not a metrics file.
        MissingTensorBoardError: tensorboardX is not installed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with MetricLog(Path(folder, "metrics.csv")) as log:
        ...         log.write(1, {"loss": 0.5})
        ...         log.write(2, {"loss": 0.25, "held_out/accuracy": 0.75})
        ...     lines = log.path.read_text().splitlines()
        >>> lines[0]
        'step,seconds,loss,held_out/accuracy'
        >>> lines[1].split(",")[2:], lines[2].split(",")[2:]
        (['0.5', ''], ['0.25', '0.75'])
    """

    def __init__(
        self,
        path: str | PathLike[str],
        tensorboard: str | PathLike[str] | None = None,
        *,
        resume: bool = False,
        last_step: int | None = None,
    ) -> None:
        # Checked before the file is replaced, so that a failure loses nothing.
        events = None if tensorboard is None else check_tensorboard()
        self.path = Path(path)
        self._began = time.perf_counter()
        self._columns = [*_FIRST]
        kept = self._read(last_step) if resume and self.path.exists() else []
        if kept:
            self._began -= max(float(row["seconds"]) for row in kept)
        self._replace(kept)
        purge = last_step + 1 if resume and last_step is not None else None
        self._events = None
        if events is not None:
            self._events = events(str(tensorboard), purge_step=purge)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes a row.

        Args:
            step: The training step; steps should increase, and may repeat.
            metrics: Numbers by name. TensorBoard groups names by the part before a
                slash, as in ``held_out/loss``.

        Raises:
            MetricLogError: A metric is named ``step`` or ``seconds`` like a standard
                column, or the file can no longer be written.
        """
        for name in _FIRST:
            if name in metrics:
                raise MetricLogError(
                    f"the columns {' and '.join(_FIRST)} are reserved, but a metric is"
                    f" named {name!r}; choose another name, for example 'train/{name}'"
                )
        new = [name for name in metrics if name not in self._columns]
        if new:
            kept = self._read(None)
            self._columns += new
            self._replace(kept)
        seconds = round(time.perf_counter() - self._began, 3)
        row: dict[str, Any] = {"step": step, "seconds": seconds}
        row |= {name: float(value) for name, value in metrics.items()}
        try:
            with open(self.path, "a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self._columns).writerow(row)
        except OSError as error:
            raise self._not_written(error) from error
        if self._events is not None:
            for name, value in metrics.items():
                self._events.add_scalar(name, float(value), step)

    def close(self) -> None:
        """Flushes and closes the TensorBoard files; the CSV file needs no flush."""
        if self._events is not None:
            self._events.close()
            self._events = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self, last_step: int | None) -> list[dict[str, str]]:
        """Reads the file: sets the columns, and returns rows up to `last_step`."""
        self._columns, rows = read_metrics(self.path)
        return [
            row for row in rows if last_step is None or int(row["step"]) <= last_step
        ]

    def _replace(self, rows: list[dict[str, str]]) -> None:
        """Rewrites the whole file."""

        def write(temporary: Path) -> None:
            with open(temporary, "w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, self._columns)
                writer.writeheader()
                writer.writerows(rows)

        try:
            write_whole(self.path, write)
        except OSError as error:
            raise self._not_written(error) from error

    def _not_written(self, error: OSError) -> MetricLogError:
        return MetricLogError(
            f"metrics are written to {self.path} but that failed ({error.strerror});"
            " name a file in an existing, writable folder"
        )


def read_metrics(path: str | PathLike[str]) -> tuple[list[str], list[dict[str, str]]]:
    r"""Reads a file that `MetricLog` wrote.

    Args:
        path: The file. An incomplete last line, as left by a killed process, is
            ignored.

    Returns:
        The columns, and the rows: by column name, a number as text, empty where the row
        has no value.

    Raises:
        MetricLogError: The file cannot be read, or is not a metrics file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "metrics.csv")
        ...     _ = path.write_text("step,seconds,loss\n1,0.1,0.5\n2,0.2,0.")
        ...     read_metrics(path)
        (['step', 'seconds', 'loss'], [{'step': '1', 'seconds': '0.1', 'loss': '0.5'}])
    """
    try:
        text = Path(path).read_bytes().decode()
        whole = text[: text.rfind("\n") + 1]
        reader = csv.DictReader(io.StringIO(whole, newline=""))
        rows = [*reader]
        columns = [*(reader.fieldnames or ())]
        strange = any(None in (*row, *row.values()) for row in rows)
        if (*columns[:2],) != _FIRST or strange:
            raise ValueError("its columns are different")
        for row in rows:
            int(row["step"])
            if not math.isfinite(float(row["seconds"])):
                raise ValueError(f"{row['seconds']} is not a number of seconds")
            for value in row.values():
                float(value or 0)
    except (OSError, ValueError, csv.Error) as error:
        raise MetricLogError(
            f"metrics are added to a file with the columns {', '.join(_FIRST)}, …"
            f" but {path} is none, or cannot be read ({error}); name another"
            " file, or start a new one"
        ) from error
    return columns, rows


def check_tensorboard() -> Any:
    """Checks that TensorBoard event files can be written.

    Returns:
        The writer class of tensorboardX.

    Raises:
        MissingTensorBoardError: tensorboardX is not installed.

    Example:
        >>> check_tensorboard().__name__
        'SummaryWriter'
    """
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise MissingTensorBoardError(
            "event files for TensorBoard are written by tensorboardX, which is not"
            " installed; install it with: pip install 'edbatch[tensorboard]', or do"
            " without: the CSV file has the same numbers"
        ) from error
    return SummaryWriter
