"""`edbatch inspect`."""

import json
import sys
from pathlib import Path

import pytest

import edbatch as eb
from edbatch.policies import MachineState, StateMachine
from edbatch.schedule.examples import chain

MAGIC = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}


def test_states_actions_and_the_training_record(edbatch, policy_file: Path) -> None:
    result = edbatch("inspect", policy_file)
    assert result.exit_code == 0, result.output
    for text in (
        *("encoding", "fall", "leaf/0, compose/4, classify/1", "types that are ready"),
        *("runs", "visits", "compose/4 > ", "held out lower bound"),
        *("stopped", "tree-lstm on sampled instances", "numba"),
    ):
        assert text in result.stdout


def test_json_holds_what_the_file_holds(edbatch, policy_file: Path) -> None:
    result = edbatch("inspect", policy_file, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == json.loads(policy_file.read_text())


def test_a_ready_made_policy(edbatch, assert_fails) -> None:
    result = edbatch("inspect", "zoo:lattice-lstm", "--json")
    assert result.exit_code == 0, result.output
    assert {each["cell"] for each in json.loads(result.stdout)["types"]} > {
        "char",
        "word",
    }
    assert_fails(
        "zoo:latice-lstm'; did you mean 'lattice-l", "inspect", "zoo:latice-lstm"
    )


def test_the_most_visited_states_come_first(edbatch, policy_file: Path) -> None:
    policy = eb.load_policy(policy_file)
    assert isinstance(policy, StateMachine)
    most = max(state.visits for state in policy.states)
    result = edbatch("inspect", policy_file, "--states", 1)
    assert f"{len(policy.states) - 1} more states; --states N shows more." in (
        result.stderr
    )
    assert f" {most} " in result.stdout


@pytest.mark.parametrize(
    ("encoding", "frontier", "text"),
    [
        ("base", (0, 1), "a/0, b/0"),
        ("max", (1, 0, 1), "a/0, b/0 (most: b/0)"),
        ("sort", (1, 0), "b/0 > a/0"),
        ("fall", (1, 0), "b/0 > a/0"),
    ],
)
def test_a_policy_made_by_hand(
    edbatch, tmp_path: Path, encoding: str, frontier: tuple[int, ...], text: str
) -> None:
    states = (MachineState(frontier, 1, visits=7),)
    policy = StateMachine(chain("ab").type_keys, encoding, states)
    file = policy.save(tmp_path / "hand.json")
    picture = tmp_path / "hand.svg"
    result = edbatch("inspect", file, "--plot", picture)
    assert result.exit_code == 0, result.output
    assert text in result.stdout
    assert "The file has no training record." in result.stderr
    assert f"Policy with encoding '{encoding}'" in picture.read_text()


@pytest.mark.parametrize("suffix", MAGIC)
def test_a_picture(edbatch, policy_file: Path, tmp_path: Path, suffix: str) -> None:
    picture = tmp_path / f"tree{suffix}"
    result = edbatch("inspect", policy_file, "--plot", picture, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["encoding"] == "fall"
    assert picture.read_bytes().startswith(MAGIC[suffix])
    assert picture.stat().st_size > 5000
    assert [*tmp_path.iterdir()] == [picture]


def test_matplotlib_may_be_missing(
    edbatch, assert_fails, policy_file: Path, tmp_path: Path, monkeypatch
) -> None:
    for name in [each for each in sys.modules if each.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert_fails(
        r"needs matplotlib, .* pip install 'edbatch\[plot\]'",
        *("inspect", policy_file, "--plot", tmp_path / "tree.png"),
    )
    assert edbatch("inspect", policy_file).exit_code == 0


def test_a_picture_of_another_format(assert_fails, policy_file: Path) -> None:
    assert_fails(
        "writes .png, .pdf, .svg files but this is 'tree.pgn'; did you mean '.png'",
        *("inspect", policy_file, "--plot", "tree.pgn"),
    )


def test_a_policy_without_states_has_no_picture(
    edbatch, assert_fails, tmp_path: Path
) -> None:
    file = StateMachine(chain("ab").type_keys, "sort").save(tmp_path / "empty.json")
    told = edbatch("inspect", file).stdout
    assert "It has no states, and follows the greedy heuristic everywhere." in told
    assert_fails(
        "this one has none: it follows the greedy heuristic",
        *("inspect", file, "--plot", tmp_path / "tree.png"),
    )


GATES = """
import jax.numpy as jnp
import edbatch as eb

@eb.cell
def step(params, x, h):
    return jnp.tanh(x @ params["W"] + h @ params["U"]) * jnp.tanh(h @ params["V"])

@eb.cell
def start(params):
    return params["start"]

def encode(params, words):
    h = start(params)
    for x in words:
        h = step(params, x, h)
    return h

def params():
    return {name: jnp.eye(4) for name in "WUV"} | {"start": jnp.zeros(4)}

def instances():
    return [[jnp.ones(4)] * 3]
"""


@pytest.fixture
def gates(tmp_path: Path, monkeypatch) -> list[str]:
    """Options that name a model whose cell has three products."""
    name = "model_with_gates"
    (tmp_path / f"{name}.py").write_text(GATES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    options = {"model": "encode", "params": "params", "instances": "instances"}
    found = [part for k, v in options.items() for part in (f"--{k}", f"{name}:{v}")]
    return ["--cell", *found]


def test_cells_before_and_after_packing(edbatch, gates) -> None:
    result = edbatch("inspect", *gates)
    assert result.exit_code == 0, result.output
    for text in ("start/0", "step/1", "none", "KiB packed"):
        assert text in result.stdout
    assert "3 products in 2 types of cells run as 2." in result.stderr
    result = edbatch("inspect", *gates, "--json")
    start, step = json.loads(result.stdout)
    assert (start["type"], start["after"]["products"]) == ("start/0", [])
    assert len(step["before"]["products"]) == 3
    assert {tuple(each["right"]) for each in step["after"]["products"]} in (
        {(8, 4), (4, 4)},
        {(4, 4), (4, 8)},
    )
    assert step["after"]["packed_bytes"] == 4 * 4 * 8


def test_cells_of_a_workload(edbatch) -> None:
    result = edbatch("inspect", "--cell", "--workload", "tree-lstm", "--hidden", 4)
    assert result.exit_code == 0, result.output
    assert "8x20" in result.stdout
    assert "leaf/0" in result.stdout


def test_options_of_cells_and_of_policies(assert_fails, gates, policy_file) -> None:
    assert_fails("FILE shows a policy, but --cell", "inspect", policy_file, *gates)
    assert_fails(
        "--plot shows a policy, but --cell shows cells; see",
        *("inspect", *gates, "--plot", "a.png"),
    )
    assert_fails(
        "--workload says whose cells to show, but --cell is missing",
        *("inspect", policy_file, "--workload", "mv-rnn"),
    )
    assert_fails(
        "--hidden says whose cells to show, but --cell is missing",
        *("inspect", policy_file, "--hidden", 3),
    )
    assert_fails(
        "--hidden belongs to the ready workloads but --model",
        *("inspect", *gates, "--hidden", 3),
    )
    assert_fails("this command needs a model: give --workload", "inspect", "--cell")


def test_a_file_must_be_named(assert_fails) -> None:
    assert_fails("Missing argument 'FILE'; see 'edbatch inspect --help'", "inspect")
    assert_fails("there is no policy file", "inspect", "no.json")
