"""Helpers of the commands: splitting instances, drawing minibatches, writing files."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from edbatch.cli.minibatches import draw, say_if_repeated, split
from edbatch.cli.one_sentence import CommandError
from edbatch.cli.output_file import check_writable
from edbatch.cli.train_policy import _checkpoint_of
from edbatch.policies.files.whole_file import write_whole


@pytest.mark.parametrize("count", [3, 4, 5, 10, 101])
def test_each_instance_has_one_use(count: int) -> None:
    train, judge, held_out = split(count, np.random.default_rng(0))
    assert sorted([*train, *judge, *held_out]) == list(range(count))
    assert len(judge) == len(held_out) == max(1, round(count / 5))
    assert len(train) >= 1


def test_the_seed_decides_what_is_held_out() -> None:
    parts = [split(20, np.random.default_rng(seed)) for seed in (1, 1, 2)]
    one, same, other = [[part.tolist() for part in each] for each in parts]
    assert one == same != other


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_instances(count: int) -> None:
    with pytest.raises(CommandError, match=f"3 instances or more.* there are {count};"):
        split(count, np.random.default_rng(0))


def test_minibatches_hold_an_instance_once_where_there_are_enough() -> None:
    rng = np.random.default_rng(0)
    for batch in draw(np.array([3, 5, 7, 9]), 3, 20, rng):
        assert len({*batch}) == 3
        assert {*batch} <= {3, 5, 7, 9}
    assert [len(batch) for batch in draw(np.array([3, 5]), 6, 2, rng)] == [6, 6]


@pytest.mark.parametrize(("size", "said"), [(4, False), (5, True)])
def test_instances_that_a_minibatch_repeats_are_said(
    capsys, size: int, said: bool
) -> None:
    say_if_repeated(size, 12, 4)
    message = (
        "There are 4 instances to draw minibatches of 5 from, so a minibatch contains"
        " some more than once."
    )
    assert (message in capsys.readouterr().err) == said


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "result.txt"
    file.write_text("old")

    def fail(beside: Path) -> None:
        beside.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_whole(file, fail)
    assert file.read_text() == "old"
    assert [*tmp_path.iterdir()] == [file]

    def write(beside: Path) -> None:
        beside.write_text("new")

    write_whole(file, write)
    assert file.read_text() == "new"
    assert [*tmp_path.iterdir()] == [file]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, lambda path: path.write_text("new"))
        assert os.read(reader, 9) == b"new"
    finally:
        os.close(reader)
    assert pipe.is_fifo() and [*tmp_path.iterdir()] == [pipe]


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="there is no /dev/fd")
def test_a_pipe_is_written_to_by_its_number() -> None:
    """This is the case of ``--out /dev/stdout`` piped into another command."""
    reader, writer = os.pipe()
    path = Path(f"/dev/fd/{writer}")
    try:
        check_writable("--out", path)
        write_whole(path, lambda path: path.write_text("new"))
        assert os.read(reader, 9) == b"new"
        assert _checkpoint_of(path) is None
    finally:
        os.close(reader)
        os.close(writer)


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(CommandError, match=r"writable folder but .* cannot be written"):
        check_writable("--out", tmp_path / "a.json")


def test_a_folder_in_which_no_file_can_be_made(tmp_path: Path, monkeypatch) -> None:
    def refuse(*, dir: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(dir))

    monkeypatch.setattr("edbatch.cli.output_file.TemporaryFile", refuse)
    with pytest.raises(CommandError, match=r"none can be made .*No space left"):
        check_writable("--out", tmp_path / "a.json")
    os.mkfifo(tmp_path / "pipe")
    check_writable("--out", tmp_path / "pipe")


def test_the_check_leaves_no_file(tmp_path: Path) -> None:
    check_writable("--out", tmp_path / "a.json")
    assert not [*tmp_path.iterdir()]
