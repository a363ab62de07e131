"""`edbatch calibrate`."""

import json
from pathlib import Path

import pytest

from edbatch.policies import load_costs

pytestmark = pytest.mark.usefixtures("quick_compiles")

SMALL = ("--batch-size", 2, "--minibatches", 1, "--rounds", 1)
TREES = ("calibrate", "--workload", "tree-lstm", "--hidden", 4, *SMALL)
POLICIES = ["greedy", "agenda-remaining", "depth"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("costs") / "costs.json"


def test_costs_as_json_and_in_a_file(edbatch, written: Path, treebank: Path) -> None:
    result = edbatch(*TREES, "--data", treebank, "--out", written, "--json")
    assert result.exit_code == 0, result.output
    found, costs = json.loads(result.stdout), load_costs(written)
    assert found["out"] == str(written)
    assert [each["type"] for each in found["types"]] == [*map(str, costs.types)]
    assert [tuple(each["chunk_us"]) for each in found["types"]] == [*costs.chunk_us]
    assert found["widths"] == [*costs.widths]
    for each, key in zip(found["types"], costs.types, strict=True):
        fixed_us, node_us = costs.affine_us(key)
        assert each["fixed_us"] == pytest.approx(fixed_us, abs=1e-4)
        assert each["node_us"] == pytest.approx(node_us, abs=1e-4)
    assert [each["policy"] for each in found["predictions"]] == POLICIES
    assert costs.record.hidden == found["record"]["hidden"] == 4
    assert costs.record.workload == f"tree-lstm on {treebank.name}"
    assert f"The costs are in {written}." in result.stderr


def test_a_table_for_people(edbatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # long times would wrap the column headers
    result = edbatch(*TREES)
    assert result.exit_code == 0, result.output
    for text in ("fixed", "per node", "4 rows", "predicted ms", "error %", *POLICIES):
        assert text in result.stdout
    assert "tree-lstm on sampled instances, hidden 4" in result.stdout
    assert "--out FILE saves them" in result.stderr


def test_ones_own_model(edbatch, own_module: str, tmp_path: Path) -> None:
    out = tmp_path / "own.json"
    result = edbatch(
        *("calibrate", "--model", f"{own_module}:encode", *SMALL, "--out", out),
        *("--instances", f"{own_module}:trees", "--params", f"{own_module}:params"),
    )
    assert result.exit_code == 0, result.output
    costs = load_costs(out)
    assert {str(key) for key in costs.types} == {"leaf/0", "join/2"}
    assert costs.record.hidden is None


def test_what_cannot_be_measured_is_said(assert_fails, own_module: str) -> None:
    own = ("--model", f"{own_module}:encode", "--instances", f"{own_module}:trees")
    assert_fails(
        "--hidden belongs to the ready workloads but --model was given as well",
        *("calibrate", *own, "--hidden", 8),
    )
    assert_fails("this command needs a model", "calibrate")
    assert_fails("given no parameters", "calibrate", *own, *SMALL)
    own = ("--model", f"{own_module}:asking", "--instances", f"{own_module}:trees")
    own += ("--params", f"{own_module}:params")
    assert_fails("the model asks for a value .* plans before", "calibrate", *own)
    assert_fails("the model asks for a value .* plans before", "explain", *own)


def test_one_instance_is_too_few(assert_fails, tmp_path: Path) -> None:
    (tmp_path / "one.ptb").write_text("(S (A a) (B b))")
    data = ("--data", tmp_path / "one.ptb")
    assert_fails("2 instances or more, .* but there is 1; give more", *TREES, *data)


def test_the_file_is_checked_before_the_work(assert_fails, tmp_path: Path) -> None:
    assert_fails("--out names a file", *TREES, "--out", tmp_path / "no" / "costs.json")
    assert_fails("--out names a file but", *TREES, "--out", tmp_path)
