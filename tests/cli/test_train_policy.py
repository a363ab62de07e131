"""`edbatch train-policy`."""

import inspect
import json
import os
import sys
import threading
from dataclasses import fields, replace
from pathlib import Path

import pytest
from comparison_rows import KEYS
from event_files import scalars
from training_commands import LATTICES, SMALL, TREES, evaluations, load

from edbatch.cli.train_policy import describe_outcome
from edbatch.cli.train_policy import train_policy as command
from edbatch.policies import CostModel, train_policy
from edbatch.policies.fsm.settings import Settings
from edbatch.policies.serving import train_serving_machine, train_serving_policy

LEARN = (*TREES, "--train-anyway")
POLICIES = ["learned", "learned alone"]
POLICIES += ["agenda", "agenda-remaining", "depth", "greedy"]
SIZES = [4, 8, 32, 128]  # the training's own size first


def test_a_policy_is_trained_on_a_treebank(edbatch, treebank, tmp_path) -> None:
    out = tmp_path / "tree.json"
    result = edbatch(*LEARN, "--data", treebank, "--out", out, "--encoding", "max")
    assert result.exit_code == 0, result.output
    for text in (*POLICIES, "lower", "batches per minibatch of 4"):
        assert text in result.stdout
    one, other = result.stdout.split(
        "The same policy at sizes that it was not trained on"
    )
    assert one.count("learned") == 2
    assert other.count("learned") == 6
    assert all(f"Minibatches of {size}" in other for size in SIZES[1:])
    assert f"The policy is in {out}." in result.stderr
    policy = load(out)
    assert policy.encoding == "max"
    assert {key.cell for key in policy.types} == {"leaf", "compose", "classify"}
    assert policy.training is not None
    assert policy.training.workload == "tree-lstm on treebank"
    assert policy.training.minibatches == policy.training.held_out == 2
    assert policy.training.batch_size == 4


NO_POLICY = "greedy already meets the bound on every minibatch: you need no policy"


def test_where_greedy_meets_the_bound_nothing_is_trained(
    edbatch, treebank, tmp_path, monkeypatch
) -> None:
    out = tmp_path / "tree.json"
    with monkeypatch.context() as patch:
        for name in ("policies.warm_up", "policies.fsm.episode.run_trial"):
            patch.setattr(f"edbatch.{name}", None)
        result = edbatch(*TREES, "--data", treebank, "--out", out)
    assert result.exit_code == 0, result.output
    assert NO_POLICY in result.stderr
    assert f"The policy is in {out}." in result.stderr
    assert "Training" not in result.stderr
    policy = load(out)
    assert (policy.states, policy.encoding) == ((), "sort")
    assert policy.training is not None
    assert policy.training.stopped == "greedy"
    log = tmp_path / "tree.json.metrics.csv"
    assert {*tmp_path.glob("tree*")} == {treebank, out, log}
    result = edbatch(*LEARN, "--data", treebank, "--out", out)
    assert NO_POLICY not in result.stderr
    assert "Training met the lower bound" in result.stderr
    assert load(out).states


def test_json_is_all_that_is_on_stdout(edbatch, treebank, tmp_path) -> None:
    out = tmp_path / "tree.json"
    data = ("--data", treebank / "a.ptb", "--data", treebank)
    result = edbatch(*LEARN, *data, "--out", out, "--json", "--seed", 3)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["out"] == str(out)
    assert found["states"] == len(load(out).states)
    assert found["training"]["seed"] == 3
    assert [(row["batch_size"], row["policy"]) for row in found["rows"]] == [
        (size, policy) for size in SIZES for policy in POLICIES
    ]
    for row in found["rows"]:
        assert list(row) == KEYS
        assert row["batches"] >= row["lower_bound"] > 0
        assert row["worst_ratio"] >= row["mean_ratio"] >= 1
    learned = found["rows"][0]
    assert learned["batches"] == learned["lower_bound"]
    assert "Training met the lower bound" in result.stderr


def test_without_data_instances_are_sampled_by_seed(edbatch, tmp_path) -> None:
    found = []
    for seed in (1, 1, 2):
        out = tmp_path / "tagger.json"
        result = edbatch(
            *("train-policy", "--workload", "bilstm-tagger", *SMALL, "--trials", 3),
            *("--out", out, "--seed", seed, "--train-anyway"),
        )
        assert result.exit_code == 0, result.output
        found.append(load(out).states)
    assert found[0] == found[1] != found[2]


def test_trials_are_limited_and_the_policy_need_not_be_saved(edbatch) -> None:
    # With this encoding, training does not reach the bound before its first trial.
    result = edbatch(*LEARN, "--trials", 1, "--encoding", "max", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["out"] is None
    assert found["training"]["trials"] == found["training"]["max_trials"] == 1
    assert ": 1 trial, " in result.stderr
    assert "The policy was not saved; --out FILE saves it." in result.stderr


def test_a_policy_is_written_into_a_pipe(edbatch, tmp_path) -> None:
    pipe, out = tmp_path / "pipe", tmp_path / "policy.json"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: out.write_bytes(pipe.read_bytes()))
    reader.daemon = True  # it would block forever if nobody writes
    reader.start()
    result = edbatch(*LEARN, "--trials", 1, "--out", pipe)
    assert result.exit_code == 0, result.output
    reader.join(timeout=60)
    assert load(out).states
    assert {*tmp_path.iterdir()} == {pipe, out}


def test_a_policy_that_cannot_be_written_is_told(assert_fails) -> None:
    message = r"/dev/full cannot be written \(No space left on device\)"
    assert_fails(message, *LEARN, "--trials", 1, "--out", "/dev/full")


@pytest.mark.parametrize(
    ("stopped", "worse", "text"),
    [
        ("lower bound", False, "Training met the lower bound on every minibatch"),
        (
            "lower bound",
            True,
            "Training found nothing as good as the greedy heuristic, so",
        ),
        ("trials", False, "used all trials without meeting every lower bound: 1,234"),
        ("patience", False, "Training ended as nothing better was found for a while: "),
        (
            "patience",
            True,
            "Training found nothing as good as the greedy heuristic, so",
        ),
        ("trials", True, "Training found nothing as good as the greedy heuristic, so"),
        ("interrupted", False, "was interrupted; this is the best policy so far: 1,2"),
        (
            "interrupted",
            True,
            "was interrupted and found nothing as good as the greedy heuristic, so",
        ),
    ],
)
def test_how_training_ended_is_said(policy_file, stopped, worse, text) -> None:
    record = load(policy_file).training
    assert record is not None
    record = replace(record, stopped=stopped, worse_than_greedy=worse, trials=1234)
    sentence = describe_outcome(record, 7)
    assert text in sentence
    assert sentence.endswith(" s, 7 states.")


def test_training_without_a_trial(policy_file) -> None:
    record = load(policy_file).training
    assert record is not None
    done = replace(record, stopped="lower bound", trials=0)
    assert "judged by: no trial was needed, " in describe_outcome(done, 7)
    stopped = replace(record, stopped="interrupted", trials=0)
    assert "so far: 0 trials, " in describe_outcome(stopped, 7)


@pytest.mark.parametrize(
    ("instances", "params"), [("trees", "params"), ("sampled", "params_of_key")]
)
def test_a_policy_for_ones_own_model(
    edbatch, own_module: str, tmp_path: Path, instances: str, params: str
) -> None:
    out = tmp_path / "own.json"
    result = edbatch(
        *("train-policy", *SMALL, "--out", out, "--model", f"{own_module}:encode"),
        *("--instances", f"{own_module}:{instances}"),
        *("--params", f"{own_module}:{params}"),
    )
    assert result.exit_code == 0, result.output
    assert {key.cell for key in load(out).types} == {"leaf", "join"}


def test_instances_may_be_a_list(edbatch, own_module: str) -> None:
    result = edbatch(
        *("train-policy", *SMALL, "--model", f"{own_module}:encode"),
        *("--instances", f"{own_module}:TREES", "--params", f"{own_module}:params"),
    )
    assert result.exit_code == 0, result.output


def test_each_evaluation_is_a_row_of_metrics(edbatch, tmp_path) -> None:
    out, log, folder = (tmp_path / name for name in ("a.json", "b.csv", "events"))
    result = edbatch(*LATTICES, "--out", out, "--metrics", log, "--tensorboard", folder)
    assert result.exit_code == 0, result.output
    training = load(out).training
    curve = [(trial, round(batches, 9)) for trial, batches in training.curve]
    rows = evaluations(log)
    assert [(trial, row["held_out/batches"]) for trial, row in rows] == curve
    assert [row["held_out/best_batches"] for _, row in rows] == [
        min(batches for _, batches in curve[: k + 1]) for k in range(len(curve))
    ]
    bound = training.held_out_lower_bound
    for _, row in rows:
        assert row["held_out/lower_bound"] == pytest.approx(bound)
        ratio = row["held_out/batches"] / bound
        assert row["held_out/ratio"] == pytest.approx(ratio)
    found = [
        (step, value)
        for tag, step, value in scalars(folder)
        if tag.endswith("/batches")
    ]
    assert found == [(trial, pytest.approx(batches)) for trial, batches in curve]
    assert f"Metrics are in {log}, for TensorBoard in {folder}." in result.stderr
    assert not (tmp_path / "a.json.metrics.csv").exists()


def test_where_nothing_was_trained_there_is_one_row(edbatch, tmp_path) -> None:
    out = tmp_path / "tree.json"
    assert edbatch(*TREES, "--out", out).exit_code == 0
    [(trial, row)] = evaluations(tmp_path / "tree.json.metrics.csv")
    assert (trial, row["held_out/ratio"]) == (0, 1.0)


def test_nothing_is_logged_without_a_place_for_it(edbatch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = edbatch(*TREES)
    assert result.exit_code == 0
    assert not [*tmp_path.iterdir()]
    assert "Metrics" not in result.stderr


def test_tensorboard_has_a_csv_file_beside_it(edbatch, tmp_path) -> None:
    assert edbatch(*TREES, "--tensorboard", tmp_path / "log").exit_code == 0
    assert len(evaluations(tmp_path / "log" / "metrics.csv")) == 1


def test_without_tensorboardx_that_is_said_before_any_work(
    assert_fails, tmp_path, monkeypatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    assert_fails("pip install", *TREES, "--tensorboard", tmp_path / "log")
    assert not [*tmp_path.iterdir()]


# Parameters that the command line provides in another form.
NOT_OPTIONS = {
    *("graphs", "held_out", "workload", "progress", "checkpoint", "if_needed"),
    *("library", "config", "arrivals"),
}
OTHER_VALUES = {
    "encoding": "sort",
    "trials": 3,
    "seed": 5,
    "n_step": 2,
    "alpha": 0.25,
    "learning_rate": 0.125,
    "epsilon": 0.75,
    "generations": 1,
    "patience": 2,
}


@pytest.mark.parametrize(
    "function",
    [train_policy, train_serving_policy, train_serving_machine],
    ids=lambda each: each.__name__,
)
def test_all_settings_of_training_are_options_with_the_same_default(function):
    options = inspect.signature(command).parameters
    for name, parameter in inspect.signature(function).parameters.items():
        if name in NOT_OPTIONS:
            continue
        assert name in options, f"train-policy has no option for {name!r}"
        default = options[name].default
        # None stands for the function's default; its objective has no default.
        if default is not None and name != "objective":
            assert default == parameter.default, name


def test_all_settings_of_a_policy_arrive(edbatch, tmp_path) -> None:
    assert OTHER_VALUES.keys() == {each.name for each in fields(Settings)}
    options = [
        part
        for name, value in OTHER_VALUES.items()
        for part in (f"--{name.replace('_', '-')}", value)
    ]
    out = tmp_path / "tree.json"
    assert edbatch(*LEARN, *options, "--out", out).exit_code == 0
    record = load(out).training
    found = {name: getattr(record, name) for name in OTHER_VALUES}
    assert found | {"trials": record.max_trials} == OTHER_VALUES


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("needs a model: give --workload with one of bilstm-tagger, ", ""),
        ("no workload 'treelstm'; did you mean 'tree-lstm'", "--workload treelstm"),
        ("is one of base, max, sort, fall .* 'sort'", "{} --encoding srt"),
        ("'bilstm-tagger' has no option", "--workload bilstm-tagger --arity 3"),
        ("--params belongs to your own model", "{} --params a:b"),
        ("--instances belongs to your own model", "{} --instances a:b"),
        ("--resume continues .* next to --out but --out is missing", "{} --resume"),
        ("--out names a file in an existing folder", "{} --out no/x.json"),
        ("--out names a file but . is a folder", "{} --out ."),
        ("no-such.ptb: a path to read must exist", "{} --data no-such.ptb"),
        ("Invalid value for '--batch-size'", "{} --batch-size 0"),
        ("Invalid value for '--trials'.*--help'", "{} --trials many"),
        ("No such option: --trails.*--trials.*train-policy --help", "--trails 3"),
    ],
)
def test_what_cannot_be_done_is_said(assert_fails, message, arguments) -> None:
    given = arguments.format("--workload tree-lstm").split()
    assert_fails(message, "train-policy", *given)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("a.ptb, line 2, column 3: every '\\(' must be closed", "(S (A a)\n(B"),
        ("a.ptb, line 1, column 1: every word must stand inside a tree", "oops"),
        ("a.ptb: a file must hold some text; found an empty file", ""),
        ("needs 3 instances or more, .* but there are 1", "(S (A a) (B b))"),
    ],
)
def test_what_is_wrong_with_data_is_said(
    assert_fails, tmp_path: Path, message: str, text: str
) -> None:
    (tmp_path / "a.ptb").write_text(text)
    assert_fails(message, *TREES, "--data", tmp_path / "a.ptb")


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("--workload belongs to the ready workloads", {"workload": "tree-lstm"}),
        ("--data belongs to the ready workloads", {"data": "a.ptb"}),
        ("needs --instances: a function", {"instances": None}),
        ("takes package.module:function, such as", {"model": "own"}),
        ("module 'no_such_module' but there is none", {"model": "no_such_module:f"}),
        ("has no 'encod'; did you mean 'encode'", {"model": "{}:encod"}),
        ("--model names a function .* is a list", {"model": "{}:TREES"}),
        ("takes no argument, or 2, .* with .one, two", {"instances": "{}:of_three"}),
        ("returned no instance", {"instances": "{}:nothing"}),
        ("returns a list .* but it returned int", {"instances": "{}:number"}),
        ("ValueError: forgot the data .own_.*py:48", {"instances": "{}:forgetful"}),
        ("with .Generator, int., raised TypeError", {"instances": "{}:of_defaults"}),
        ("the model raised KeyError: 'oh' .own_.*DEBUG=1", {"model": "{}:broken"}),
        ("asks for a value .own_.*py:[0-9]+., .* known only", {"model": "{}:asking"}),
        ("arithmetic .add. outside a cell .own_", {"model": "{}:outside"}),
        (r"called sys.exit\(3\) .own_.*py:[0-9]+", {"model": "{}:leaving"}),
        (
            "KeyError: there is no key 'embedding'.*no parameters.*--params",
            {"params": None},
        ),
    ],
)
def test_what_is_wrong_with_ones_own_model_is_said(
    assert_fails, own_module: str, message: str, options: dict[str, str | None]
) -> None:
    given: dict[str, str | None] = {
        "model": "{}:encode",
        "instances": "{}:trees",
        "params": "{}:params",
    }
    given |= options
    arguments = [
        text
        for name, value in given.items()
        if value is not None
        for text in (f"--{name}", value.format(own_module))
    ]
    assert_fails(message, "train-policy", *SMALL, *arguments)


def test_on_a_real_treebank_the_lower_bound_is_met(edbatch, shared_data: Path) -> None:
    data = shared_data / "gum_const" / "const"
    result = edbatch(
        "train-policy", "--workload", "tree-lstm", "--data", data, "--json"
    )
    assert result.exit_code == 0, result.output
    assert NO_POLICY in result.stderr
    learned, _, agenda, remaining, *_ = json.loads(result.stdout)["rows"]
    assert learned["worst_ratio"] == agenda["worst_ratio"] == 1
    assert learned["unseen_states"] == 0
    assert remaining["batches"] > 1.1 * learned["batches"]


def test_training_by_measured_cost(edbatch, treebank, tmp_path) -> None:
    plain, by_cost, file = (tmp_path / f"{name}.json" for name in ("a", "b", "costs"))
    result = edbatch(*LEARN, "--data", treebank, "--out", plain)
    assert result.exit_code == 0, result.output
    types = load(plain).types
    overhead = {"leaf": 1.0, "compose": 9.0, "classify": 2.0}
    CostModel(
        types=types,
        widths=(64,),
        chunk_us=tuple((overhead[key.cell],) for key in types),
        measured_widths=(1,) * len(types),
        batches=tuple(1.0 for _ in types),
        switch_us=0.0,
    ).save(file)
    result = edbatch(*LEARN, "--data", treebank, "--out", by_cost, "--costs", file)
    assert result.exit_code == 0, result.output
    records = [load(each).training for each in (plain, by_cost)]
    assert all(record is not None for record in records)
    count, cost = (record.held_out_lower_bound for record in records if record)
    assert count == round(count)
    assert cost != pytest.approx(count)  # in units of an average batch
    result = edbatch(*TREES, "--data", treebank, "--costs", tmp_path / "none.json")
    assert result.exit_code == 2
    assert "none.json" in result.stderr
