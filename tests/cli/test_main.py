"""Behavior that all commands share."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import jax
import pytest
from typer.testing import CliRunner

from edbatch.cli.main import app, train_policy_app
from edbatch.models import WORKLOADS, WorkloadError

COMMANDS = ("demo", "train-policy", "compare", "inspect", "run", "calibrate")


def run_script(function: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command as its script does, in a separate process."""
    code = f"from edbatch.cli.main import {function}; {function}()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
@pytest.mark.parametrize(("option", "code"), [("--json", 0), ("--other", 2)])
def test_streams_that_are_closed(closed: str, option: str, code: int) -> None:
    script = "from edbatch.cli.main import main; main()"
    line = f'exec "$0" -c "$1" workloads {option} {closed}'
    found = subprocess.run(
        ["sh", "-c", line, sys.executable, script],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert found.returncode == code
    assert (found.stdout != "") == (option == "--json" and closed == "2>&-")
    assert (found.stderr != "") == (option == "--other" and closed == ">&-")
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help(edbatch, command: str) -> None:
    result = edbatch(command, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout
    assert "│" in result.stdout


@pytest.mark.parametrize(
    "example",
    ["train-policy --w", "edbatch compare --w", "edbatch inspect t", "edbatch run --w"],
)
def test_help_shows_an_example(edbatch, example: str) -> None:
    command = example.removeprefix("edbatch ").split()[0]
    text = " ".join(edbatch(command, "--help").stdout.split())
    assert f"Example: {example}" in text


def test_without_a_command_all_are_listed(edbatch) -> None:
    result = edbatch()
    assert result.exit_code == 0
    assert all(command in result.stdout for command in COMMANDS)


def test_a_misspelt_command(assert_fails) -> None:
    assert_fails("'train-polcy'.*'train-policy'.*see 'edbatch --help'", "train-polcy")


def test_debugging_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["compare", "--workload", "x", "--policy", "greedy"]
    monkeypatch.setenv("EDBATCH_DEBUG", "1")
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, WorkloadError)
    monkeypatch.setenv("EDBATCH_DEBUG", "0")
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)


def test_train_policy_is_a_command_of_its_own() -> None:
    runner = CliRunner()
    own = runner.invoke(train_policy_app, ["--help"], prog_name="train-policy").stdout
    sub = runner.invoke(app, ["train-policy", "--help"], prog_name="edbatch").stdout
    assert "Usage: train-policy [OPTIONS]" in own
    assert "Usage: edbatch train-policy [OPTIONS]" in sub
    assert own.splitlines()[2:] == sub.splitlines()[2:]


def test_scripts() -> None:
    version = run_script("main", "--version")
    assert (version.returncode, version.stderr) == (0, "")
    assert version.stdout.startswith("edbatch ")
    wrong = run_script("train_policy_main", "--workload", "tree-lst")
    assert wrong.returncode == 2
    assert wrong.stdout == ""
    assert wrong.stderr == (
        "Error: there is no workload 'tree-lst'; did you mean 'tree-lstm'?; all are"
        f" {', '.join(WORKLOADS)}\n"
    )


def test_a_name_is_not_given_twice(assert_fails, edbatch) -> None:
    assert_fails(
        "--policy is given 2 times but takes one value; give one, see .* --help",
        *("compare", "--workload", "tree-lstm-2type", "--minibatches", "1"),
        *("--policy", "zoo:lattice-lstm", "--policy", "zoo:tree-lstm-2type"),
    )
    # Of other options the last value wins, so a caller can override those of a script.
    found = edbatch(
        *("compare", "--workload", "tree-lstm-2type", "--minibatches", "7"),
        *("--search-ms", "0", "--policy", "zoo:tree-lstm-2type", "--minibatches", "1"),
    )
    assert found.exit_code == 0 and "means of 1 minibatches" in found.stdout


@pytest.mark.parametrize("function", ["main", "train_policy_main"])
def test_a_misspelt_environment_variable(
    monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    monkeypatch.setenv("EDBATCH_TIERS", "corse")
    done = run_script(function, *(["workloads"] if function == "main" else []))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "Error: the environment variable EDBATCH_TIERS is one of 'auto', 'fine',"
        " 'coarse' but this is 'corse'; did you mean 'coarse'?\n"
    )


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = "from edbatch.cli.main import main; main()"
    done = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -c "{code}" --help | head -n 1'],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (MemoryError("Unable to allocate 7.28 TiB"), " (Unable to allocate 7.28 TiB)"),
        (MemoryError(), ""),
        (
            jax.errors.JaxRuntimeError(
                "INTERNAL: Error: Out of memory allocating 4 bytes"
            ),
            " (Out of memory allocating 4 bytes)",
        ),
    ],
)
def test_too_little_memory_is_told(assert_fails, monkeypatch, error, shown) -> None:
    def raises(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("edbatch.cli.task.load_task", raises)
    told = f"Error: out of memory{re.escape(shown)}; use a smaller --hidden"
    assert_fails(told, "explain", "--workload", "tree-lstm")


def test_another_error_of_a_program_is_no_lack_of_memory(edbatch, monkeypatch) -> None:
    def raises(*_: object, **__: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("edbatch.cli.task.load_task", raises)
    result = edbatch("explain", "--workload", "tree-lstm")
    assert isinstance(result.exception, RuntimeError)


@pytest.mark.parametrize(
    ("option", "most"), [("--batch-size", 2**31 - 1), ("--seed", 2**63 - 1)]
)
def test_numbers_beyond_all_that_there_is(assert_fails, option, most) -> None:
    command = ("explain", "--workload", "tree-lstm", option)
    assert_fails(
        f"{option} is {most + 1} but may be {most:,} at most", *command, most + 1
    )


def test_an_unreadable_file_is_named(
    assert_fails, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "some.npz")

    monkeypatch.setattr("edbatch.cli.params_file.zipfile.is_zipfile", refuse)
    (tmp_path / "some.npz").touch()
    assert_fails(
        "some.npz cannot be used: Permission denied",
        *("run", "--workload", "tree-lstm", "--params", tmp_path / "some.npz"),
    )


def test_a_full_disk_without_a_name(
    assert_fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edbatch.cli.workloads.print_json", refuse)
    assert_fails(
        r"output, cannot be written \(No space left on device\); make room",
        *("workloads", "--json"),
    )


def test_help_does_not_wait_for_what_commands_need() -> None:
    code = (
        "import sys; from edbatch.cli import main;"
        "slow = 'matplotlib', 'flax', 'optax', 'edbatch.models.', 'edbatch.benchmark';"
        "listed = ('edbatch.models.shared',);"
        "print([m for m in sys.modules if m.startswith(slow) and"
        " not m.startswith(listed)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ}
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("command", [("--help",), ("inspect", "zoo:lattice-lstm")])
def test_a_reader_that_has_left_is_no_error(command) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    script = Path(sysconfig.get_path("scripts")) / "edbatch"
    done = subprocess.run(
        [script, *command], stdout=writer, stderr=subprocess.PIPE, timeout=300
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_an_output_that_has_no_greek_letters(tmp_path) -> None:
    script = Path(sysconfig.get_path("scripts")) / "edbatch"
    command = [script, "compare", "--policy", "greedy", "--minibatches", "2"]
    done = subprocess.run(
        [*command, "--batch-size", "4", "--workload", "tree-lstm"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0, done.stderr
    assert "?s/node" in done.stdout


@pytest.mark.parametrize("option", ["--model", "--instances"])
def test_commands_for_ready_workloads_say_so(assert_fails, option) -> None:
    message = "edbatch run runs ready workloads.*; edbatch bench --model measures yours"
    assert_fails(message, "run", option, "mine:model")
