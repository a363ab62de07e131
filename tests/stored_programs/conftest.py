"""Fixtures: a folder of lowered programs, and the programs that a test lowers."""

import pytest

from edbatch.stored_programs import stored_program
from edbatch.stored_programs.folder import FOLDER, Folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(Folder, "path", tmp_path)
    monkeypatch.setattr(FOLDER, "_warned", False)
    return tmp_path


@pytest.fixture
def made(monkeypatch):
    """Names of the functions that are lowered to be stored during a test."""
    found, make = [], stored_program._make

    def note(key, what, function, arrays):
        exported = make(key, what, function, arrays)
        found.append(what if exported is not None else f"{what} refused")
        return exported

    monkeypatch.setattr(stored_program, "_make", note)
    return found
