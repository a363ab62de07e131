"""`edbatch train-policy`, interrupted and resumed."""

import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from rich.progress import Progress
from training_commands import LATTICES, TREES, evaluations, load

from edbatch.graph import TypeKey
from edbatch.policies import CostModel, load_costs, warm_up
from edbatch.policies.fsm import episode


def press_ctrl_c_at_trial(monkeypatch: pytest.MonkeyPatch, pressed_at: int) -> None:
    update = Progress.update

    def press(bar, task, **fields):
        if fields.get("completed", 0) >= pressed_at and "found" in fields:
            os.kill(os.getpid(), signal.SIGINT)
        update(bar, task, **fields)

    monkeypatch.setattr(Progress, "update", press)


@pytest.mark.parametrize("encoding", ["fall", "sort"])
def test_ctrl_c_keeps_the_best_policy_so_far(
    edbatch, tmp_path, monkeypatch, encoding
) -> None:
    press_ctrl_c_at_trial(monkeypatch, 1)
    before = signal.getsignal(signal.SIGINT)
    out = tmp_path / "lattice.json"
    result = edbatch(*LATTICES, "--encoding", encoding, "--out", out, "--json")
    assert result.exit_code == 130
    assert json.loads(result.stdout)["training"]["stopped"] == "interrupted"
    assert "Training was interrupted" in result.stderr
    assert "The same command with --resume goes on" in result.stderr
    training = load(out).training
    assert training is not None
    assert training.stopped == "interrupted"
    assert 1 <= training.trials < 40
    assert signal.getsignal(signal.SIGINT) is before
    assert (tmp_path / "lattice.json.checkpoint").is_file()


def test_a_checkpoint_is_not_replaced_without_a_word(
    edbatch, tmp_path, monkeypatch
) -> None:
    out = tmp_path / "lattice.json"
    with monkeypatch.context() as patch:
        press_ctrl_c_at_trial(patch, 1)
        first = edbatch(*LATTICES, "--out", out)
    assert first.exit_code == 130 and "from the beginning" not in first.stderr
    again = edbatch(*LATTICES, "--out", out)
    assert again.exit_code == 0
    note = (
        "starts from the beginning and will replace .*lattice.json.checkpoint, .* with"
        " --resume it would continue"
    )
    assert re.search(note, again.stderr)


@pytest.mark.parametrize("pressed_at", [0, 1, 9])
def test_a_resumed_training_gives_the_same_policy(
    edbatch, tmp_path, monkeypatch, pressed_at
) -> None:
    # At trial 0 the weights of the smoothed bound are still being tuned.
    whole, out = tmp_path / "whole.json", tmp_path / "resumed.json"
    assert edbatch(*LATTICES, "--out", whole).exit_code == 0
    with monkeypatch.context() as patch:
        press_ctrl_c_at_trial(patch, pressed_at)
        assert edbatch(*LATTICES, "--out", out).exit_code == 130
    assert load(out).training.trials < load(whole).training.trials
    result = edbatch(*LATTICES, "--out", out, "--resume")
    assert result.exit_code == 0, result.output
    found, expected = load(out), load(whole)
    assert found.states == expected.states
    assert found.weights == expected.weights
    assert found.training.curve == expected.training.curve
    logs = [each.with_name(f"{each.name}.metrics.csv") for each in (whole, out)]
    assert {*tmp_path.iterdir()} == {whole, out, *logs}  # no checkpoint is left
    first, second = map(evaluations, logs)
    assert first == second


def test_ctrl_c_before_training_leaves_what_was_there(
    edbatch, tmp_path, monkeypatch
) -> None:
    out = tmp_path / "lattice.json"
    with monkeypatch.context() as patch:
        press_ctrl_c_at_trial(patch, 1)
        assert edbatch(*LATTICES, "--out", out).exit_code == 130
    left = {each: each.read_bytes() for each in tmp_path.iterdir()}
    run_trial = episode.run_trial

    def press(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return run_trial(*arguments)

    warm_up.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(episode, "run_trial", press)
        result = edbatch(*LATTICES, "--out", out, "--resume")
    assert result.exit_code == 130, result.output
    assert result.stderr.endswith("Interrupted.\n")
    assert {each: each.read_bytes() for each in tmp_path.iterdir()} == left
    assert edbatch(*LATTICES, "--out", out, "--resume").exit_code == 0


def test_metrics_whose_last_line_is_cut(
    edbatch, assert_fails, tmp_path, monkeypatch
) -> None:
    whole, out = tmp_path / "whole.json", tmp_path / "lattice.json"
    assert edbatch(*LATTICES, "--out", whole).exit_code == 0
    with monkeypatch.context() as patch:
        press_ctrl_c_at_trial(patch, 9)
        assert edbatch(*LATTICES, "--out", out).exit_code == 130
    metrics, expected = (
        each.with_name(f"{each.name}.metrics.csv") for each in (out, whole)
    )
    text = metrics.read_bytes()
    metrics.write_bytes(text + text.splitlines()[-1][:-3] + b"\0,")
    assert edbatch(*LATTICES, "--out", out, "--resume").exit_code == 0
    assert evaluations(metrics) == evaluations(expected)
    with monkeypatch.context() as patch:
        press_ctrl_c_at_trial(patch, 9)
        assert edbatch(*LATTICES, "--out", out).exit_code == 130
    metrics.write_bytes(text[:-1] + b"\xff\n")
    message = r"metrics are added to a file .*lattice\.json\.metrics\.csv is none, or"
    assert_fails(message, *LATTICES, "--out", out, "--resume")


def test_what_is_wrong_with_a_checkpoint_is_said(
    edbatch, assert_fails, tmp_path, monkeypatch
) -> None:
    out = tmp_path / "lattice.json"
    resume = ("--out", out, "--resume")
    assert_fails("lattice.json.checkpoint, which .* no such file", *LATTICES, *resume)
    with monkeypatch.context() as patch:
        press_ctrl_c_at_trial(patch, 1)
        assert edbatch(*LATTICES, "--out", out).exit_code == 130
    wrong = (
        ("but 'seed' is 5 now and was 0", "--seed", 5),
        ("but 'encoding' is 'sort' now and was 'fall'", "--encoding", "sort"),
        ("minibatches .* have changed", "--batch-size", 5),
    )
    for message, name, value in wrong:
        assert_fails(message, *LATTICES, *resume, name, value)
    others = tmp_path.with_suffix(".costs.json")
    CostModel((TypeKey("a", "", 0),), (4,), ((2.5,),), (1,), (1.0,)).save(others)
    wrong = (*wrong[:2], ("costs that it began with", "--costs", others))
    with monkeypatch.context() as patch:  # before anything is recorded
        patch.setattr("edbatch.cli.train_policy._record", None)
        for message, name, value in wrong:
            assert_fails(message, *LATTICES, *resume, name, value)
        (tmp_path / "lattice.json.checkpoint").write_text("hello")
        assert_fails("lattice.json.checkpoint", *LATTICES, *resume)
    # Without --resume a training starts afresh, whatever checkpoint exists.
    assert edbatch(*LATTICES, "--out", out).exit_code == 0
    assert {*tmp_path.iterdir()} == {out, tmp_path / "lattice.json.metrics.csv"}


def test_a_training_by_costs_is_resumed_by_the_same(
    edbatch, assert_fails, tmp_path, monkeypatch
) -> None:
    costs, others, out = (tmp_path / f"{name}.json" for name in ("costs", "b", "out"))
    own = _costs_of_lattices(edbatch, costs)
    replace(own, chunk_us=tuple((1.0 + k,) for k in range(len(own.types)))).save(others)
    with monkeypatch.context() as patch:
        press_ctrl_c_at_trial(patch, 1)
        assert edbatch(*LATTICES, "--out", out, "--costs", costs).exit_code == 130
    with monkeypatch.context() as patch:
        patch.setattr("edbatch.cli.train_policy._record", None)
        for wrong in ((), ("--costs", others)):
            message = "costs that it began with .*; give the same"
            assert_fails(message, *LATTICES, "--out", out, "--resume", *wrong)
    resume = ("--out", out, "--resume", "--costs", costs)
    assert edbatch(*LATTICES, *resume).exit_code == 0


def _costs_of_lattices(edbatch, file) -> CostModel:
    """Made-up costs that differ by type, read back from `file`."""
    policy = file.with_name("policy.json")
    assert edbatch(*LATTICES, "--out", policy).exit_code == 0
    types = load(policy).types
    times = tuple((2.0 + k * k,) for k in range(len(types)))
    ones = (1,) * len(types)
    costs = CostModel(types, (4,), times, ones, tuple(map(float, ones)))
    costs.save(file)
    return load_costs(file)


def test_ctrl_c_before_training_writes_nothing(edbatch, tmp_path, monkeypatch) -> None:
    def press_ctrl_c(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("edbatch.cli.minibatches.record", press_ctrl_c)
    out = tmp_path / "tree.json"
    result = edbatch(*TREES, "--out", out)
    assert result.exit_code == 130
    assert result.stderr.endswith("Interrupted.\n")
    assert result.stdout == ""
    assert not out.exists()


def test_resuming_without_a_checkpoint_is_said_before_the_work(
    assert_fails, tmp_path
) -> None:
    out = tmp_path / "lattice.json"
    resumed = (*LATTICES, "--out", out, "--resume")
    assert_fails(r"no such file; start it without --resume", *resumed)
    out.write_text("{}")
    assert_fails(r"lattice.json is there, so that training has ended", *resumed)


def test_a_policy_that_cannot_be_saved_leaves_what_was_found(
    assert_fails, edbatch, tmp_path, monkeypatch
) -> None:
    out, other = tmp_path / "out.json", tmp_path / "other" / "out.json"

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("edbatch.policies.files.json_file.write_whole", refuse)
        assert_fails(
            rf"name another, and rename .*{out.name}\.checkpoint to its name with",
            *(*LATTICES, "--out", out),
        )
    other.parent.mkdir()
    Path(f"{out}.checkpoint").rename(f"{other}.checkpoint")
    assert edbatch(*LATTICES, "--out", other, "--resume").exit_code == 0
    assert other.exists()
