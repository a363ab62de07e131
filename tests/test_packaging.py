"""Compares the packages in pyproject.toml with the folders and the installation."""

import importlib
import importlib.metadata
import json
import tomllib
from pathlib import Path

import pytest

PROJECT_ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((PROJECT_ROOT / "pyproject.toml").read_text())
PACKAGES = PROJECT["tool"]["setuptools"]["packages"]
FOLDERS = PROJECT["tool"]["setuptools"]["package-dir"]
DATA = PROJECT["tool"]["setuptools"]["package-data"]


def packages_on_disk(folders: dict[str, str]) -> set[str]:
    """The package name of every folder with Python files under the mapped folders."""
    found = set()
    for package, folder in folders.items():
        for file in (PROJECT_ROOT / folder).rglob("*.py"):
            below = file.parent.relative_to(PROJECT_ROOT / folder)
            found.add(".".join((package, *below.parts)))
    return found


def is_editable(distribution: importlib.metadata.Distribution) -> bool:
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    return origin.get("dir_info", {}).get("editable", False)


def test_every_package_is_listed() -> None:
    assert sorted(packages_on_disk(FOLDERS)) == sorted(PACKAGES), (
        "list every package in [tool.setuptools] packages of pyproject.toml; "
        "a package that is missing there is missing in the wheel"
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_imported_from_where_it_was_installed(package: str) -> None:
    distribution = importlib.metadata.distribution("edbatch")
    if is_editable(distribution):
        top = max(name for name in FOLDERS if f"{package}.".startswith(f"{name}."))
        below = package.removeprefix(top).replace(".", "/").lstrip("/")
        expected = PROJECT_ROOT / FOLDERS[top] / below
    else:
        expected = Path(distribution.locate_file(package.replace(".", "/")))
    module = importlib.import_module(package)
    assert Path(module.__file__).resolve().parent == expected.resolve()


def test_every_data_file_is_in_the_wheel() -> None:
    listed = {
        file
        for package, patterns in DATA.items()
        for pattern in patterns
        for file in (PROJECT_ROOT / FOLDERS[package]).glob(pattern)
    }
    on_disk = {
        file
        for folder in FOLDERS.values()
        for file in (PROJECT_ROOT / folder).rglob("*")
        if file.is_file() and file.suffix != ".py" and "__pycache__" not in file.parts
        # Sources and outputs of setup.py's extension modules, in a clone.
        if file.suffix not in (".pyx", ".c", ".so")
    }
    assert listed == on_disk, (
        "name every file that is not Python in [tool.setuptools.package-data] of"
        " pyproject.toml; what is missing there is missing in the wheel"
    )


def test_the_ready_made_policies_are_installed() -> None:
    zoo = importlib.import_module("edbatch.policies").zoo_names()
    folder = PROJECT_ROOT / FOLDERS["edbatch.policies"] / "zoo"
    assert list(zoo) == sorted(each.stem for each in folder.glob("*.json"))


def test_the_package_is_marked_as_typed() -> None:
    edbatch = importlib.import_module("edbatch")
    assert (Path(edbatch.__file__).parent / "py.typed").is_file()


@pytest.mark.parametrize("command", ["edbatch", "train-policy"])
def test_command_exists(command: str) -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name=command)
    assert callable(script.load())
