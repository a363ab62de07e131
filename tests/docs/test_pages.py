"""The code of every page runs, and its commands exist."""

import re
import tomllib
from pathlib import Path

import jax
import pytest
from page_blocks import NOT_RUN, blocks_of, check_command, commands_of, run_page
from quick_compile import quick_compile

import edbatch as eb

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
# Pages whose code runs in separate tests, which also check the results.
ELSEWHERE = {
    "README.md": "test_readme.py",
    "feed-data.md": "test_guides.py",
    "flax.md": "test_guides.py",
    "generate-and-decide.md": "test_deciding_guide.py",
    "memory-planner.md": "test_guides.py",
    "scaling.md": "sharding/test_scaling_guide.py",
    "serve-a-model.md": "test_serving_guide.py",
    "train-a-policy.md": "test_guides.py",
}


def has_code(page):
    return any(block.kind == "python" for block in blocks_of(page.read_text("utf-8")))


HERE = [page for page in PAGES if page.name not in ELSEWHERE and has_code(page)]


@pytest.mark.parametrize("page", HERE, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs_and_prints_what_it_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "88")
    programs = jax.config.jax_compilation_cache_dir
    eb.use_tiers("coarse")  # the tier that users meet first, and the sooner compiled
    try:
        with quick_compile():
            ran, _ = run_page(page)
    finally:
        jax.config.update("jax_compilation_cache_dir", programs)
        eb.use_tiers("fine")
    left_out = page.read_text("utf-8").count(f"```python\n{NOT_RUN}")
    assert ran + left_out == sum(
        block.kind == "python" for block in blocks_of(page.read_text("utf-8"))
    )


def test_each_other_page_has_a_test():
    for page, test in ELSEWHERE.items():
        name = page.removesuffix(".md")
        assert name in (ROOT / "tests" / test).read_text("utf-8"), (page, test)
        assert has_code(ROOT / "docs" / page if page != "README.md" else ROOT / page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_exist(page):
    text = page.read_text("utf-8")
    for line in commands_of(text):
        check_command(line)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras = extras["project"]["optional-dependencies"]
    for named in re.findall(r"edbatch\[([\w,-]+)\]", text):
        assert {*named.split(",")} <= {*extras}, named
    for script in re.findall(r"\bpython (experiments/[\w/]+\.py)", text):
        assert (ROOT / script).exists(), script
    targets = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"^make (\w+)", text, flags=re.MULTILINE):
        assert f"\n{target}: " in targets, target


@pytest.mark.parametrize(
    "line",
    [
        "edbatch",
        "edbatch no-such-command",
        "edbatch bench --no-such-option 1",
        "train-policy --workload tree-lstm --no-such",
    ],
)
def test_a_wrong_command_is_found(line):
    with pytest.raises(Exception, match=r"no command|No such option"):
        check_command(line)


def test_a_page_that_says_something_else_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 2\nprint(x + 1)\n```\n\n```text\n3\n```\n")
    assert run_page(page) == (1, 1)
    page.write_text("```python\nx = 2\nprint(x + 1)\n```\n\n```text\n4\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md:6 says"):
        run_page(page)
