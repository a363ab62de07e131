"""docs/layout.md names every folder and module of `edbatch`."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
MODULES = {each.name for each in (ROOT / "edbatch").glob("[!_]*.py")}
FOLDERS = {each.parent.name for each in (ROOT / "edbatch").glob("*/__init__.py")}


def missing(page: str) -> set[str]:
    modules = {each for each in MODULES if f"{each}`" not in page}
    return modules | {each for each in FOLDERS if f"`edbatch/{each}/`" not in page}


def test_the_page_names_all() -> None:
    assert len(MODULES) > 20 and len(FOLDERS) > 20
    assert missing(PAGE) == set()


@pytest.mark.parametrize("name", ["`lazy.py`", "`edbatch/waves/`"])
def test_one_that_is_not_named_is_found(name: str) -> None:
    assert missing(PAGE.replace(name, "")) == {name.strip("`/").rpartition("/")[2]}
