"""Matplotlib is an extra, imported only when the first figure is made."""

import subprocess
import sys

import pytest

from edbatch.errors import EdbatchError
from edbatch.plot import MissingMatplotlibError, plot_schedules
from edbatch.plot.figure import new_figure
from edbatch.policies import Depth
from edbatch.schedule.examples import chain


def test_importing_does_not_import_matplotlib():
    code = (
        "import sys, edbatch, edbatch.plot;"
        "print([m for m in sys.modules if m.startswith('matplotlib')])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_without_matplotlib_the_error_says_how_to_install_it(monkeypatch):
    for name in [each for each in sys.modules if each.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    graph = chain("ab")
    with pytest.raises(
        MissingMatplotlibError,
        match=r"needs matplotlib, which is not installed; .* 'edbatch\[plot\]'",
    ) as caught:
        plot_schedules([Depth().schedule(graph)], graph)
    assert isinstance(caught.value, EdbatchError)
    assert isinstance(caught.value, ImportError)


def test_pyplot_does_not_know_the_figure():
    before = sys.modules.get("matplotlib.pyplot")
    new_figure(3, 2)
    assert sys.modules.get("matplotlib.pyplot") is before
