"""Two trainings never write the same file at the same time."""

import signal
import subprocess
import sys

import pytest
from training_commands import TREES

from edbatch.cli import only_writer as module
from edbatch.cli.one_sentence import CommandError
from edbatch.cli.only_writer import only_writer

pytestmark = pytest.mark.skipif(module.fcntl is None, reason="no locks")
HOLD = """
import sys, time
from pathlib import Path
from edbatch.cli.only_writer import only_writer
with only_writer("--out", Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("option", ["--out", "--metrics"])
@pytest.mark.parametrize("how", [(), ("--serving",), ("--resume",)])
def test_a_second_training_is_refused_before_it_records(
    assert_fails, tmp_path, monkeypatch, option, how
):
    if (option, how) == ("--metrics", ("--resume",)):
        pytest.skip("--resume needs --out")
    for name in ("train_policy._record", "train_serving.simulated_server"):
        monkeypatch.setattr(f"edbatch.cli.{name}", None)
    file = tmp_path / "tree.json"
    command = (*TREES[:3], *how, option, file)
    with only_writer(option, file):
        assert_fails(rf"{option} must name a file that .* now; wait until", *command)
    assert not [*tmp_path.iterdir()]


def test_nothing_is_left_beside_a_policy(edbatch, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "edbatch.cli.train_policy._report",
        lambda *_, **__: seen.extend(each.name for each in tmp_path.iterdir()),
    )
    assert edbatch(*TREES, "--out", tmp_path / "a.json").exit_code == 0
    assert ".a.json.lock" in seen
    left = sorted(each.name for each in tmp_path.iterdir())
    assert left == ["a.json", "a.json.metrics.csv"]


def test_a_link_is_one_file_with_what_it_leads_to(tmp_path):
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "a.json")
    for one, other in ((link, tmp_path / "a.json"), (tmp_path / "a.json", link)):
        with (
            only_writer("--out", one),
            pytest.raises(CommandError),
            only_writer("--out", other),
        ):
            pass
    assert [*tmp_path.iterdir()] == [link]


def test_a_killed_process_holds_nobody_up(tmp_path):
    file = tmp_path / "a.json"
    command = [sys.executable, "-P", "-c", HOLD, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(CommandError), only_writer("--out", file):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (tmp_path / ".a.json.lock").exists()
    with only_writer("--out", file):
        pass
    assert not [*tmp_path.iterdir()]


def test_a_lock_that_was_removed_is_made_anew(tmp_path, monkeypatch):
    lock, flock = tmp_path / ".a.json.lock", module.fcntl.flock

    def locked_late(opened, how):
        if monkeypatched:
            monkeypatched.pop()
            lock.unlink()  # by the previous holder
        flock(opened, how)

    monkeypatched = [1]
    monkeypatch.setattr(module.fcntl, "flock", locked_late)
    with only_writer("--out", tmp_path / "a.json"):
        assert lock.exists()
        with pytest.raises(CommandError), only_writer("--out", tmp_path / "a.json"):
            pass


def test_without_locks_a_training_goes_on(tmp_path, monkeypatch):
    def unknown(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(module.fcntl, "flock", unknown)
    with only_writer("--out", tmp_path / "a.json"):
        assert not [*tmp_path.iterdir()]
    monkeypatch.setattr(module, "fcntl", None)
    with only_writer("--out", tmp_path / "a.json"):
        assert not [*tmp_path.iterdir()]
