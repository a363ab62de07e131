"""Ctrl-C at any moment of a command: one line, exit code 130, and nothing is lost.

The commands run as users run them, through their scripts, because Ctrl-C is handled
from the first import on.
"""

import json
import os
import select
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import edbatch as eb
from edbatch.policies.serving import load_serving_policy

SCRIPTS = Path(sysconfig.get_path("scripts"))
LIMIT_S = 300  # compiles for the first time, on a busy machine
IMPORT = "import time:"
SMALL = ("--batch-size", "8", "--minibatches", "2")
TREES = ("--workload", "tree-lstm", *SMALL)
TRAIN = ("train-policy", *TREES)
OUT = ("--out", "a.json")
LOG = "a.json.metrics.csv"
RUN = ("--workload", "tree-lstm", "--hidden", "8", "--batch-size", "8")
ENDLESS = (
    *("train-policy", "--workload", "lattice-lstm", "--encoding", "sort"),
    *("--minibatches", "4", "--trials", "1000000"),
)
ZOO = ("--policy", "zoo:tree-lstm")
SHOWING_IMPORTS = {"env": os.environ | {"PYTHONPROFILEIMPORTTIME": "1"}}


class Running:
    """A command in a separate process."""

    def __init__(self, folder: Path, *command: str, **options: object) -> None:
        self.errors = folder / "stderr.txt"
        self.output = folder / "stdout.txt"
        if (SCRIPTS / command[0]).exists():
            command = (str(SCRIPTS / command[0]), *command[1:])
        with self.errors.open("w") as errors, self.output.open("w") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=errors,
                cwd=folder,
                **options,
            )

    def wait_for(self, has_come: Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT_S
        while not has_come():
            assert self.process.poll() is None, self.errors.read_text()
            assert time.monotonic() < end, self.errors.read_text()
            time.sleep(0.002)

    def wait_for_line(self, text: str) -> None:
        self.wait_for(lambda: text in self.errors.read_text())

    def press_ctrl_c(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def ended(self) -> tuple[int, list[str]]:
        """Returns the exit code and the lines on stderr, except those about imports."""
        try:
            code = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        lines = self.errors.read_text().splitlines()
        return code, [each for each in lines if not each.startswith(IMPORT)]


@contextmanager
def inheriting(number: signal.Signals, handler: signal.Handlers) -> Iterator[None]:
    """Child processes inherit this handler of a signal, whatever this process uses."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def assert_interrupted(running: Running) -> None:
    code, lines = running.ended()
    assert code == 130, lines
    assert lines[-1] == "Interrupted."
    assert not any("Traceback" in each or "Error" in each for each in lines), lines


def left_in(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()} - {"stdout.txt", "stderr.txt"}


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("edbatch", "edbatch.ctrl_c"),
        ("edbatch", "numpy"),
        ("edbatch", "jax"),
        ("edbatch", "edbatch.front_door"),
        ("train-policy", "edbatch.ctrl_c"),
        ("train-policy", "numba"),
    ],
)
def test_while_it_imports(tmp_path: Path, command: str, module: str) -> None:
    running = Running(tmp_path, command, "--help", **SHOWING_IMPORTS)
    running.wait_for_line(f" {module}\n")
    running.press_ctrl_c()
    assert_interrupted(running)
    assert running.ended()[1] == ["Interrupted."]
    assert running.output.read_text() == ""


# Ctrl-C is pressed `after_s` after the command has written `line` to stderr. Without a
# terminal a command shows no progress, but imports are listed.
@pytest.mark.parametrize(
    ("line", "after_s", "command", "left"),
    [
        ("Scheduling ", 0, ("edbatch", "compare", *TREES, *ZOO), set()),
        ("Laying out", 0, ("edbatch", "compare", *TREES, *ZOO, "--memory"), set()),
        ("Comparing ", 0, (*TRAIN, "--minibatches", "20", *OUT), {"a.json", LOG}),
        ("Sampling ", 0.1, TRAIN, set()),
        ("edbatch.cli.batched_run", 1, ("edbatch", "run", *RUN), set()),
        ("edbatch.benchmark", 1, ("edbatch", "bench", *RUN[:4]), set()),
        ("Sampling ", 1, ("edbatch", "calibrate", *RUN), set()),
        (
            "edbatch.policies.files.policy_file",
            0,
            ("edbatch", "inspect", ZOO[1]),
            set(),
        ),
        ("Training ", 0.1, ("edbatch", "demo", "--out", "."), None),
        (
            "Compiling ...",
            0.3,
            ("edbatch", "demo", "--out", "."),
            {"tree-lstm-2type.json"},
        ),
    ],
)
def test_while_it_works(
    tmp_path: Path,
    line: str,
    after_s: float,
    command: tuple[str, ...],
    left: set[str] | None,
) -> None:
    running = Running(tmp_path, *command, "--json", **SHOWING_IMPORTS)
    running.wait_for_line(line)
    time.sleep(after_s)
    running.press_ctrl_c()
    assert_interrupted(running)
    assert running.output.read_text() == ""
    assert left in (None, left_in(tmp_path))


def test_while_numba_compiles_the_loops_of_training(tmp_path: Path) -> None:
    """Compiling takes half a minute; nothing is kept from it."""
    cache = tmp_path / "numba"
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    running = Running(tmp_path, *ENDLESS, env=environment)
    running.wait_for_line("Compiling (the first time")
    running.press_ctrl_c()
    assert_interrupted(running)
    assert not [*cache.rglob("q_learning._run_trial-*")]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_the_demo(tmp_path: Path, number: signal.Signals) -> None:
    """A second process compiles the loops of planning during the demo."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "numba")}
    running = Running(
        *(tmp_path, "edbatch", "demo", "--out", "."),
        env=environment,
        start_new_session=True,
    )
    running.wait_for_line("Scheduling ")
    running.process.send_signal(number)
    running.process.wait(LIMIT_S)
    end = time.monotonic() + LIMIT_S
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < end:
            os.killpg(running.process.pid, 0)
            time.sleep(0.05)


def test_what_ends_a_job_interrupts_any_command(tmp_path: Path) -> None:
    running = Running(
        *(tmp_path, "edbatch", "run", *RUN, "--save-params", "a.npz"),
        **SHOWING_IMPORTS,
    )
    running.wait_for_line("edbatch.cli.batched_run")
    running.process.terminate()
    assert_interrupted(running)
    assert left_in(tmp_path) <= {"a.npz"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_training_keeps_what_it_found(tmp_path: Path, number: signal.Signals) -> None:
    running = Running(tmp_path, *ENDLESS, *OUT, "--json")
    running.wait_for((tmp_path / "a.json.checkpoint").exists)
    running.process.send_signal(number)
    assert_interrupted(running)
    found = json.loads(running.output.read_text())
    assert found["training"]["stopped"] == "interrupted"
    assert left_in(tmp_path) == {"a.json", "a.json.checkpoint", LOG}
    assert eb.load_policy(tmp_path / "a.json").name == "fsm-sort"


def test_training_that_is_interrupted_twice_can_go_on(tmp_path: Path) -> None:
    running = Running(tmp_path, *ENDLESS, *OUT)
    running.wait_for((tmp_path / "a.json.checkpoint").exists)
    running.press_ctrl_c()
    time.sleep(0.01)
    running.press_ctrl_c()
    assert_interrupted(running)
    assert left_in(tmp_path) <= {"a.json", "a.json.checkpoint", LOG}
    (tmp_path / "a.json").unlink(missing_ok=True)
    resumed = Running(tmp_path, *ENDLESS, *OUT, "--resume")
    resumed.wait_for_line("Sampling ")
    time.sleep(2)
    resumed.press_ctrl_c()
    assert_interrupted(resumed)
    assert "damaged" not in resumed.errors.read_text()


def test_training_for_a_server_keeps_what_it_found(tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    measured = ("edbatch", "calibrate", *RUN, "--minibatches", "1", "--out", str(costs))
    subprocess.run([SCRIPTS / measured[0], *measured[1:]], check=True, cwd=tmp_path)
    running = Running(
        tmp_path,
        *("train-policy", "--workload", "tree-lstm", "--serving", "--rate", "50%"),
        *("--costs", str(costs), "--requests", "100", "--generations", "100000"),
        *(*OUT, "--json"),
    )
    running.wait_for((tmp_path / LOG).exists)
    running.process.send_signal(signal.SIGTERM)
    assert_interrupted(running)
    found = json.loads(running.output.read_text())
    assert found["training"]["interrupted"]
    assert left_in(tmp_path) == {"a.json", LOG, costs.name}
    assert load_serving_policy(tmp_path / "a.json").training.interrupted


@pytest.mark.parametrize("closed", ["output", "both"])
def test_a_terminal_that_is_closed_leaves_the_policy(
    tmp_path: Path, closed: str
) -> None:
    """Writing to the closed terminal fails."""
    ours, terminal = os.openpty()
    errors = tmp_path / "stderr.txt"
    with inheriting(signal.SIGHUP, signal.SIG_DFL), errors.open("w") as file:
        process = subprocess.Popen(
            [SCRIPTS / ENDLESS[0], *ENDLESS[1:], *OUT],
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=terminal if closed == "both" else file,
            cwd=tmp_path,
            start_new_session=True,
        )
    os.close(terminal)
    try:
        end = time.monotonic() + LIMIT_S
        while not (tmp_path / "a.json.checkpoint").exists():
            assert process.poll() is None and time.monotonic() < end, errors.read_text()
            if select.select([ours], [], [], 0.01)[0]:
                os.read(ours, 2**16)  # or the training would block
        os.close(ours)
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 130, errors.read_text()
    finally:
        process.kill()
        process.wait()
    assert eb.load_policy(tmp_path / "a.json").name == "fsm-sort"


def test_a_training_ends_where_ctrl_c_is_ignored(tmp_path: Path) -> None:
    """A script that starts it with ``&`` and waits sets SIGINT to be ignored."""
    with inheriting(signal.SIGINT, signal.SIG_IGN):
        running = Running(tmp_path, *ENDLESS, *OUT)
    running.wait_for((tmp_path / "a.json.checkpoint").exists)
    running.process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        running.process.wait(0.5)
    running.process.send_signal(signal.SIGTERM)
    assert running.ended()[0] == 130
    assert eb.load_policy(tmp_path / "a.json").name == "fsm-sort"


def test_a_terminal_that_is_closed_ends_a_training_before_it_begins(
    tmp_path: Path,
) -> None:
    for ignored in (False, True):
        with inheriting(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL):
            command = (*TRAIN, *OUT, "--train-anyway", "--trials", "2")
            running = Running(tmp_path, *command)
        running.wait_for_line("Sampling ")
        running.process.send_signal(signal.SIGHUP)
        if ignored:
            assert running.ended()[0] == 0
        else:
            assert_interrupted(running)
            assert left_in(tmp_path) <= {LOG, "a.json.checkpoint"}


def test_where_ctrl_c_is_ignored_it_remains_so(tmp_path: Path) -> None:
    # SIGINT is ignored by commands that a script starts in the background.
    started = f"trap '' INT; exec {SCRIPTS}/{' '.join(TRAIN)} --json"
    running = Running(tmp_path, "sh", "-c", started)
    running.wait_for_line("Comparing ")
    running.press_ctrl_c()
    assert running.ended()[0] == 0
    assert json.loads(running.output.read_text())


def test_a_program_that_is_no_command_keeps_its_handler() -> None:
    code = (
        "import signal; before = signal.getsignal(signal.SIGINT); import edbatch;"
        "print(signal.getsignal(signal.SIGINT) is before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        TRAIN,
        (*ENDLESS, *OUT),
        ("edbatch", "compare", *TREES, *ZOO),
        ("edbatch", "compare", *TREES, *ZOO, "--exact"),
        ("edbatch", "inspect", *ZOO[1:]),
        ("edbatch", "run", *RUN, "--samples", "64", "--out", "a.npz"),
        ("edbatch", "bench", *RUN[:4]),
        ("edbatch", "calibrate", *RUN, *OUT),
        ("edbatch", "demo", "--out", "."),
    ],
)
def test_at_any_moment(tmp_path: Path, command: tuple[str, ...]) -> None:
    # Before that line the interpreter starts, which edbatch does not control.
    for moment in (0, *(0.05 * 1.15**k for k in range(36))):
        running = Running(tmp_path, *command, "--json", **SHOWING_IMPORTS)
        running.wait_for_line(" edbatch.ctrl_c\n")
        time.sleep(moment)
        running.press_ctrl_c()
        code, lines = running.ended()
        printed = running.output.read_text()
        if code == 0 or printed:  # it had finished, or its training ended early
            assert json.loads(printed), moment
        assert code in (0, 130), (moment, lines)
        assert code == 0 or lines[-1] == "Interrupted.", (moment, lines)
        assert not any("Traceback" in each or "Error" in each for each in lines), lines
        assert not any(".tmp." in each for each in left_in(tmp_path))
        if code == 0:
            break
