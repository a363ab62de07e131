"""`edbatch compare`."""

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from comparison_rows import KEYS

import edbatch as eb
from edbatch.cli import minibatches
from edbatch.data import parse_trees
from edbatch.models import get_workload
from edbatch.policies import StateMachine, get_policy

pytestmark = pytest.mark.usefixtures("quick_compiles")

SMALL = ("--batch-size", 4, "--minibatches", 3)
TREES = ("compare", "--workload", "tree-lstm", *SMALL, "--policy")
LATTICES = ("compare", "--workload", "lattice-lstm", "--policy", "zoo:lattice-lstm")
HEURISTICS = ["agenda", "agenda-remaining", "depth", "greedy"]
POLICIES = ["learned", "learned alone", "searched", *HEURISTICS]
EXACT = ["proven_bound", "ratio_to_proven", "proven_optimal"]


def test_a_list_of_rows_as_json(edbatch, policy_file: Path) -> None:
    result = edbatch(*TREES, policy_file, "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [row["policy"] for row in rows] == POLICIES
    assert all(list(row) == KEYS for row in rows)
    assert {row["batch_size"] for row in rows} == {4}
    assert len({row["lower_bound"] for row in rows}) == 1
    assert all(row["schedule_us_per_node"] > 0 for row in rows)
    learned, alone, searched, agenda, remaining, depth, greedy = rows
    assert alone["batches"] == agenda["batches"]
    assert learned["batches"] == greedy["batches"] == learned["lower_bound"]
    assert searched["batches"] == learned["batches"]
    assert depth["batches"] > remaining["batches"] >= greedy["batches"]
    assert learned["mean_ratio"] == 1 < depth["mean_ratio"] <= depth["worst_ratio"]


def test_the_numbers_are_those_of_the_minibatches(
    edbatch, policy_file: Path, treebank: Path
) -> None:
    # The whole treebank is one minibatch, so the drawn instances are known.
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
        batched = eb.batch(workload.model, policy, params=params, guard=False)
        report = batched.plan(trees).report
        assert report is not None
        assert rows[name]["batches"] == report.batches
    for ratio in ("mean_ratio", "worst_ratio"):
        assert rows["depth"][ratio] == pytest.approx(
            rows["depth"]["batches"] / rows["depth"]["lower_bound"], abs=1e-4
        )


def test_a_table_for_people(edbatch, policy_file: Path) -> None:
    result = edbatch(*TREES, policy_file)
    assert result.exit_code == 0, result.output
    title = "tree-lstm on sampled instances: means of 3 minibatches of 4"
    for text in (*POLICIES, "batches", "mean", "worst", title):
        assert text in result.stdout
    assert "size" not in result.stdout  # all minibatches have one size
    assert "proves" not in result.stdout


def test_memory_before_and_after(edbatch, policy_file: Path) -> None:
    result = edbatch(*TREES, policy_file, "--memory", "--hidden", 8, "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    labels = [(row["policy"], row["layout"]) for row in rows]
    layouts = ("schedule", "aligned")
    names = ("learned", "agenda", "depth")
    assert labels == [(name, layout) for name in names for layout in layouts]
    for before, after in zip(rows[::2], rows[1::2], strict=True):
        assert before["operand_bytes"] == after["operand_bytes"]
        assert before["in_place_bytes"] <= after["in_place_bytes"]
        for row in (before, after):
            read = row["in_place_bytes"] + row["gathered_bytes"]
            assert read == pytest.approx(row["operand_bytes"])
            assert row["peak_bytes"] <= row["reuse_bytes"] <= row["arena_bytes"]
    table = edbatch(*TREES, policy_file, "--memory").output
    assert all(head in table for head in ("in place", "aligned", "reused"))


def test_several_sizes(edbatch, policy_file: Path, tmp_path: Path) -> None:
    sizes = ("--batch-size", 2, "--batch-size", 5, "--batch-size", 2)
    options = ("--policy", policy_file, *sizes, "--minibatches", 2)
    command = ("compare", "--workload", "tree-lstm", *options)
    rows = json.loads(edbatch(*command, "--json").stdout)
    assert [(row["batch_size"], row["policy"]) for row in rows] == [
        (size, policy) for size in (2, 5) for policy in POLICIES
    ]
    assert rows[0]["lower_bound"] < rows[-1]["lower_bound"]
    picture = tmp_path / "sizes.svg"
    result = edbatch(*command, "--plot", picture)
    assert result.exit_code == 0, result.output
    assert "2 minibatches of 2, 5" in result.stdout
    assert "Minibatches of 5" in result.stdout
    assert f"The picture is in {picture}." in result.stderr
    assert "<!-- instances per minibatch -->" in picture.read_text()


def test_a_picture_of_one_size(edbatch, policy_file: Path, tmp_path: Path) -> None:
    picture = tmp_path / "one.svg"
    result = edbatch(*TREES, policy_file, "--plot", picture, "--json")
    assert result.exit_code == 0, result.output
    text = picture.read_text()
    for name in (
        "learned alone",
        "searched",
        "batches / lower bound",
        "batches per minibatch",
    ):
        assert f"<!-- {name} -->" in text


def test_without_time_there_is_no_search(edbatch, policy_file: Path) -> None:
    result = edbatch(*TREES, policy_file, "--search-ms", 0, "--json")
    rows = json.loads(result.stdout)
    assert [row["policy"] for row in rows] == ["learned", "learned alone", *HEURISTICS]


def test_learned_is_guarded_and_a_policy_that_greedy_beats_is_said_to_be(
    edbatch, tmp_path: Path
) -> None:
    known = get_policy("zoo:lattice-lstm")
    assert isinstance(known, StateMachine)
    # Runs the last type of the frontier in every state that the trained policy knows.
    states = tuple(replace(each, action=each.frontier[-1]) for each in known.states)
    file = replace(known, states=states).save(tmp_path / "poor.json")
    result = edbatch(*LATTICES[:-1], file, *SMALL, "--search-ms", 0, "--json")
    assert result.exit_code == 0, result.output
    rows = {row["policy"]: row for row in json.loads(result.stdout)}
    assert rows["learned alone"]["batches"] > rows["greedy"]["batches"]
    assert rows["learned"]["batches"] == rows["greedy"]["batches"]
    says = "At 4 instances per minibatch greedy runs fewer batches than the policy"
    assert says in result.stderr
    assert says not in edbatch(*LATTICES, *SMALL, "--search-ms", 0).stderr


def test_a_search_saves_batches(edbatch) -> None:
    result = edbatch(*LATTICES, *SMALL, "--search-ms", 500, "--json")
    assert result.exit_code == 0, result.output
    learned, _, searched, *_ = json.loads(result.stdout)
    assert searched["batches"] < learned["batches"]
    assert searched["batches"] >= searched["lower_bound"]


def test_the_optimum(edbatch, treebank: Path) -> None:
    options = ("--policy", "zoo:tree-lstm", *SMALL, "--exact")
    command = ("compare", "--workload", "tree-lstm", "--data", treebank, *options)
    rows = json.loads(edbatch(*command, "--json").stdout)
    assert all(list(row) == KEYS + EXACT for row in rows)
    for row in rows:
        assert row["lower_bound"] <= row["proven_bound"] <= row["batches"]
        assert row["ratio_to_proven"] >= 1
    learned, _, _, _, agenda, depth, _ = rows
    assert learned["proven_bound"] == learned["batches"]
    assert (learned["ratio_to_proven"], learned["proven_optimal"]) == (1, 3)
    assert depth["ratio_to_proven"] > agenda["ratio_to_proven"]
    assert depth["proven_optimal"] < 3
    result = edbatch(*command)
    assert "against a bound that an exact search proves" in result.stdout


def test_held_out_instances_are_those_that_training_did_not_see(
    edbatch, treebank: Path, tmp_path: Path, monkeypatch
) -> None:
    text = (treebank / "a.ptb").read_text()
    (treebank / "b.ptb").write_text(text * 5)
    drawn: list[set[int]] = []

    def record(task, *groups):
        drawn.append({int(k) for group in groups for each in group for k in each})
        drawn.extend({int(k) for each in group for k in each} for group in groups)
        return unpatched(task, *groups)

    unpatched = minibatches.record
    monkeypatch.setattr(minibatches, "record", record)
    out = tmp_path / "tree.json"
    same = ("--workload", "tree-lstm", "--data", treebank, "--seed", 7)
    options = ("--batch-size", 2, "--minibatches", 20)
    assert edbatch("train-policy", *same, *options, "--out", out).exit_code == 0
    _, to_train, to_judge, reported, *_ = drawn
    drawn.clear()
    result = edbatch("compare", *same, *options, "--policy", out, "--held-out")
    assert result.exit_code == 0, result.output
    held_out, _ = drawn
    assert held_out == reported
    assert len(held_out) == round(24 / 5)
    assert not to_train & to_judge and not (to_train | to_judge) & reported


def test_held_out_instances_of_no_data(assert_fails, policy_file: Path) -> None:
    assert_fails(
        "--held-out divides the data .* but no data are given, .* add --data, or leave",
        *(*TREES, policy_file, "--held-out"),
    )


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
    for more in ((), ("--held-out",)):
        result = edbatch("compare", *own, "--policy", out, "--json", *more)
        assert result.exit_code == 0, result.output
        assert len(json.loads(result.stdout)) == len(POLICIES)


@pytest.mark.parametrize(
    ("message", "name", "text"),
    [
        ("there is no policy file .*missing.json", "missing.json", None),
        ("a heuristic, zoo:NAME, or the path .* 'greedy'", "gredy", None),
        ("zoo: and the name of its workload .* 'tree-lstm'", "zoo:tree-lsmt", None),
        ("bad.json ends too early and is truncated", "bad.json", '{"format": "edb'),
        ("bad.json is not ", "bad.json", "hello"),
        ("bad.json is empty", "bad.json", ""),
        ("is other JSON", "bad.json", "[1, 2]"),
        (
            r"up to version \d but .*bad.json has version 99",
            "bad.json",
            '{"format": "edbatch-policy", "version": 99}',
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


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("Missing option '--policy'", ()),
        ("Invalid value for '--search-ms'", ("--policy", "x.json", "--search-ms", -1)),
        ("--plot writes .png, .pdf", ("--policy", "greedy", "--plot", "a.jpg")),
        ("existing folder but no ", ("--policy", "greedy", "--plot", "no/a.png")),
        *(
            (f"{option[0]} belongs to the .* but --memory", ("--memory", *option))
            for option in (("--plot", "a.png"), ("--exact",), ("--search-ms", 20))
        ),
    ],
)
def test_what_cannot_be_done_is_said(assert_fails, message, options) -> None:
    if "--memory" in options:
        options = (*options, "--policy", "greedy")
    assert_fails(message, "compare", "--workload", "tree-lstm", *options)


def test_held_out_instances_of_a_function_of_their_number(
    edbatch, assert_fails, own_module: str, tmp_path: Path
) -> None:
    """They are split as in training, whatever the size of the minibatches."""
    asked = []
    sys.path.insert(0, str(tmp_path))  # `own_module` restores it
    module = importlib.import_module(own_module)
    sampled = module.sampled

    def counted(rng, count):
        asked.append(count)
        return sampled(rng, count)

    module.sampled = counted
    out = tmp_path / "own.json"
    same = ("--model", f"{own_module}:encode", "--params", f"{own_module}:params")
    same += ("--instances", f"{own_module}:sampled", "--minibatches", 2)
    options = ("--batch-size", 150, "--trials", 1, "--train-anyway", "--out", out)
    result = edbatch("train-policy", *same, *options)
    assert result.exit_code == 0, result.output
    for size in (150, 4, 200):
        options = ("--batch-size", size, "--search-ms", 0, "--policy", out)
        result = edbatch("compare", *same, *options, "--held-out")
        assert result.exit_code == 0, result.output
    assert asked == [600] * 4
    assert_fails(
        "'greedy' has no record of one",
        *("compare", *same, "--policy", "greedy", "--held-out"),
    )


def test_json_alone_though_the_model_prints(edbatch, own_module: str) -> None:
    result = edbatch(
        *("calibrate", "--json", "--batch-size", 2, "--minibatches", 1, "--rounds", 1),
        *("--model", f"{own_module}:printing", "--params", f"{own_module}:params"),
        *("--instances", f"{own_module}:trees"),
    )
    assert result.exit_code == 0, result.output
    assert "from the model" in result.stderr
    assert "from the model" not in result.stdout
    json.loads(result.stdout)
