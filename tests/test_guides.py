"""The commands and the code of the guide run, one after the other."""

import re
import shlex
import sys

import pytest
from typer.testing import CliRunner

from edbatch.cli.main import app


@pytest.fixture
def blocks(project_root, tmp_path, monkeypatch):
    """Language and text of each code block, in an empty folder to run them in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # the commands add the folder as well
    text = (project_root / "docs" / "train-a-policy.md").read_text(encoding="utf-8")
    yield re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
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
    names: dict = {}
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
        "so the policy follows that",
        " by fsm-fall",
    ):
        assert each in printed
