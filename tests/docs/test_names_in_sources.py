"""Modules, attributes and files that sources name in their prose exist."""

import importlib
import re

import pytest

NAME = re.compile(r"`(edbatch(?:\.\w+)+)`")
FOLDERS = ("edbatch", "envs", "memory_planner", "policies", "experiments")
PATH = re.compile(
    rf"(?<![\w/])((?:{'|'.join((*FOLDERS, 'docs', 'tests'))})/[\w/-]+\.(?:py|pyx|md))\b"
)


def found(name: str) -> bool:
    """Whether `name` is a module or an attribute of one."""
    parts = name.split(".")
    for k in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:k]))
        except ModuleNotFoundError:
            continue
        try:
            for part in parts[k:]:
                thing = getattr(thing, part)
        except AttributeError:
            return False
        return True
    return False


@pytest.mark.parametrize("name", ["edbatch.executor.walk", "edbatch.batchh"])
def test_what_is_gone_is_not_found(name):
    assert not found(name)


@pytest.fixture(scope="module")
def sources(project_root):
    """Source texts by file."""
    return {
        str(file.relative_to(project_root)): file.read_text(encoding="utf-8")
        for folder in FOLDERS
        for file in sorted((project_root / folder).rglob("*.py"))
    }


def test_names_in_sources_are_there(sources):
    names = {n: file for file, text in sources.items() for n in NAME.findall(text)}
    assert len(names) > 50
    assert not {name: file for name, file in names.items() if not found(name)}


def test_files_in_sources_are_there(sources, project_root):
    paths = {p: file for file, text in sources.items() for p in PATH.findall(text)}
    assert len(paths) > 40
    assert not {p: f for p, f in paths.items() if not (project_root / p).exists()}
