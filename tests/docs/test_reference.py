"""Public names have an example and Args in their docstrings.

test_docstrings runs the examples.
"""

import importlib
import inspect
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"][
    "setuptools"
]["packages"]


def has_example(found):
    """Whether its docstring, or that of a class's method or property, has one."""
    documented = [found]
    if inspect.isclass(found):
        members = vars(found).values()
        documented += [each for each in members if callable(each)]
        documented += [each for each in members if isinstance(each, property)]
    return any(">>> " in (each.__doc__ or "") for each in documented)


def names_without_example(packages):
    for package in packages:
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", ()):
            found = getattr(module, name)
            # Constants and aliases of foreign types have no docstring of their own.
            own = getattr(found, "__module__", "").startswith("edbatch")
            if own and callable(found) and not has_example(found):
                yield f"{package}.{name}"


def test_every_public_name_has_an_example():
    assert list(names_without_example(PACKAGES)) == []


def functions_of(found):
    """A function, or a class's public methods except one that JAX calls."""
    members = vars(found).items() if inspect.isclass(found) else [("", found)]
    for name, each in members:
        function = getattr(each, "__func__", each)
        if (
            inspect.isfunction(function)
            and name[:1] != "_"
            and name != "tree_unflatten"
        ):
            yield name, function


def names_without_arguments(packages):
    for package in packages:
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", ()):
            found = getattr(module, name)
            if not getattr(found, "__module__", "").startswith("edbatch"):
                continue
            for own, function in functions_of(found):
                takes = {*inspect.signature(function).parameters} - {"self", "cls"}
                if takes and "Args:" not in (function.__doc__ or ""):
                    yield f"{package}.{name}.{own}".rstrip(".")


def test_every_public_function_says_what_it_takes():
    # `decode` of a Service is a field, whose default is a function.
    found = {*names_without_arguments(PACKAGES)} - {"edbatch.http.Service.decode"}
    assert found == set()


def test_one_that_does_not_is_found(monkeypatch):
    monkeypatch.setattr(importlib.import_module("edbatch").batch, "__doc__", "Runs.")
    assert list(names_without_arguments(["edbatch"])) == ["edbatch.batch"]


def test_one_without_is_found(monkeypatch):
    monkeypatch.setattr(importlib.import_module("edbatch").batch, "__doc__", "Runs.")
    assert list(names_without_example(["edbatch"])) == ["edbatch.batch"]


@pytest.mark.parametrize("package", [p for p in PACKAGES if p.count(".") < 3])
def test_what_is_exported_is_there(package):
    module = importlib.import_module(package)
    for name in getattr(module, "__all__", ()):
        assert hasattr(module, name), f"{package} exports {name} and has none"
