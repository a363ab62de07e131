"""Runs the docstring examples of every installed module."""

import ast
import doctest
import importlib
import pkgutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import edbatch as eb

PROJECT_ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((PROJECT_ROOT / "pyproject.toml").read_text())
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
EXTENSIONS = (".compiled_recording",)  # no Python source
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def installed_modules() -> Iterator[str]:
    # Package by package, because the finder of an editable install does not show
    # `edbatch.policies` to a walk from `edbatch`.
    for package in PROJECT["tool"]["setuptools"]["packages"]:
        yield package
        path = importlib.import_module(package).__path__
        for info in pkgutil.iter_modules(path, f"{package}."):
            if not info.ispkg and not info.name.endswith(EXTENSIONS):
                yield info.name


def docstrings_with_examples(source: str) -> int:
    return sum(
        ">>> " in (ast.get_docstring(node) or "")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, DOCUMENTED)
    )


def find_examples(module: ModuleType) -> list[doctest.DocTest]:
    return [test for test in doctest.DocTestFinder().find(module) if test.examples]


def run_examples(module: ModuleType) -> str:
    """Returns a report of the examples that failed, empty if none did."""
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=OPTIONS, verbose=False)
    for test in find_examples(module):
        runner.run(test, out=report.append)
    return "".join(report)


@pytest.fixture(autouse=True)
def coarse() -> Iterator[None]:
    """Runs coarse programs, which users meet first and which compile faster."""
    with eb.use_tiers("coarse"):
        yield


@pytest.mark.parametrize("name", list(installed_modules()))
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    source = Path(module.__file__).read_text()
    assert len(find_examples(module)) == docstrings_with_examples(source), (
        f"doctest does not reach every example of {name}: it sees none in nested "
        "functions, nor below a decorator that sets neither __wrapped__ nor __module__"
    )
    report = run_examples(module)
    assert not report, report


def test_a_wrong_example_is_reported() -> None:
    module = ModuleType("wrong", ">>> 1 + 1\n3\n")
    assert "Expected:\n    3\nGot:\n    2" in run_examples(module)


def test_an_example_out_of_reach_is_counted() -> None:
    source = 'def outer():\n    def inner():\n        """>>> 1\n        2\n        """'
    module = ModuleType("nested")
    exec(source, vars(module))
    assert docstrings_with_examples(source) == 1
    assert find_examples(module) == []
