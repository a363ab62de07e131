"""The training loop of the scripts: resumed, stopped by a loss, and plotted."""

import csv
import dataclasses
import json
import math
import sys

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from event_files import scalars
from trees import encode, make_params, sample_trees

import edbatch as eb

TREES = sample_trees(0, 9)
STEPS = 4  # per epoch


@pytest.fixture(scope="module")
def batched():
    return eb.batch(encode, params=make_params(), sizes=eb.Sizes(widths=(4, 16)))


@pytest.fixture(scope="module")
def task(experiment, batched):
    def loss(params, plan, targets):
        return jnp.mean((batched.apply(params, plan)[0] - targets[:, None]) ** 2)

    return experiment.Task(
        name="trees",
        batched=batched,
        params=make_params(),
        loss=loss,
        optimizer=optax.adam(0.03),
        instances=TREES,
        targets=np.linspace(-1, 1, 9, dtype=np.float32),
        judge=lambda params: {"size": float(optax.tree.norm(params["join"]))},
        test=lambda params: {"bias": float(params["join"].sum())},
    )


@pytest.fixture(scope="module")
def make_arguments(experiment, tmp_path_factory):
    def make(**changes):
        defaults = experiment.TrainingArguments(
            out=tmp_path_factory.mktemp("run"), epochs=3, batch_size=2, progress_steps=2
        )
        return dataclasses.replace(defaults, **changes)

    return make


@pytest.fixture(scope="module")
def whole(experiment, task, make_arguments):
    """An uninterrupted run."""
    return experiment.train(task, make_arguments())


def stop_after(steps, monkeypatch):
    """Ends loops over loaders after `steps` items, as if the process was killed."""
    going = eb.Loader.epochs

    def epochs(self, count=None):
        for taken, item in enumerate(going(self, count)):
            if taken == steps:
                raise KeyboardInterrupt
            yield item

    monkeypatch.setattr(eb.Loader, "epochs", epochs)


def test_a_run_has_a_loss_per_step_and_metrics_per_epoch(whole):
    assert len(whole.losses) == 3 * STEPS
    assert [each["epoch"] for each in whole.epochs] == [0, 1, 2]
    means = np.reshape(whole.losses, (3, STEPS)).mean(1)
    np.testing.assert_allclose([each["loss"] for each in whole.epochs], means)
    assert means[2] < 0.9 * means[0]
    best = whole.best("size")
    assert best["held_out"]["size"] == max(e["held_out"]["size"] for e in whole.epochs)
    assert "bias" in best["test"]


def logged(arguments, name):
    """Steps and values of a metric, in the order of writing."""
    with open(arguments.out / "metrics.csv", newline="") as file:
        rows = [*csv.DictReader(file)]
    return [(int(row["step"]), float(row[name])) for row in rows if row[name]]


def check_log(arguments, history):
    losses = [*enumerate(history.losses, start=1)]
    assert logged(arguments, "loss") == losses
    assert logged(arguments, "held_out/size") == [
        ((each["epoch"] + 1) * STEPS, each["held_out"]["size"])
        for each in history.epochs
    ]
    assert logged(arguments, "test/bias") == [
        ((each["epoch"] + 1) * STEPS, each["test"]["bias"])
        for each in history.epochs
        if "test" in each
    ]


def test_a_run_writes_all_metrics_while_it_runs(experiment, task, make_arguments):
    arguments = make_arguments(tensorboard=True)
    history = experiment.train(task, arguments)
    check_log(arguments, history)
    found = scalars(arguments.out / "tensorboard")
    losses = [(step, value) for name, step, value in found if name == "loss"]
    assert losses == [
        (step, pytest.approx(loss)) for step, loss in enumerate(history.losses, 1)
    ]
    assert {name for name, *_ in found} >= {"held_out/size", "test/bias", "epoch_loss"}


@pytest.mark.parametrize("killed_after", [3, 5, STEPS, 2 * STEPS + 1])
@pytest.mark.parametrize("checkpoint_steps", [0, 1, 3])
def test_a_killed_run_goes_on_to_the_same_curve(
    experiment, task, make_arguments, whole, killed_after, checkpoint_steps, capsys
):
    arguments = make_arguments(checkpoint_steps=checkpoint_steps)
    with pytest.MonkeyPatch.context() as patch:
        stop_after(killed_after, patch)
        with pytest.raises(KeyboardInterrupt):
            experiment.train(task, arguments)
    capsys.readouterr()
    resumed = dataclasses.replace(arguments, resume=True)
    assert experiment.train(task, resumed) == whole
    every = checkpoint_steps or STEPS
    last = max(killed_after // every * every, killed_after // STEPS * STEPS)
    # A step is checked, and then saved, before the loop takes the next item.
    begun = "beginning anew" if last == 0 else f"going on from step {last}"
    assert begun in capsys.readouterr().out
    check_log(arguments, whole)


def test_a_finished_run_goes_on_for_more_epochs(
    experiment, task, make_arguments, whole
):
    arguments = make_arguments(epochs=2)
    experiment.train(task, arguments)
    more = dataclasses.replace(arguments, epochs=3, resume=True)
    assert experiment.train(task, more) == whole
    assert experiment.train(task, more) == whole  # there is nothing left to do


def test_a_loss_that_is_not_finite_ends_the_run(
    experiment, task, make_arguments, whole
):
    order = eb.Loader(task.batched, TREES, 2, drop_last=True)
    bad = next(k for k, item in enumerate(order) if 5 in item.index)
    targets = task.targets.copy()
    targets[5] = np.nan
    arguments = make_arguments(checkpoint_steps=1)
    with pytest.raises(SystemExit) as caught:
        experiment.train(dataclasses.replace(task, targets=targets), arguments)
    message = str(caught.value)
    assert f"the loss is nan at step {bad} of epoch 0, instances [" in message
    folder = arguments.out / "checkpoints"
    if bad == 0:
        assert message.endswith("there is no checkpoint yet")
    else:
        assert message.endswith(f"the last good checkpoint is {folder / str(bad)}")
    mended = dataclasses.replace(arguments, resume=True)
    assert experiment.train(task, mended) == whole


def test_parameters_that_are_not_finite_end_the_run(experiment, task, make_arguments):
    task = dataclasses.replace(task, optimizer=optax.sgd(float("inf")))
    with pytest.raises(SystemExit, match="must leave loss and parameters finite, but"):
        experiment.train(task, make_arguments())


def test_a_metric_that_is_no_number_is_the_lowest(experiment):
    held_out = [math.nan, -0.5, 0.9, math.nan, 0.8]
    epochs = [{"epoch": k, "held_out": {"r": r}} for k, r in enumerate(held_out)]
    assert experiment.History(epochs=epochs).best("r")["epoch"] == 2
    assert experiment.History(epochs=epochs[:1]).best("r")["epoch"] == 0


def test_epochs_after_one_without_a_number_are_judged(experiment, task, make_arguments):
    sizes = iter([math.nan, 0.5, 0.4])
    judged = dataclasses.replace(task, judge=lambda params: {"size": next(sizes)})
    found = experiment.train(judged, make_arguments())
    assert ["test" in each for each in found.epochs] == [True, True, False]


def test_a_folder_with_another_run_is_left_alone(experiment, task, make_arguments):
    arguments = make_arguments(epochs=1)
    experiment.train(task, arguments)
    with pytest.raises(SystemExit, match="has checkpoints of an earlier run; go on wi"):
        experiment.train(task, arguments)
    changed = dataclasses.replace(arguments, resume=True, learning_rate=0.5)
    with pytest.raises(SystemExit, match=r"but --learning-rate is 0\.5 and was 0\.05;"):
        experiment.train(task, changed)
    other = dataclasses.replace(task, instances=TREES[::-1])
    with pytest.raises(eb.LoaderError, match="its instances are not this loader's"):
        experiment.train(other, dataclasses.replace(arguments, resume=True))


def test_metrics_and_curve_are_written(experiment, task, whole, tmp_path, capsys):
    experiment.report(task, whole, tmp_path)
    assert "best: epoch " in capsys.readouterr().out
    found = json.loads((tmp_path / "metrics.json").read_text())
    assert found["losses"] == whole.losses
    assert found["best"] == whole.best("size")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_there_are_metrics(
    experiment, task, whole, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    experiment.report(task, whole, tmp_path)
    assert "no curve: a picture needs matplotlib" in capsys.readouterr().out
    assert (tmp_path / "metrics.json").exists()


def test_no_epoch(experiment, task, make_arguments, capsys):
    arguments = make_arguments(epochs=0)
    history = experiment.train(task, arguments)
    experiment.report(task, history, arguments.out)
    assert "no epoch was run" in capsys.readouterr().out
