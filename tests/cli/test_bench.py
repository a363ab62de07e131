"""`edbatch bench`; measurements are faked where only the output matters."""

import json
import sys

import pytest
import typer
from typer.testing import CliRunner

import edbatch as eb
import edbatch.benchmark
from edbatch.benchmark import (
    PLANNERS,
    BenchmarkConfig,
    BenchmarkResult,
    MinibatchFacts,
    Row,
)
from edbatch.benchmark.program_counts import ProgramCounts
from edbatch.benchmark.result import TrainRow
from edbatch.cli.bench import bench
from edbatch.cli.one_sentence import OneSentenceCommand

pytestmark = pytest.mark.usefixtures("quick_compiles")

APP = typer.Typer()
APP.command(cls=OneSentenceCommand)(bench)


def run(*arguments):
    return CliRunner().invoke(APP, [str(each) for each in arguments])


TRAIN = TrainRow(
    train_ms=45.678,
    ratio_to_forward=3.21,
    ratio_to_exact=0.8,
    compile_s=4.5,
    compiles=2,
    noise_percent=3.3,
    max_gradient_error=1e-6,
)


def row_of(system, **changes):
    values = {
        "system": system,
        "forward_ms": 12.345,
        "record_ms": 1.0,
        "plan_ms": 0.5,
        "compile_s": 2.5,
        "compiles": 3,
        "max_abs_error": 1.25e-7,
        "fresh_ms": 13.85,
        "kept_ms": 12.85,
        "limit_ms": 2.0,
        "instances_per_s": 4567.0,
        "percent_of_peak": 33.3,
        "host_percent": 4.4,
        "noise_percent": 2.2,
        "ratio_to_exact": 1.25,
        "batches": 17.0,
        "in_place_percent": 12.3,
        "program": None,
        "train": None,
        "about": f"what {system} is; and its weakness",
    }
    return Row(**values | changes)


@pytest.fixture
def asked(monkeypatch):
    """The requested configurations; each gets a fake result."""
    configs = []

    def made_up(config, progress, model=None):
        assert model is None
        configs.append(config)
        progress(1, 2, "measuring")
        return BenchmarkResult(
            config=config,
            policy="greedy, as asked for",
            device={"kind": "cpu", "cores": 2},
            versions={},
            minibatch=MinibatchFacts(64, 2345.0, 26.0, 0.5),
            peak_gflops=None if config.compiles_only else 250.0,
            rows=(
                row_of("edbatch", train=TRAIN if config.train else None),
                row_of(
                    "exact", batches=None, ratio_to_exact=1.0, in_place_percent=None
                ),
                *(
                    row_of(each, program=ProgramCounts(28, 15.63, 1.0, 2.57, 5.9))
                    for each in config.systems
                    if each in PLANNERS
                ),
            ),
            left_out={"scan": "its inner nodes are of 4 types"},
        )

    monkeypatch.setattr(edbatch.benchmark, "run_benchmark", made_up)
    return configs


def test_defaults(asked):
    assert run().exit_code == 0
    assert asked == [BenchmarkConfig()]


def test_options(asked, tmp_path):
    result = run(
        *("--workload", "tree-lstm", "--data", tmp_path, "--classify", "nodes"),
        *("--hidden", 256, "--batch-size", 16, "--policy", "agenda"),
        *("--systems", "edbatch, exact", "--rounds", 7, "--minibatches", 3),
        *("--seed", 9, "--arity", 3, "--compiles-only"),
    )
    assert result.exit_code == 0, result.output
    assert asked == [
        BenchmarkConfig(
            workload="tree-lstm",
            options={"arity": 3, "classify": "nodes"},
            data=(tmp_path,),
            hidden=256,
            batch_size=16,
            policy="agenda",
            systems=("edbatch", "exact"),
            rounds=7,
            minibatches=3,
            seed=9,
            compiles_only=True,
        )
    ]


def test_table(asked):
    shown = run("--hidden", 256).stdout
    for words in (
        "hidden 256",
        "lower bound 26.0 batches",
        "12.35",
        "1.2e-07",
        "what edbatch is; and its weakness.",
        "scan: left out, because its inner nodes are of 4 types.",
        "Policy of edbatch: greedy, as asked for.",
        "Peak: 250 Gflop/s",
    ):
        assert words in shown
    assert "Peak" not in run("--compiles-only").stdout


def test_table_fits_a_narrow_terminal(asked, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    tables = [line for line in run().stdout.splitlines() if line[:1] in "┃│"]
    assert len(tables) >= 6
    assert max(map(len, tables)) <= 80


@pytest.mark.usefixtures("asked")
def test_json_is_all_that_is_printed():
    value = json.loads(run("--json").stdout)
    assert [each["system"] for each in value["rows"]] == ["edbatch", "exact"]
    assert value["rows"][0]["forward_ms"] == 12.345
    assert value["peak_gflops"] == 250


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--systems", "edbatch,exakt"], "did you mean 'exact'?"),
        (["--systems", ","], "--systems names no system"),
        (["--workload", "tree-lstn"], "did you mean 'tree-lstm'?"),
        (["--policy", "gredy"], "did you mean 'greedy'?"),
        (["--data", "no-such-file.ptb"], "no-such-file.ptb"),
        (["--hidden", "0"], "--hidden"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_exit_code_2(arguments, message):
    result = run("--hidden", 2, "--batch-size", 2, "--minibatches", 1, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("Error") == 1
    assert "Traceback" not in result.stderr


def test_a_real_run():
    result = run(
        *("--hidden", 4, "--batch-size", 2, "--minibatches", 1, "--rounds", 1),
        *("--policy", "greedy", "--systems", "unbatched,scan", "--json"),
    )
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    assert [each["system"] for each in rows] == ["unbatched", "scan"]
    assert rows[1]["max_abs_error"] < 1e-6


def test_policies_are_compared_by_batches_and_time(asked, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = run("--policies", "learned, agenda", "--policy", "zoo:tree-lstm")
    assert result.exit_code == 0, result.output
    assert asked[0].policies == ("learned", "agenda")
    assert asked[0].policy == "zoo:tree-lstm"
    [first, *_] = [line for line in result.stdout.splitlines() if line[:1] == "┃"]
    heads = [each.strip() for each in first.strip("┃").split("┃")]
    assert heads == ["policy", "batches", "forward", "± %", "plan", "instances/s"]
    lines = [line for line in result.stdout.splitlines() if line[:1] in "┃│┏└"]
    assert max(map(len, lines)) <= 80
    assert all(line[-1:] in "┃│┓┘" for line in lines)  # nothing is cut off


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies", "depth", "--systems", "exact"], "but --systems is given, too"),
        (["--policies", "depth", "--planner"], "but --planner is given, too; leave"),
        (["--policies", ","], "--policies names no policy; give some"),
        (
            ["--policies", "depth,depth"],
            "--policies must not repeat a name but is depth,depth",
        ),
        (["--policies", "gredy"], "did you mean 'greedy'?"),
    ],
)
def test_wrong_policies(arguments, message):
    result = run("--hidden", 2, "--batch-size", 2, "--minibatches", 1, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_parts_of_the_planner(asked):
    result = run("--planner")
    assert result.exit_code == 0, result.output
    assert asked[0].systems == tuple(PLANNERS)
    assert "Compiled programs: loops" in result.output
    assert "15.6" in result.output and "planner-both" in result.output


def test_totals_stages_and_the_limit(asked, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    shown = run().stdout
    assert "the limit, 2 ms" in shown
    [row, *_] = [line for line in shown.splitlines() if "│ 12.8" in line]
    cells = [each.strip() for each in row.split("│")]
    assert cells[1:-1] == ["edbatch", "13.85", "12.85", "7", "4", "89", "6.92", "6.42"]
    assert "of kept recordings" not in run("--policies", "greedy").stdout


def test_training(asked, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    shown = run("--train").stdout
    assert asked[0].train
    for words in ("Value and gradient of a loss", "45.68", "to forward", "1.0e-06"):
        assert words in shown
    assert "Value and gradient" not in run().stdout


@pytest.mark.parametrize("can", [True, False])
def test_memory_is_kept_if_asked(asked, monkeypatch, can):
    calls = []
    monkeypatch.setattr(eb, "keep_memory", lambda: calls.append(True) or can)
    assert run().exit_code == 0
    assert calls == []
    result = run("--keep-memory")
    assert calls == [True]
    if not can:
        assert result.exit_code == 2
        assert "--keep-memory needs the C library glibc" in result.output


def test_planner_and_systems_exclude_each_other(asked):
    result = run("--planner", "--systems", "exact")
    assert result.exit_code == 2 and not asked
    assert "--planner names the systems itself" in result.output


def test_the_planner_is_measured():
    systems = ("planner-off", "planner-both")
    result = run(
        *("--systems", ",".join(systems), "--hidden", 4, "--batch-size", 2),
        *("--minibatches", 1, "--rounds", 1, "--policy", "greedy", "--json"),
    )
    assert result.exit_code == 0, result.output
    rows = {row["system"]: row for row in json.loads(result.stdout)["rows"]}
    assert [*rows] == [*systems]
    assert all(row["max_abs_error"] < 1e-5 for row in rows.values())
    assert rows["planner-off"]["in_place_percent"] == 0
    for row in rows.values():
        program = row["program"]
        assert program["loops"] > 0 and program["operations"] > program["gathers"] > 0


MODEL = """
import numpy as np
import jax
import edbatch as eb

@eb.cell
def step(params, state, x):
    return state * params["w"] + x

@eb.cell
def start(params):
    return params["first"]

def model(params, numbers):
    state = start(params)
    for each in numbers:
        state = step(params, state, np.float32(each))
    return state

def asks(params, numbers):
    state = model(params, numbers)
    return state if eb.value(state) > 0 else start(params)

def fails(params, numbers):
    raise KeyError("no such word")

def instances(rng, count):
    return [list(range(n)) for n in rng.integers(2, 5, count)]

def params():
    return {"w": np.float32(0.5), "first": np.float32(1)}

def shapes():
    return jax.eval_shape(params)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Returns the options that name a user-defined model."""
    (tmp_path / "benched.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda model="model", params="params": (
        *("--model", f"benched:{model}", "--params", f"benched:{params}"),
        *("--instances", "benched:instances", "--batch-size", 3, "--minibatches", 1),
        *("--rounds", 1, "--policy", "greedy"),
    )
    monkeypatch.delitem(sys.modules, "benched", raising=False)


@pytest.mark.parametrize("params", ["params", "shapes"])
def test_a_model_of_ones_own(own, params):
    systems = ("edbatch", "unbatched", "levels")
    result = run(*own(params=params), "--systems", ",".join(systems), "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["config"]["workload"] == "benched:model"
    assert found["config"]["hidden"] is None
    assert [row["system"] for row in found["rows"]] == [*systems]
    assert all(row["max_abs_error"] < 1e-5 for row in found["rows"])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("asks", "the model asks for a value"),
        ("fails", "the model raised KeyError: 'no such word'"),
        ("modle", "did you mean 'model'?"),
    ],
)
def test_a_model_of_ones_own_that_cannot_be_measured(own, model, message):
    result = run(*own(model))
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("Error") == 1 + ("KeyError" in message)


def test_a_hidden_size_beside_a_model_of_ones_own(own):
    result = run(*own(), "--hidden", 4)
    assert result.exit_code == 2
    assert "--hidden belongs to the ready workloads" in result.stderr
