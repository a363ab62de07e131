"""No command overwrites a file that it reads, or another of its own outputs."""

import os
from pathlib import Path

import pytest
from training_commands import TREES

from edbatch.cli.one_sentence import CommandError
from edbatch.cli.output_file import check_distinct

RUN = ("run", "--workload", "tree-lstm", "--samples", 2, "--hidden", 4)
SAME = r"Error: {} and {} name the same file, .*; give each its own"
READ = r"Error: {} names a file to write but {} reads .*; name another file"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "mine.png"
    file.write_text("mine")
    return file


@pytest.mark.parametrize(
    ("command", "read", "written"),
    [
        (RUN, "--params", "--out"),
        (RUN, "--params", "--save-params"),
        (RUN, "--data", "--out"),
        (RUN, "--policy", "--out"),
        (TREES, "--data", "--out"),
        (TREES, "--data", "--metrics"),
        (TREES, "--costs", "--out"),
        ((*TREES, "--serving"), "--costs", "--out"),
        (("calibrate", "--workload", "tree-lstm"), "--data", "--out"),
        (("compare", "--workload", "tree-lstm"), "--policy", "--plot"),
        (("explain", "--measure", "--workload", "tree-lstm"), "--policy", "--plot"),
        (("explain", "--workload", "tree-lstm"), "--costs", "--plot"),
    ],
)
def test_an_input_is_not_written_over(assert_fails, file, command, read, written):
    if "--serving" in command:
        command = (*command[:3], "--serving")
    assert_fails(READ.format(written, read), *command, read, file, written, file)
    assert file.read_text() == "mine"


def test_inspect_does_not_draw_over_its_policy(assert_fails, file):
    assert_fails(READ.format("--plot", "FILE"), "inspect", file, "--plot", file)


@pytest.mark.parametrize(
    ("command", "one", "other"),
    [(RUN, "--out", "--save-params"), (TREES, "--out", "--metrics")],
)
def test_two_results_have_two_files(assert_fails, tmp_path, command, one, other):
    out = tmp_path / "new"
    again = tmp_path / "folder" / ".." / "new"
    (tmp_path / "folder").mkdir()
    assert_fails(SAME.format(one, other), *command, one, out, other, again)
    assert not out.exists()


def test_the_checkpoint_is_a_file_of_its_own(assert_fails, tmp_path):
    out, metrics = tmp_path / "a.json", tmp_path / "a.json.checkpoint"
    message = SAME.format("--metrics", "the checkpoint of --out")
    assert_fails(message, *TREES, "--out", out, "--metrics", metrics)


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_links_are_followed(file, tmp_path, link):
    other = tmp_path / "other.png"
    link(file, other)
    with pytest.raises(CommandError, match=READ[7:].format("--out", "--data")):
        check_distinct({"--out": other}, {"--data": [file]})


def test_devices_and_names_of_policies_are_no_conflict(tmp_path, monkeypatch):
    null = Path("/dev/null")
    check_distinct({"--out": null, "--metrics": null}, {"--data": [null]})
    monkeypatch.chdir(tmp_path)
    Path("greedy").write_text("")
    check_distinct({"--out": Path("greedy")}, {"--policy": "greedy"})
    check_distinct({"--out": Path("a")}, {"--data": [Path("a")]})  # its reader reports


def test_a_file_of_a_folder_that_is_read_is_kept(tmp_path):
    inside = tmp_path / "deep" / "a.ptb"
    inside.parent.mkdir()
    read = {"--data": [tmp_path]}
    check_distinct({"--out": inside}, read)
    inside.write_text("(S it)")
    with pytest.raises(CommandError, match=READ[7:].format("--out", "--data")):
        check_distinct({"--out": inside}, read)
    check_distinct({"--out": tmp_path.parent / "a.ptb"}, read)


def test_a_file_that_cannot_be_read_may_be_data(tmp_path, monkeypatch):
    inside = tmp_path / "a.json"
    inside.write_text("[]")

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CommandError, match=READ[7:].format("--out", "--data")):
        check_distinct({"--out": inside}, {"--data": [tmp_path]})


def test_results_in_a_folder_that_is_read_are_replaced(edbatch, treebank):
    out, picture = treebank / "tree.json", treebank / "a.png"
    options = (*TREES, "--data", treebank, "--out", out)
    assert edbatch(*options).exit_code == 0
    assert edbatch(*options).exit_code == 0
    picture.write_bytes(b"")
    check_distinct({"--plot": picture}, {"--data": [treebank]})
