"""`edbatch compare`."""

import json
from pathlib import Path

import jax
import pytest

import edbatch as eb
from edbatch.data import parse_trees
from edbatch.models import get_workload

SMALL = ("--batch-size", 4, "--minibatches", 3)
TREES = ("compare", "--workload", "tree-lstm", *SMALL, "--policy")
POLICIES = ["learned", "agenda", "depth", "greedy"]
KEYS = [
    "policy",
    "batches",
    "lower_bound",
    "worst_ratio",
    "unseen_states",
    "schedule_us_per_node",
]


def test_a_list_of_rows_as_json(edbatch, policy_file: Path) -> None:
    result = edbatch(*TREES, policy_file, "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [row["policy"] for row in rows] == POLICIES
    assert all(list(row) == KEYS for row in rows)
    assert len({row["lower_bound"] for row in rows}) == 1
    assert all(row["schedule_us_per_node"] > 0 for row in rows)
    learned, agenda, depth, greedy = rows
    assert learned["batches"] == greedy["batches"] == learned["lower_bound"]
    assert depth["batches"] > agenda["batches"] >= greedy["batches"]


def test_the_numbers_are_those_of_the_minibatches(
    edbatch, policy_file: Path, treebank: Path
) -> None:
    # The whole treebank is one minibatch, so what is drawn is known.
    trees = get_workload("tree-lstm").read(treebank)
    assert len(trees) == len(parse_trees((treebank / "a.ptb").read_text())) == 4
    data = ("--data", treebank, "--batch-size", 4, "--minibatches", 1)
    result = edbatch(
        "compare", "--workload", "tree-lstm", "--policy", policy_file, *data, "--json"
    )
    rows = {row["policy"]: row for row in json.loads(result.stdout)}
    workload = get_workload("tree-lstm")
    params = workload.init_params(jax.random.key(0), 2)
    for name, policy in (("learned", str(policy_file)), ("depth", "depth")):
        report = eb.batch(workload.model, policy, params=params).plan(trees).report
        assert report is not None
        assert rows[name]["batches"] == report.batches
    assert rows["depth"]["worst_ratio"] == pytest.approx(
        rows["depth"]["batches"] / rows["depth"]["lower_bound"], abs=1e-4
    )


def test_a_table_for_people(edbatch, policy_file: Path) -> None:
    result = edbatch(*TREES, policy_file)
    assert result.exit_code == 0, result.output
    for text in (*POLICIES, "lower bound", "tree-lstm on sampled instances"):
        assert text in result.stdout


def test_the_seed_draws_the_minibatches(edbatch, policy_file: Path) -> None:
    def batches(seed: int) -> list[float]:
        result = edbatch(*TREES, policy_file, "--json", "--seed", seed)
        return [row["batches"] for row in json.loads(result.stdout)]

    assert batches(1) == batches(1) != batches(2)


def test_ones_own_model(edbatch, own_module: str, tmp_path: Path) -> None:
    own = (
        *("--model", f"{own_module}:encode", "--instances", f"{own_module}:trees"),
        *("--params", f"{own_module}:params", *SMALL),
    )
    out = tmp_path / "own.json"
    assert edbatch("train-policy", *own, "--out", out).exit_code == 0
    result = edbatch("compare", *own, "--policy", out, "--json")
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)) == 4


@pytest.mark.parametrize(
    ("message", "name", "text"),
    [
        ("there is no policy file .*missing.json", "missing.json", None),
        ("name of a heuristic or the path .* 'greedy'", "gredy", None),
        ("bad.json ends too early and is truncated", "bad.json", '{"format": "edb'),
        ("bad.json is not ", "bad.json", "hello"),
        ("bad.json is empty", "bad.json", ""),
        ("is other JSON", "bad.json", "[1, 2]"),
        (
            "up to version 1 but .*bad.json has version 9",
            "bad.json",
            '{"format": "edbatch-policy", "version": 9}',
        ),
    ],
)
def test_what_is_wrong_with_a_policy_is_said(
    assert_fails, tmp_path: Path, message: str, name: str, text: str | None
) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    assert_fails(message, *TREES, file if file.suffix else name)


def test_a_policy_of_another_model_is_refused(assert_fails, policy_file: Path) -> None:
    assert_fails(
        "was not trained on 'head'.*did you mean",
        *("compare", "--workload", "tree-lstm-childsum", *SMALL),
        *("--policy", policy_file),
    )


def test_a_policy_must_be_given(assert_fails) -> None:
    assert_fails("Missing option '--policy'", "compare", "--workload", "tree-lstm")
