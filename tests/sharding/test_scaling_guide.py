"""The code of docs/scaling.md runs, and prints the output in the guide."""

import re

import pytest
from processes import run_processes

pytestmark = pytest.mark.usefixtures("quick_compiles")

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


@pytest.fixture
def blocks(project_root):
    text = (project_root / "docs" / "scaling.md").read_text(encoding="utf-8")
    return BLOCK.findall(text)


def is_program(content):
    return content.startswith('"""')


@pytest.mark.devices
def test_code_prints_what_stands_below_it(blocks, capsys):
    names: dict = {}
    compared = 0
    for kind, content in blocks:
        if kind == "python" and not is_program(content):
            exec(compile(content, "scaling.md", "exec"), names)
        elif kind == "text":
            assert capsys.readouterr().out == content
            compared += 1
    assert compared == 4


def test_the_program_trains_alike_in_one_process_and_in_two(blocks, tmp_path):
    (program,) = [
        text for kind, text in blocks if kind == "python" and is_program(text)
    ]
    (tmp_path / "train.py").write_text(program)

    def losses(printed):
        return re.findall(r"^loss (\d\.\d{4})$", printed, flags=re.MULTILINE)

    (alone,) = run_processes("train.py", 1, tmp_path)
    first, second = run_processes("train.py", 2, tmp_path)
    assert losses(first) == losses(alone)
    assert not losses(second)  # the first process prints for all
    assert len({*losses(alone)}) == 5
