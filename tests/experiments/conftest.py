import importlib
import os
import subprocess
import sys
from functools import partial

import pytest

import edbatch as eb


@pytest.fixture(scope="module", autouse=True)
def quickly(quick_compiles):
    """Runs coarse programs, which compile sooner: measured times are not checked."""
    with pytest.MonkeyPatch.context() as patch, eb.use_tiers("coarse"):
        patch.setenv("EDBATCH_TIERS", "coarse")
        yield


@pytest.fixture(scope="module")
def script(request, project_root):
    """Path of the script under test, derived from the test module's name."""
    name = request.module.__name__.rsplit(".", 1)[-1].removeprefix("test_")
    return project_root / "experiments" / f"{name}.py"


@pytest.fixture(scope="module")
def experiment(script):
    """The script as a module; it can import the other scripts of its folder."""
    sys.path.insert(0, str(script.parent))
    yield importlib.import_module(script.stem)
    sys.path.remove(str(script.parent))


@pytest.fixture(scope="module")
def parse(experiment):
    """Parses a list of words as the script's command line."""
    from arguments import parse_arguments

    return partial(parse_arguments, experiment.Arguments, experiment.__doc__)


@pytest.fixture
def few_widths(experiment, monkeypatch):
    """The script's sizes, with one loop per type."""
    monkeypatch.setattr(experiment, "SIZES", eb.Sizes(widths=(8,), headroom=2.0))


@pytest.fixture(scope="module")
def run(script):
    """Runs the script; of the sources, it can import only those in its folder."""

    def run(*words):
        return subprocess.run(
            [sys.executable, "-P", "-W", "error", script, *map(str, words)],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(script.parent)},
        )

    return run
