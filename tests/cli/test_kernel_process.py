"""The process that compiles the loops of planning while a command runs."""

import os
import subprocess
import sys

import pytest

from edbatch.cli import kernel_process
from edbatch.cli.kernel_process import (
    background_compilation,
    plan_once,
    wait_for,
)

PRINTS_WHETHER_COMPILED = """
from edbatch.cli import kernel_process
print(kernel_process._is_compiled())
"""


def test_no_process_is_started_where_the_loops_are_compiled():
    plan_once()
    with background_compilation() as process:
        assert process is None


@pytest.mark.parametrize(("off", "compiled"), [("0", "False"), ("1", "True")])
def test_an_empty_cache_has_no_loops(tmp_path, off, compiled):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, "-P", "-c", PRINTS_WHETHER_COMPILED],
        env=environment | {"NUMBA_DISABLE_JIT": off},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == compiled


def test_the_process_ends_with_the_command(monkeypatch):
    monkeypatch.setattr(kernel_process, "_is_compiled", lambda: False)
    monkeypatch.setattr(kernel_process, "_CODE", "import time; time.sleep(600)")
    with pytest.raises(KeyboardInterrupt), background_compilation() as process:
        assert process.poll() is None
        raise KeyboardInterrupt
    assert process.returncode is not None


def test_without_another_process_planning_compiles(monkeypatch):
    monkeypatch.setattr(kernel_process, "_is_compiled", lambda: False)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with background_compilation() as process:
        assert process is None


@pytest.mark.parametrize("left", [True, False])
def test_whoever_waits_plans_meanwhile(left, monkeypatch):
    """The other process may fail."""
    planned = []
    monkeypatch.setattr(kernel_process, "plan_once", lambda *way: planned.append(way))
    code = "import time; time.sleep(1)" if left else ""
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}\nraise ValueError"], stderr=subprocess.DEVNULL
    ) as other:
        if not left:
            other.wait()
        wait_for(other)
    assert other.returncode == 1
    assert planned == [("greedy", "schedule")] * left


def test_the_process_plans(monkeypatch):
    monkeypatch.setattr(kernel_process, "_is_compiled", lambda: False)
    with background_compilation() as process:
        assert process.wait(timeout=300) == 0
