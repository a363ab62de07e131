"""Fixtures that run commands in this process, and small inputs for them."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from edbatch.cli.main import app

Command = Callable[..., Result]

TREEBANK = """(S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (DT a) (JJ big) (NN cat))))
(S (NP (PRP it)) (VP (VBZ barks)))
(S (NP (NNS dogs)) (VP (VBP run) (ADVP (RB very) (RB fast)) (PP (IN at) (NN night))))
(FRAG (UH yes))
"""

OWN_MODEL = """
import jax.numpy as jnp
import edbatch as eb

@eb.cell
def leaf(params, word):
    return params["embedding"][word]

@eb.cell
def join(params, left, right):
    return jnp.tanh(left + right)

def encode(params, tree):
    if isinstance(tree, int):
        return leaf(params, tree)
    return join(params, *(encode(params, child) for child in tree))

def params():
    return {"embedding": jnp.eye(4)}

def params_of_key(key):
    return params()

TREES = [((0, 1), 2), (1, 1), 3, (((0, 1), 2), (3, 3))]

def trees():
    return TREES

def sampled(rng, count):
    return [(int(rng.integers(4)), int(rng.integers(4))) for _ in range(count)]

def of_three(one, two, three):
    return TREES

def nothing():
    return []

def number():
    return 7

def broken(params, tree):
    raise KeyError("oh")

def outside(params, tree):
    return leaf(params, 0) + 1

def forgetful():
    raise ValueError("forgot the data")


def asking(params, tree):
    return leaf(params, int(eb.value(leaf(params, 0)).argmax()))


def of_defaults(count=3, seed=0):
    return list(range(count))

def printing(params, tree):
    print("from the model")
    return encode(params, tree)

def leaving(params, tree):
    raise SystemExit(3)
"""


@pytest.fixture
def edbatch() -> Command:
    """Runs `edbatch`; arguments of any type are converted to strings."""

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(each) for each in arguments])

    return run


@pytest.fixture
def assert_fails(edbatch: Command) -> Callable[..., None]:
    """Runs `edbatch` and checks that it fails with one sentence matching `message`."""

    def run(message: str, *arguments: object) -> None:
        result = edbatch(*arguments)
        assert result.exit_code == 2, (result.output, result.exception)
        assert result.stdout == ""
        *_, last = result.stderr.splitlines()
        assert last.startswith("Error: ")
        assert re.search(message, last), last
        assert "Traceback" not in result.stderr

    return run


@pytest.fixture
def treebank(tmp_path: Path) -> Path:
    """A folder with a small treebank."""
    folder = tmp_path / "treebank"
    folder.mkdir()
    (folder / "a.ptb").write_text(TREEBANK)
    return folder


@pytest.fixture
def own_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> str:
    """The name of a module in the current folder that defines a model."""
    name = f"own_model_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{name}.py").write_text(OWN_MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command adds to it
    return name


@pytest.fixture(scope="session")
def policy_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy for the tree-LSTM."""
    file = tmp_path_factory.mktemp("policy") / "tree.json"
    options = "train-policy --workload tree-lstm --batch-size 8 --minibatches 4"
    options += " --train-anyway --out"
    result = CliRunner().invoke(app, [*options.split(), str(file)])
    assert result.exit_code == 0, result.output
    return file
