"""`edbatch demo`, made small."""

import json
from pathlib import Path

import pytest

import edbatch as eb
from edbatch.cli import demo_tour

SMALL = ("--hidden", 4, "--batch-size", 4)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_tour, "_TREES", 24)
    monkeypatch.setattr(demo_tour, "_MINIBATCHES", 2)
    monkeypatch.setattr(demo_tour, "_CHECKED_GRADIENTS", 1)


def test_the_tour(edbatch, tmp_path: Path) -> None:
    result = edbatch("demo", *SMALL, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    for step in (
        *("1. Train a policy on 24 generated trees", "tree-lstm.json"),
        *("2. Compare it", "learned", "agenda", "depth", "greedy", "lower bound"),
        *("3. Load the saved policy", "trees/s", "4. Check every number", "Next: "),
    ):
        assert step in text
    assert eb.load_policy(tmp_path / "tree-lstm.json").name == "fsm-sort"


def test_the_tour_as_json(edbatch, tmp_path: Path) -> None:
    result = edbatch("demo", *SMALL, "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["policy"] == str(tmp_path / "tree-lstm.json")
    assert found["rows"][0]["batches"] == found["rows"][0]["lower_bound"]
    assert found["max_output_error"] < 1e-5
    assert found["max_gradient_error"] < 1e-5
    assert found["instances_per_s"] > 0
    assert "1. Train a policy" in result.stderr


def test_the_folder_must_exist(assert_fails) -> None:
    assert_fails("--out names an existing folder but nowhere", "demo", "--out", "nowhere")
