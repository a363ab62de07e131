"""The option `--compiles`: counts what JAX and Numba compile in each test.

A pytest plugin, so that processes of pytest-xdist count too and one report shows all.
"""

import resource
import time
from collections.abc import Callable, Generator
from typing import Any

import jax
import pytest
from numba.core import event

BACKEND_COMPILE = "/jax/core/compile/backend_compile_duration"
_KEY = "compiles"
Row = tuple[str, list[float]]


class _NumbaTime(event.Listener):
    """Adds up the time of outermost compilations, including kernels that they call."""

    def __init__(self) -> None:
        self.depth = 0
        self.count = 0
        self.seconds = 0.0
        self._start = 0.0

    def on_start(self, event: event.Event) -> None:
        if self.depth == 0:
            self._start = time.perf_counter()
        self.depth += 1
        self.count += 1

    def on_end(self, event: event.Event) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.seconds += time.perf_counter() - self._start


class CompileReport:
    """Counts compilations during each test, and prints the tests with the most.

    Args:
        shown: How many tests to print.
    """

    def __init__(self, shown: int) -> None:
        self._shown = shown
        self._xla_count = 0
        self._xla_seconds = 0.0
        self._numba = _NumbaTime()
        self._rows: list[Row] = []
        jax.monitoring.register_event_duration_secs_listener(self._count)
        event.register("numba:compile", self._numba)

    def _count(self, name: str, seconds: float, **_: Any) -> None:
        if name == BACKEND_COMPILE:
            self._xla_count += 1
            self._xla_seconds += seconds

    def _counts(self) -> list[float]:
        numba = self._numba
        jax_counts = [self._xla_count, self._xla_seconds]
        return [*jax_counts, numba.count, numba.seconds, _cpu_seconds()]

    def pytest_collection_finish(self) -> None:
        self._last = self._counts()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        if call.when == "teardown":
            now = self._counts()
            counts = [new - old for new, old in zip(now, self._last, strict=True)]
            item.user_properties.append((_KEY, counts))
            self._last = now
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self._rows += [
                (report.nodeid, counts)
                for key, counts in report.user_properties
                if key == _KEY
            ]

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        write = terminalreporter.write_line
        terminalreporter.section("compiles: XLA count, s; Numba count, s; CPU s")
        tables = [_added_up(self._rows, lambda name: "all tests")]
        tables += [_added_up(self._rows, lambda name: name.partition("::")[0])]
        for rows in [*tables, self._rows]:
            for name, counts in sorted(rows, key=_cpu, reverse=True)[: self._shown]:
                xla, xla_s, numba, numba_s, cpu_s = counts
                write(
                    f"{xla:6.0f} {xla_s:7.1f} {numba:5.0f} {numba_s:7.1f} "
                    f"{cpu_s:8.1f}  {name}"
                )
            write("")


def _cpu_seconds() -> float:
    """CPU time of this process and of its child processes that have ended."""
    both = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    return sum(each.ru_utime + each.ru_stime for each in map(resource.getrusage, both))


def _added_up(rows: list[Row], group: Callable[[str], str]) -> list[Row]:
    """The sum of the rows of each group."""
    sums: dict[str, list[float]] = {}
    for name, counts in rows:
        before = sums.setdefault(group(name), [0.0] * len(counts))
        sums[group(name)] = [a + b for a, b in zip(before, counts, strict=True)]
    return list(sums.items())


def _cpu(row: Row) -> float:
    return row[1][-1]
