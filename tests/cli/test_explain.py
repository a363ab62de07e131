"""`edbatch explain`."""

import json
from pathlib import Path

import pytest

from edbatch import TypeKey
from edbatch.policies import load_costs, save_costs
from edbatch.policies.cost.model import CostModel, CostRecord

LATTICES = ("--workload", "lattice-lstm", "--batch-size", 6, "--hidden", 8)


def test_a_ready_workload(edbatch, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = edbatch("explain", *LATTICES)
    assert result.exit_code == 0, result.output
    assert "lattice-lstm on sampled instances, a minibatch of 6" in result.stdout
    for text in ("char/2", "Chunks by width", "padded length of words", "lengths=(K,)"):
        assert text in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "µs" not in result.stdout


def test_json_is_the_report(edbatch) -> None:
    result = edbatch("explain", *LATTICES, "--json", "--policy", "depth")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["plan"]["policy"] == "depth"
    assert found["instances"] == 6
    assert found["nodes"] == sum(each["nodes"] for each in found["types"])
    assert found["time_us"] is None
    assert [each["reason"] for each in found["apart"]] == ["padded length"]


def test_measured_and_drawn(edbatch, tmp_path: Path, treebank: Path) -> None:
    picture = tmp_path / "batches.png"
    options = ("--workload", "tree-lstm", "--data", treebank, "--hidden", 8)
    result = edbatch(
        "explain", *options, "--batch-size", 4, "--measure", "--json", "--plot", picture
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["time_source"] == "measured"
    times = [each["time_us"] for each in found["batch"]]
    assert found["time_us"] == pytest.approx(sum(times)) and found["time_us"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"The picture is in {picture}." in result.stderr


def test_predicted_by_costs(edbatch, tmp_path: Path, own_module: str) -> None:
    own = (
        *("--model", f"{own_module}:encode", "--instances", f"{own_module}:trees"),
        *("--params", f"{own_module}:params", "--batch-size", 4, "--json"),
    )
    result = edbatch("explain", *own)
    assert result.exit_code == 0, result.output
    keys = (TypeKey("leaf", "", 0), TypeKey("join", "", 2))
    assert [each["type"] for each in json.loads(result.stdout)["types"]] == [
        *map(str, keys)
    ]
    costs = CostModel(keys, (8,), ((3.0,), (5.0,)), (1, 1), (1.0, 1.0))
    file = save_costs(costs, tmp_path / "costs.json")
    assert load_costs(file) == costs
    found = json.loads(edbatch("explain", *own, "--costs", file).stdout)
    assert found["time_source"] == "predicted"
    leaf, join = found["types"]
    assert (leaf["time_us"], join["time_us"]) == (6.0, 5.0 * join["batches"])


def test_costs_are_those_of_one_hidden_size(
    edbatch, assert_fails, tmp_path: Path
) -> None:
    keys = tuple(TypeKey(*each) for each in (("leaf", "", 0), ("compose", "", 2)))
    keys += (TypeKey("classify", "", 1),)
    record = CostRecord("tree-lstm", "cpu", "0.10.2", 8, 4, 1, 1, 5.0)
    file = save_costs(
        CostModel(keys, (8,), 3 * ((3.0,),), 3 * (1,), 3 * (1.0,), record=record),
        tmp_path / "costs.json",
    )
    command = ("explain", "--workload", "tree-lstm", "--batch-size", 4)
    found = edbatch(*command, "--costs", file)
    assert found.exit_code == 0, found.output
    assert (
        "costs were measured with states of length 8; this model gets"
        " states of the same length" in found.stderr
    )
    same = edbatch(*command, "--costs", file, "--hidden", 8)
    assert same.stdout == found.stdout and "states of length" not in same.stderr
    assert_fails(
        "measured with --hidden 8 but this asks for --hidden 128",
        *(*command, "--costs", file, "--hidden", 128),
    )


def test_options_that_do_not_fit(edbatch, assert_fails, tmp_path: Path) -> None:
    assert_fails(
        "--plot draws batches over time", "explain", *LATTICES, "--plot", "a.png"
    )
    assert_fails("one of --workload|needs a model", "explain")
    assert_fails(
        "measured or predicted", "explain", *LATTICES, "--measure", "--costs", "x.json"
    )
    assert_fails(
        "--hidden belongs to the ready workloads",
        *("explain", "--model", "m:f", "--hidden", 3),
    )
    assert_fails(
        "writes .png, .pdf, .svg files",
        *("explain", *LATTICES, "--measure", "--plot", tmp_path / "a.gif"),
    )
