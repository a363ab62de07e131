"""Runs the commands and the code of the guides, one after the other."""

import re
import shlex
import sys

import pytest
from quick_compile import quick_compile
from typer.testing import CliRunner

import edbatch as eb
from edbatch.cli.main import app

BLOCK = r"^```(\w+)\n(.*?)^```$"


@pytest.fixture
def blocks(project_root, tmp_path, monkeypatch):
    """Language and text of each code block, run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # the commands add the folder, too
    text = (project_root / "docs" / "train-a-policy.md").read_text(encoding="utf-8")
    yield re.findall(BLOCK, text, flags=re.DOTALL | re.MULTILINE)
    sys.modules.pop("my_models", None)


def run_command(line):
    program, *words = shlex.split(line)
    assert program in ("edbatch", "train-policy")
    if program == "train-policy":
        words = [program, *words]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, (line, result.output)
    return result.output


def test_the_guide_runs_as_it_stands(blocks, tmp_path, capsys):
    (kind, model), *rest = blocks
    assert kind == "python"
    (tmp_path / "my_models.py").write_text(model)
    names: dict = {"__name__": "__main__"}
    printed = ""
    for kind, text in rest:
        if kind == "sh":
            printed += run_command(text.replace("\\\n", " "))
        elif kind == "python":
            exec(compile(text, "train-a-policy.md", "exec"), names)
            printed += capsys.readouterr().out
    assert names["states"].shape == (32, 16)
    assert names["report"].unseen_states == 0
    assert names["info"]["batches"] >= names["info"]["lower_bound"]
    for file in ("p.json", "q.json", "table.png", "sizes.png"):
        assert (tmp_path / file).exists()
    for each in (
        "proven bound",
        "searched",
        "so the policy follows greedy",
        " by fsm-fall",
    ):
        assert each in printed


@pytest.mark.parametrize(
    ("guide", "blocks"),
    [("memory-planner", 9), ("flax", 4), ("equinox", 4), ("feed-data", 3)],
)
def test_what_a_guide_prints(
    guide, blocks, project_root, tmp_path, monkeypatch, capsys
):
    """A text block right after a code block is the output of the code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "88")
    text = (project_root / "docs" / f"{guide}.md").read_text(encoding="utf-8")
    quick = guide != "memory-planner"  # that guide measures optimized programs
    with quick_compile(quick), eb.use_tiers("coarse" if quick else "fine"):
        assert compared_blocks(text, guide, capsys) == blocks


def compared_blocks(text, guide, capsys):
    """Runs a guide; returns how many text blocks were compared with the output."""
    names: dict = {"__name__": "__main__"}
    printed = None
    end = compared = 0
    for block in re.finditer(BLOCK, text, flags=re.DOTALL | re.MULTILINE):
        kind, content = block.groups()
        if kind == "sh":
            printed = run_command(content.replace("\\\n", " "))
        elif kind == "python":
            exec(compile(content, f"{guide}.md", "exec"), names)
            printed = capsys.readouterr().out
        elif printed is not None and not text[end : block.start()].strip():
            # The guide does not show a command's progress before the table.
            assert _lines(printed)[-len(_lines(content)) :] == _lines(content)
            compared += 1
            printed = None
        end = block.end()
    return compared


def _lines(text):
    return [line.rstrip() for line in text.splitlines() if line.strip()]
