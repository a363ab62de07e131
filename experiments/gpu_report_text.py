"""The Markdown report of `gpu_report`."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Task:
    """A benchmark to run.

    Attributes:
        workload: The workload.
        hidden: Length of the model's states.
        batch_size: Instances per minibatch.
        systems: The systems to compare, separated by commas.
        train: Whether gradients are measured, too.
        rounds: How often each system is timed.
        on_cpu: Whether it runs on two CPU cores.
        minibatches: Number of minibatches, if it differs from the report's other
            benchmarks.
    """

    workload: str
    hidden: int
    batch_size: int
    systems: str
    train: bool = True
    rounds: int = 5
    on_cpu: bool = False
    minibatches: int | None = None

    @property
    def name(self) -> str:
        """A short description of the benchmark."""
        where = ", two cores" if self.on_cpu else ""
        passes = "" if self.train else ", forward"
        systems = self.systems.replace(",", " ")
        size = f"{self.workload}, {self.hidden}, {self.batch_size}"
        return f"{size} ({systems}{passes}{where})"


@dataclass(frozen=True)
class Run:
    """One run of a benchmark.

    Attributes:
        task: The benchmark.
        seconds: Duration of the run, compilations included.
        result: The output of ``edbatch bench --json``; None if nothing was measured.
        why: The reason why nothing was measured.
    """

    task: Task
    seconds: float
    result: dict[str, Any] | None
    why: str = ""

    def row(self, system: str) -> dict[str, Any] | None:
        """Returns the measurements of a system, or None if there are none."""
        rows = self.result["rows"] if self.result else []
        return next((each for each in rows if each["system"] == system), None)


HEAD = (
    "| workload | hidden | batch | system | forward ms | gradient ms | to exact"
    " | compile s | compiles | % of peak | error |\n|" + " --- |" * 11
)


def markdown(report: dict[str, Any], runs: list[Run]) -> str:
    """Writes the report.

    Args:
        report: The machine, the tests, the profile, and the total time.
        runs: The benchmarks.

    Returns:
        Markdown.
    """
    what = report["machine"]
    lines = [
        "# edbatch, measured on one device",
        "",
        f"{what['device']} ({what['platform']}), {what['cpus']} CPU cores, JAX"
        f" {what['jax']}, Python {what['python']}; {report['seconds']:.0f} seconds.",
        "",
    ]
    if what["platform"] == "cpu":
        lines += [
            "This machine has no GPU that JAX sees: these are times of a CPU, while the"
            " goals are for GPUs.",
            "",
        ]
    else:
        lines += ["## Goals", "", *_goals(runs), ""]
    lines += ["## Tests", "", "```text", report["tests"]["output"], "```", ""]
    lines += ["## Times per minibatch", "", HEAD]
    lines += [line for run in runs for line in _rows(run)]
    lines += [
        "",
        'Milliseconds are medians. "To exact" is the median ratio to a program for this'
        " one minibatch, which cannot run another. Peak is the fastest matrix product"
        " measured in the same run. The error is the largest difference from the model"
        " run on each instance.",
        "",
        "## Not measured",
        "",
        *(_missing(runs) or ["Nothing is missing."]),
        "",
        "## One minibatch",
        "",
    ]
    if report["profile"]:
        lines.append("![what ran on the device](gpu-profile.svg)")
    else:
        lines.append(f"There is no profile: {report['no_profile']}")
    return "\n".join([*lines, ""])


def _rows(run: Run) -> list[str]:
    task = run.task
    first = f"| {task.workload} | {task.hidden} | {task.batch_size} |"
    where = " on two CPU cores" if task.on_cpu else ""
    lines = []
    for row in run.result["rows"] if run.result else ():
        train = row["train"] or {}
        cells = [
            row["system"] + where,
            number(row["forward_ms"]),
            number(train.get("train_ms")),
            number(row["ratio_to_exact"]),
            number(row["compile_s"]),
            str(row["compiles"]),
            number(row["percent_of_peak"]),
            number(row["max_abs_error"]),
        ]
        lines.append(f"{first} {' | '.join(cells)} |")
    return lines


def _missing(runs: list[Run]) -> list[str]:
    missing = []
    for run in runs:
        if run.result is None:
            missing.append(f"- {run.task.name}: {run.why}")
            continue
        missing += [
            f"- {run.task.workload}, {name}: {why}"
            for name, why in run.result["left_out"].items()
        ]
    return missing


def _goals(runs: list[Run]) -> list[str]:
    """Compares the goals for a GPU with the measured forward passes of edbatch."""
    here = [run for run in runs if run.row("edbatch") and not run.task.on_cpu]
    beside = [run for run in runs if run.row("edbatch") and run.task.on_cpu]
    lines = ["| forward pass of edbatch | goal | measured |", "| --- | --- | --- |"]

    def line(what: str, goal: str, found: float | None, unit: str) -> None:
        measured = "not measured" if found is None else f"{number(found)} {unit}"
        lines.append(f"| {what} | {goal} {unit} | {measured} |")

    faster = None
    if beside and (same := [run for run in here if _size(run) == _size(beside[0])]):
        faster = _forward(beside[0], "edbatch") / _forward(same[0], "edbatch")
    line("against two CPU cores, smallest size", "5", faster, "times as fast")
    share = None
    if here:
        largest = max(here, key=lambda run: _size(run)[1:])
        found = largest.row("edbatch")
        share = found["percent_of_peak"] if found else None
    line("of the fastest product, largest size", "40", share, "%")
    for system, goal in (("scan", "10"), ("levels", "2")):
        ratios = [
            _forward(run, system) / _forward(run, "edbatch")
            for run in here
            if run.row(system)
        ]
        least = min(ratios, default=None)
        line(f"against {system}, the least of all sizes", goal, least, "times as fast")
    return lines


def _size(run: Run) -> tuple[str, int, int]:
    return run.task.workload, run.task.hidden, run.task.batch_size


def _forward(run: Run, system: str) -> float:
    row = run.row(system)
    assert row is not None, "it was measured"
    return float(row["forward_ms"])


def number(value: float | None) -> str:
    """Formats a number with three significant digits; None as an empty string."""
    return "" if value is None else f"{value:.3g}"
