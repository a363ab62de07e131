"""Tests that Numba's compilations are reported in the log and on a terminal."""

import io
import logging

import pytest
from numba import njit

from edbatch.compilation import host_loops, progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def compiled(module):
    """A function that no process has compiled, which calls another one."""

    def inner(x):
        return x + 1

    def outer(x):
        return 2 * inner_loop(x)

    inner.__module__ = outer.__module__ = module
    inner_loop = njit(inner)
    return njit(outer)


def test_a_long_compilation_of_edbatch_is_logged_once(monkeypatch, caplog):
    monkeypatch.setattr(host_loops, "LONG_S", 0.0)
    with caplog.at_level(logging.INFO, "edbatch"):
        assert compiled("edbatch.tests")(3) == 8
    (line,) = [each.getMessage() for each in caplog.records]
    assert line.startswith("Numba compiled compiled.<locals>.outer in ")


def test_short_ones_and_those_of_others_are_not_logged(monkeypatch, caplog):
    with caplog.at_level(logging.INFO, "edbatch"):
        monkeypatch.setattr(host_loops, "LONG_S", 3600.0)
        compiled("edbatch.tests")(3)
        monkeypatch.setattr(host_loops, "LONG_S", 0.0)
        compiled("others.tests")(3)
    assert not caplog.records


@pytest.mark.parametrize("module, shown", [("edbatch.a", True), ("others", False)])
def test_a_terminal_shows_a_line(monkeypatch, module, shown):
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    assert compiled(module)(3) == 8
    text = (
        "edbatch: compiling compiled.<locals>.outer with Numba, once per installation"
    )
    assert (text in terminal.getvalue()) == shown
    assert terminal.getvalue().count("\n") == int(shown)


def test_an_error_ends_the_line(monkeypatch, caplog):
    @njit
    def wrong(x):
        return x + no_such_name  # noqa: F821

    wrong.py_func.__module__ = "edbatch.tests"
    with pytest.raises(Exception, match="no_such_name"):
        wrong(3)
    monkeypatch.setattr(host_loops, "LONG_S", 0.0)
    with caplog.at_level(logging.INFO, "edbatch"):
        compiled("edbatch.tests")(3)
    assert len(caplog.records) == 1, "the depth is what it was before the error"
