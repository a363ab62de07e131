"""`train-policy --serving` and `edbatch compare --serving`."""

import csv
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edbatch.cli.compare_serving import outcome, shown_rows
from edbatch.cli.main import app
from edbatch.cli.serving_options import parse_rates
from edbatch.errors import EdbatchError
from edbatch.policies.serving import ServingScore, load_serving_policy

TREES = ("--serving", "--workload", "tree-lstm")
QUICK = ("--requests", 100, "--rate", "50%,700")


@pytest.fixture(scope="module")
def serving_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("serving") / "rule.json"
    options = [*TREES, *QUICK, "--generations", 2, "--burst", 3, "--out", file]
    result = CliRunner().invoke(app, ["train-policy", *map(str, options)])
    assert result.exit_code == 0, result.output
    assert f"The policy is in {file}." in result.stderr
    assert "p99 on arrivals" in result.stdout
    return file


def test_what_was_trained_is_recorded(serving_file: Path) -> None:
    record = load_serving_policy(serving_file).training
    assert record is not None
    assert record.workload == "tree-lstm on sampled instances"
    assert (record.objective, record.burst, record.generations) == ("p99", 3, 2)
    assert record.rates[1] == 700
    assert record.overhead_ms == 0.2
    assert record.costs.startswith("not measured")


def test_each_generation_is_a_row_of_metrics(serving_file: Path) -> None:
    with open(serving_file.with_name("rule.json.metrics.csv"), newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [int(row["step"]) for row in rows] == [*range(1, 1 + 3 * 2)]
    losses = [float(row["validation/loss"]) for row in rows]
    assert losses == sorted(losses, reverse=True)


def test_settings_of_training_in_simulation(
    edbatch, assert_fails, tmp_path, monkeypatch
) -> None:
    found = {}

    def train(*_, population=None, generations=None, episodes=None, **rest):
        found.update(population=population, episodes=episodes, generations=generations)
        raise EdbatchError("that was enough")

    monkeypatch.setattr("edbatch.policies.serving.train_serving_policy", train)
    monkeypatch.setattr("edbatch.policies.serving.train_serving_machine", train)
    quick = ("train-policy", *TREES, *QUICK)
    for options, expected in (
        ("", (48, None, 20)),
        ("--population 7 --generations 3", (7, None, 3)),
        ("--method q-learning", (None, 400, None)),
        ("--method q-learning --generations 3", (None, 60, None)),
        ("--method q-learning --episodes 11", (None, 11, None)),
    ):
        assert_fails("that was enough", *quick, *options.split())
        assert (*found.values(),) == expected
    assert_fails("are those of Q-learning but", *quick, "--episodes", 3)


def test_rows_as_json(edbatch, serving_file: Path) -> None:
    result = edbatch("compare", *TREES, *QUICK, "--policy", serving_file, "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    names = [row["policy"] for row in rows]
    assert names[:17] == names[18:35]
    assert names[0] == "learned"
    assert {"largest", "largest, 8", "run at once", "window 10 ms"} < {*names}
    half, fixed = rows[0], rows[-1]
    assert (half["load"], fixed["rate"]) == (0.5, 700)
    for row in rows:
        assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
        assert 0 <= row["late"] <= 1
    again = edbatch("compare", *TREES, *QUICK, "--policy", serving_file, "--json")
    assert again.stdout == result.stdout


def test_a_table_of_80_columns(edbatch, serving_file: Path, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    options = ("--policy", serving_file, "--deadline-ms", 20, "--burst", 2)
    result = edbatch("compare", *TREES, *QUICK, *options)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "goodput" in result.stdout and "within 20 ms" in result.stdout
    lines = result.stdout.splitlines()
    assert sum(line.strip("│ ").startswith("learned ") for line in lines) == 2
    assert sum(line.strip("│ ").startswith("largest") for line in lines) == 2
    assert "At 700 requests/s: learned has mean" in result.stderr


def test_costs_of_a_file(edbatch, serving_file: Path, tmp_path: Path) -> None:
    costs = {
        "format": "edbatch-costs",
        "version": 1,
        "widths": [1, 64],
        "switch_us": 0,
        "call_us": 0,
        "types": [
            {
                "cell": cell,
                "path": "",
                "arity": 0,
                "variant": 0,
                "batches": 1,
                "measured_widths": 2,
                "chunk_us": [100, 1000],
            }
            for cell in ("leaf", "compose", "classify")
        ],
    }
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(costs))
    command = ("compare", *TREES, *QUICK, "--policy", serving_file, "--json")
    cheap, dear = (
        json.loads(edbatch(*command, *more).stdout)[-1]["mean_ms"]
        for more in ((), ("--costs", file))
    )
    assert dear > cheap


def test_a_policy_of_other_operations_is_refused_or_told(
    edbatch, assert_fails, serving_file: Path, tmp_path: Path
) -> None:
    content = json.loads(serving_file.read_text())
    other = tmp_path / "other.json"
    content["types"][0]["cell"] = "unknown"
    other.write_text(json.dumps(content))
    command = ("compare", *TREES, *QUICK, "--policy", other)
    result = edbatch(*command)
    assert result.exit_code == 0, result.output
    assert re.search(
        "other.json was not trained on '\\w+/[0-9]', for which it decides as for the",
        " ".join(result.stderr.split()),
    )
    for each in content["types"]:
        each["cell"] = "unknown " + each["cell"]
    other.write_text(json.dumps(content))
    assert_fails("was trained on none of the operations of tree-lstm", *command)


def test_what_is_no_serving_policy_is_told(assert_fails, serving_file: Path) -> None:
    command = ("compare", *TREES, *QUICK, "--policy")
    for name in ("greedy", "zoo:tree-lstm"):
        assert_fails(f"{name}' schedules minibatches", *command, name)
    beside = (serving_file, "--beside", serving_file)
    assert_fails("--policy and --beside name one file", *command, *beside)
    for option in ("--burst", "--deadline-ms"):
        told = f"{option} takes a finite number but received inf"
        assert_fails(told, *command, serving_file, option, "inf")


def score(policy: str, mean: float, p99: float) -> ServingScore:
    return ServingScore(policy, 100.0, mean, mean, p99, p99, 1.0, 0.0, 1.0, 1.0)


def test_the_outcome_in_a_sentence() -> None:
    rows = [score("learned", 9, 33), score("a", 10, 40), score("b, 8", 12, 30)]
    assert outcome(rows) == (
        "At 100 requests/s: learned has mean 10.0% below that of a and p99 10.0% above"
        " that of b, 8."
    )


def test_an_outcome_that_is_the_same() -> None:
    rows = [score("learned", 9, 33), score("a", 9, 40), score("a, 8", 9, 33)]
    assert outcome(rows) == (
        "At 100 requests/s: learned has mean within 0.1% of that of a, 8 and p99 within"
        " 0.1% of that of a, 8."
    )


def test_a_policy_that_keeps_waiting_is_given_up(edbatch, serving_file, tmp_path):
    content = json.loads(serving_file.read_text())
    content["waiting"]["wait_bias"] = 1000.0
    waits = tmp_path / "waits.json"
    waits.write_text(json.dumps(content))
    command = ("compare", *TREES, "--requests", 20, "--rate", 700, "--policy", waits)
    result = edbatch(*command)
    assert result.exit_code == 0, result.output
    assert "learned has no mean, as it kept waiting and was given up" in result.stderr
    rows = json.loads(edbatch(*command, "--json").stdout)
    assert [rows[0][name] for name in ("mean_ms", "goodput", "late")] == [None, 0, 1]


def test_rates_below_one_are_written(edbatch, serving_file: Path) -> None:
    options = ("--requests", 20, "--rate", "0.4,0.2", "--policy", serving_file)
    result = edbatch("compare", *TREES, *options)
    assert result.exit_code == 0, result.output
    for rate in ("0.4", "0.2"):
        assert f"\n{rate} requests/s, " in result.stdout
        assert f"At {rate} requests/s: learned" in result.stderr


def test_low_rates_of_a_training_are_written(edbatch) -> None:
    options = ("--requests", 5, "--rate", "0.4,30", "--generations", 1)
    result = edbatch("train-policy", *TREES, *options, "--population", 2)
    assert result.exit_code == 0, result.output
    cells = [line.split("│")[1].strip() for line in result.stdout.splitlines()[-3:-1]]
    assert cells == ["0.4", "30"]


def test_of_each_heuristic_the_best_wave_is_shown() -> None:
    rows = [score(name, 1, p) for name, p in (("a", 3), ("b", 2), ("a, 8", 2))]
    assert [row.policy for row in shown_rows(rows)] == ["b", "a, 8"]
    short = score("a", 0.5, 3)  # the smallest mean of all
    assert shown_rows([short, *rows[1:]]) == [short, *rows[1:]]
    learned = [score("r, 1.json", 1, 5), score("r, 2.json", 1, 4)]
    assert shown_rows([*learned, *rows], 2)[:2] == learned


def test_policies_beside_each_other_are_named_by_file(
    edbatch, serving_file: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.json"
    content = json.loads(serving_file.read_text())
    content["waiting"]["wave_bias"] = 0.0
    other.write_text(json.dumps(content))
    command = ("compare", *TREES, *QUICK, "--policy", serving_file)
    result = edbatch(*command, "--beside", other)
    assert result.exit_code == 0, result.output
    lines = [line.strip("│ ") for line in result.stdout.splitlines()]
    for name in ("rule.json", "other.json"):
        assert sum(line.startswith(name) for line in lines) == 2
        assert f"At 700 requests/s: {name} has mean" in result.stderr
    rows = json.loads(edbatch(*command, "--beside", other, "--json").stdout)
    assert [row["policy"] for row in rows[:3]] == ["rule.json", "other.json", "agenda"]
    assert rows[0]["mean_ms"] != rows[1]["mean_ms"]
    # Files with the same name are distinguished by their folders.
    same = tmp_path / "rule.json"
    same.write_text(other.read_text())
    rows = json.loads(edbatch(*command, "--beside", same, "--json").stdout)
    assert [row["policy"] for row in rows[:2]] == [str(serving_file), str(same)]


@pytest.mark.parametrize("text", ["", "a", "0", "-5", "50%%", "nan", "1,,2", "inf"])
def test_rates_that_cannot_be(assert_fails, text: str) -> None:
    assert_fails(
        "--rate takes requests per second from",
        *("train-policy", *TREES, "--rate", text),
    )


def test_rates() -> None:
    assert parse_rates("5, 20%") == [(5, False), (0.2, True)]


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("an objective is mean, p99, or", ("train-policy", "--objective", "p90")),
        ("--resume belongs to minibatches", ("train-policy", "--resume")),
        ("--trials belongs to minibatches", ("train-policy", "--trials", 5)),
        ("--batch-size belongs to mini", ("train-policy", "--batch-size", 64)),
        ("--exact belongs to minibatches", ("compare", "--policy", "p", "--exact")),
        ("--search-ms belongs to", ("compare", "--policy", "p", "--search-ms", 20)),
        ("there is no policy file", ("compare", "--policy", "nothing.json")),
    ],
)
def test_what_cannot_be_done_is_said(assert_fails, message, options) -> None:
    assert_fails(message, *options, *TREES)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rate", ("train-policy", "--rate", "banana")),
        ("objective", ("train-policy", "--objective", "p99")),
        ("deadline-ms", ("compare", "--policy", "p", "--deadline-ms", 1)),
        ("costs", ("compare", "--policy", "p", "--costs", "nothing.json")),
        ("beside", ("compare", "--policy", "p", "--beside", "nothing.json")),
    ],
)
def test_an_option_of_servers_for_minibatches(assert_fails, name, options) -> None:
    message = f"--{name} belongs to --serving, which was not given; give it too"
    assert_fails(message, *options, *(each for each in TREES if each != "--serving"))


def test_a_policy_for_minibatches_is_refused(assert_fails) -> None:
    zoo = Path(__file__).parents[2] / "policies" / "zoo" / "tree-lstm.json"
    assert_fails("it is a policy for minibatches", "compare", *TREES, "--policy", zoo)
