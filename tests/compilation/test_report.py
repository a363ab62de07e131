"""Tests the compile report, the log and the progress line."""

import io
import sys
import threading
import time
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

import edbatch as eb
from edbatch.compilation import Compilation, progress, stages
from edbatch.compilation.record import Runs
from edbatch.compilation.report import CompileReport
from edbatch.compilation.signature import difference
from edbatch.compilation.stages import compile_stages


class Traced:
    """A stand-in for a jitted function with slow stages."""

    def __init__(self, seconds):
        self.seconds = seconds

    def trace(self):
        time.sleep(self.seconds)
        return self

    def lower(self):
        return self

    def compile(self):
        return self


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(stages, "LONG_S", 0.02)
    monkeypatch.setattr(progress, "PATIENCE_S", 0.02)
    monkeypatch.setattr(progress, "_EVERY_S", 0.01)


def records():
    runs = Runs(coarse=3, fine=5)
    return (
        Compilation("step", "coarse", "it is the first call", programs=runs),
        Compilation(
            "step",
            "fine",
            "it is the first call",
            background=True,
            state="finished",
            trace_s=1.0,
            lower_s=2.0,
            compile_s=4.5,
            from_cache=True,
            programs=runs,
        ),
        Compilation(
            "step",
            "fine",
            "x is new",
            background=True,
            state="failed",
            error="oh",
            programs=runs,  # of the program that was compiled again
        ),
    )


def test_a_report_counts_and_prints():
    report = CompileReport(records())
    assert len(report) == 3 and [each.runs for each in report] == [3, 5, 0]
    assert (report.background_started, report.background_finished) == (2, 1)
    assert (report.background_failed, report.coarse_runs, report.fine_runs) == (1, 3, 5)
    head, _, fine, failed, summary = str(report).splitlines()
    assert head.split()[:4] == ["at", "function", "tier", "state"]
    assert "finished, background, cached" in fine
    assert fine.endswith("5  it is the first call")
    assert fine.split()[-9:-6] == ["1.00", "2.00", "4.50"]
    assert failed.endswith("x is new: oh")
    assert "2 started, 1 finished, 1 failed; 3 coarse and 5 fine runs" in summary
    assert sum(each.seconds for each in report) == 7.5 and report.seconds == 0


def test_what_is_new_is_told_beside_the_most_similar_call():
    assert difference({"x": "a"}, []) == "it is the first call"
    known = [{"x": "a", "y": "b"}, {"x": "c", "y": "d"}]
    assert difference({"x": "c", "y": "e"}, known) == "y changed from d to e"
    assert difference({"x": "c"}, known) == "y was removed"
    assert difference({"x": "c", "y": "d", "z": "f"}, known) == "z is new"
    many = {f"{k}": "new" for k in range(5)}
    found = difference(many, [dict.fromkeys(many, "old")])
    assert found.endswith("; and 2 more") and found.count("from old to new") == 3


def test_the_names_of_arguments_are_told():
    function = eb.jit(lambda x, *, scale: x * scale)
    function(jnp.ones(3), scale=jnp.ones(3))
    function(jnp.ones(3), scale=2.0)
    *_, last = eb.compile_report()
    assert last.reason == "scale changed from float32[3] to float32[] (weak)"
    static = eb.jit(lambda x, n: x * n, static_argnames="n")
    static(1.0, 2)
    static(1.0, 3)
    *_, last = eb.compile_report()
    assert last.reason == "n changed from 2 to 3"


def test_long_compilations_get_a_line_in_the_log(monkeypatch, caplog):
    """Uses a fake clock, so that the machine's load does not matter."""
    clock = [0.0]
    ticks = SimpleNamespace(perf_counter=lambda: clock[0], time=time.time)
    monkeypatch.setattr(stages, "time", ticks)

    class Timed(Traced):
        def trace(self):
            clock[0] += self.seconds
            return self

    with caplog.at_level("INFO", logger="edbatch"):
        compile_stages(Timed(0.9), (), {}, Compilation("quick", "fine", "why"))
        compile_stages(Timed(1.1), (), {}, Compilation("slow", "coarse", "x is new"))
    [line] = caplog.records
    assert line.levelname == "INFO"
    assert line.message.startswith("compiled slow (coarse program) in 1.1 s: trace")
    assert line.message.endswith("; x is new")


def test_a_terminal_shows_a_line_while_somebody_waits(quick, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "__stderr__", terminal)
    compile_stages(Traced(0.0), (), {}, Compilation("quick", "fine", "why"))
    in_background = Compilation("other", "fine", "why", background=True)
    compile_stages(Traced(0.1), (), {}, in_background)
    assert terminal.getvalue() == ""
    compile_stages(Traced(0.1), (), {}, Compilation("slow", "coarse", "why"))
    text = terminal.getvalue()
    assert "edbatch: compiling slow (coarse), 0 s ..." in text
    assert text.endswith("\r\033[K"), "the line is cleared"


def test_where_a_display_owns_stderr_it_gets_one_whole_line(quick, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    compile_stages(Traced(0.1), (), {}, Compilation("slow", "coarse", "why"))
    assert sys.stderr.getvalue() == "edbatch: compiling slow (coarse) ...\n"


@pytest.mark.parametrize("stderr", [None, io.StringIO()])
def test_without_a_terminal_nothing_is_shown(quick, monkeypatch, stderr):
    monkeypatch.setattr(sys, "stderr", stderr)
    before = threading.active_count()
    compile_stages(Traced(0.05), (), {}, Compilation("slow", "coarse", "why"))
    assert stderr is None or stderr.getvalue() == ""
    assert threading.active_count() == before
