"""The training loop shared by the training scripts in this folder.

It prints progress, evaluates the parameters after each epoch, and writes to one folder:
Orbax checkpoints, `metrics.csv` with a row per step while it runs, event files for
TensorBoard if requested, and at the end `metrics.json` and `curve.png`. A run that was
killed can resume from its last checkpoint and reaches the same curve. A non-finite loss
or parameter ends the run; the last good checkpoint is kept.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import optax
import orbax.checkpoint as ocp
from jax import Array

import edbatch as eb
from edbatch.errors import MissingMatplotlibError, TrainingError
from edbatch.metric_log import MetricLog
from edbatch.plot.figure import new_figure
from edbatch.training import Learned, Trainer

from arguments import option

# Options that may differ between a run and the run that resumes it.
_FREE = (
    *("out", "resume", "data", "epochs", "checkpoint_steps", "progress_steps"),
    "tensorboard",
)


@dataclass(frozen=True)
class TrainingArguments:
    out: Path = option(Path("training"), "Folder for checkpoints, metrics and curve.")
    resume: bool = option(False, "Whether to go on from the folder's last checkpoint.")
    epochs: int = option(10, "How often to go through the data.")
    batch_size: int = option(25, "Instances per minibatch.")
    learning_rate: float = option(0.05, "Size of the optimizer's steps.")
    hidden: int = option(128, "Length of the model's states.")
    group_by_size: bool = option(False, "Whether minibatches are of similar size.")
    seed: int = option(0, "Seed of the parameters and of the order of the data.")
    checkpoint_steps: int = option(0, "Steps between checkpoints; 0 for one per epoch.")
    progress_steps: int = option(50, "Steps between lines of progress; 0 for none.")
    tensorboard: bool = option(False, "Whether to write event files for TensorBoard.")


@dataclass(frozen=True, eq=False)
class Task:
    """A training task.

    Attributes:
        name: Title of the curve.
        batched: The batched model.
        params: The initial parameters.
        loss: ``loss(params, plan, targets)``, a number to minimise; traced by JAX.
        optimizer: The Optax optimizer.
        instances: The training data.
        targets: A row for each instance, or None if instances contain their targets.
        judge: Returns metrics of parameters on held-out data; for the first metric,
            higher is better. Called after each epoch.
        test: Returns metrics on test data; called after each epoch that is the best so
            far.
    """

    name: str
    batched: eb.Batched
    params: Any
    loss: Callable[[Any, eb.Plan, Any], Array]
    optimizer: optax.GradientTransformation
    instances: Sequence[Any]
    judge: Callable[[Any], dict[str, float]]
    test: Callable[[Any], dict[str, float]]
    targets: np.ndarray | None = None


@dataclass
class History:
    """The history of a run: the loss of each step, and a dict of metrics per epoch."""

    losses: list[float] = field(default_factory=list)
    epochs: list[dict[str, Any]] = field(default_factory=list)

    def best(self, metric: str) -> dict[str, Any]:
        """Returns the epoch with the highest value of a held-out metric."""
        return max(self.epochs, key=lambda each: _rank(each["held_out"][metric]))


def _rank(metric: float) -> float:
    """Returns a sort key; NaN, such as a correlation with a constant, is lowest."""
    return -math.inf if math.isnan(metric) else metric


def run(task: Task, arguments: TrainingArguments) -> History:
    """Trains, prints the best epoch, and writes metrics and curve.

    Args:
        task: The task.
        arguments: The command line.

    Returns:
        The history of the whole run.
    """
    history = train(task, arguments)
    report(task, history, arguments.out)
    return history


def train(task: Task, arguments: TrainingArguments) -> History:
    """Trains, or resumes a run; see the module docstring.

    Args:
        task: The task.
        arguments: The command line.

    Returns:
        Losses and metrics, including those before a resumption.
    """
    run = _Run(task, arguments)
    last = run.start()
    folder = arguments.out / "tensorboard" if arguments.tensorboard else None
    file = arguments.out / "metrics.csv"
    with MetricLog(file, folder, resume=last > 0, last_step=last) as log:
        _train(run, arguments, log)
    run.checkpoints.close()
    print(f"{run.loader.report}; {task.batched.compiles} compilations")
    return run.history


def _train(run: "_Run", arguments: TrainingArguments, log: MetricLog) -> None:
    steps = len(run.loader)
    logged = len(run.history.losses)
    todo = max(0, arguments.epochs - run.loader.epoch)
    try:
        for item in run.loader.epochs(todo):
            run.step(item)
            done = item.epoch * steps + item.step + 1
            if item.step + 1 == steps:
                found = run.finish_epoch(item.epoch)
                logged = log_losses(log, run.history.losses, logged)
                log.write(done, found)
                run.save(done)
            elif arguments.checkpoint_steps and done % arguments.checkpoint_steps == 0:
                run.save(done)
            if arguments.progress_steps and done % arguments.progress_steps == 0:
                run.show_progress(item)
            logged = log_losses(log, run.history.losses, logged)
    finally:
        log_losses(log, run.history.losses, logged)


def log_losses(log: MetricLog, losses: Sequence[float], logged: int) -> int:
    """Writes the losses that are not yet written; returns the number of all losses."""
    for step, loss in enumerate(losses[logged:], start=logged + 1):
        log.write(step, {"loss": loss})
    return len(losses)


class _Run:
    def __init__(self, task: Task, arguments: TrainingArguments) -> None:
        self.task = task
        self.trainer = Trainer(task.loss, task.optimizer, task.params, task.targets)
        self.history = History(self.trainer.losses)
        self.loader = eb.Loader(
            task.batched,
            task.instances,
            arguments.batch_size,
            seed=arguments.seed,
            group_by_size=arguments.group_by_size,
            drop_last=True,
        )
        self.settings = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in asdict(arguments).items()
            if name not in _FREE
        }
        self.folder = arguments.out / "checkpoints"
        self.resume = arguments.resume
        self.checkpoints = ocp.CheckpointManager(
            self.folder.absolute(),
            options=ocp.CheckpointManagerOptions(
                max_to_keep=2, enable_async_checkpointing=False
            ),
        )
        self.began = time.perf_counter()

    def start(self) -> int:
        """With ``--resume``, restores the last checkpoint; returns its step, or 0."""
        last = self.checkpoints.latest_step()
        if last is None:
            if self.resume:
                print(f"no checkpoint in {self.folder}; beginning anew")
            return 0
        if not self.resume:
            raise SystemExit(
                f"{self.folder} has checkpoints of an earlier run; go on with it by"
                " --resume, or name another folder by --out"
            )
        rest = self._restore_rest(last)
        arrays = self.checkpoints.restore(
            last,
            args=ocp.args.Composite(
                arrays=ocp.args.StandardRestore(self.trainer.learned)
            ),
        )["arrays"]
        self.trainer.learned = Learned(*arrays)
        self.loader.restore(rest["loader"])
        self.trainer.losses += rest["losses"]
        self.history.epochs += rest["epochs"]
        print(f"going on from step {last}")
        return last

    def _restore_rest(self, last: int) -> dict[str, Any]:
        rest = self.checkpoints.restore(
            last, args=ocp.args.Composite(rest=ocp.args.JsonRestore())
        )["rest"]
        for name, value in self.settings.items():
            if rest["settings"].get(name) != value:
                raise SystemExit(
                    f"a run goes on with the settings that it began with, but --"
                    f"{name.replace('_', '-')} is {value!r} and was"
                    f" {rest['settings'].get(name)!r}; give the same, or begin anew"
                    " in another folder by --out"
                )
        return rest

    def step(self, item: eb.Minibatch) -> None:
        """Begins a step, and ends the run if the previous step failed."""
        with self.ending():
            self.trainer.step(item)

    def check(self) -> None:
        """Waits for the last step, and ends the run if it failed."""
        with self.ending():
            self.trainer.finish()

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Ends the run at a failed step, and names the last good checkpoint."""
        try:
            yield
        except TrainingError as error:
            last = self.checkpoints.latest_step()
            kept = "there is no checkpoint yet"
            if last is not None:
                kept = f"the last good checkpoint is {self.folder / str(last)}"
            raise SystemExit(f"{error}; {kept}") from error

    def finish_epoch(self, epoch: int) -> dict[str, float]:
        """Evaluates the parameters; prints and returns their metrics."""
        self.check()
        held_out = self.task.judge(self.trainer.learned.params)
        metric = next(iter(held_out))
        earlier = [_rank(each["held_out"][metric]) for each in self.history.epochs]
        found: dict[str, Any] = {
            "epoch": epoch,
            "loss": float(np.mean(self.history.losses[-len(self.loader) :])),
            "held_out": held_out,
        }
        if all(_rank(held_out[metric]) > each for each in earlier):
            found["test"] = self.task.test(self.trainer.learned.params)
        self.history.epochs.append(found)
        now = time.perf_counter()
        print(f"{line(found)}  {now - self.began:.1f} s", flush=True)
        self.began = now
        return {
            f"{part}/{name}": value
            for part in ("held_out", "test")
            for name, value in found.get(part, {}).items()
        } | {"epoch": epoch, "epoch_loss": found["loss"]}

    def save(self, step: int) -> None:
        """Writes a checkpoint atomically."""
        self.check()
        rest = {
            "settings": self.settings,
            "loader": self.loader.state(),
            **asdict(self.history),
        }
        self.checkpoints.save(
            step,
            args=ocp.args.Composite(
                arrays=ocp.args.StandardSave(self.trainer.learned),
                rest=ocp.args.JsonSave(rest),
            ),
        )

    def show_progress(self, item: eb.Minibatch) -> None:
        """Prints the loss of the latest step."""
        self.check()
        place = f"epoch {item.epoch}  step {item.step + 1}/{len(self.loader)}"
        print(f"{place}  loss {self.history.losses[-1]:.4f}", flush=True)


def line(epoch: dict[str, Any]) -> str:
    """Formats the metrics of an epoch in one line."""
    parts = [f"epoch {epoch['epoch']}", f"loss {epoch['loss']:.4f}"]
    for part in ("held_out", "test"):
        parts += [
            f"{part.replace('_', '-')} {name} {value:.4f}"
            for name, value in epoch.get(part, {}).items()
        ]
    return "  ".join(parts)


def report(task: Task, history: History, folder: Path) -> None:
    """Writes metrics and curve, and prints the best epoch.

    Args:
        task: The task.
        history: The history of its run.
        folder: The folder for `metrics.json` and `curve.png`.
    """
    if not history.epochs:
        print("no epoch was run")
        return
    best = history.best(next(iter(history.epochs[0]["held_out"])))
    metrics = {"best": best, **asdict(history)}
    (folder / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")
    print(f"best: {line(best)}")
    try:
        draw_curve(task.name, history, folder / "curve.png")
    except MissingMatplotlibError as error:
        print(f"no curve: {error}")


def draw_curve(title: str, history: History, path: Path) -> None:
    """Draws the loss of every step, and the held-out metrics of every epoch."""
    names = list(history.epochs[0]["held_out"])
    figure = new_figure(4 * (1 + len(names)), 3)
    figure.suptitle(title, fontsize="medium")
    axes = figure.subplots(1, 1 + len(names), squeeze=False)[0]
    per_epoch = len(history.losses) / len(history.epochs)
    steps = (1 + np.arange(len(history.losses))) / per_epoch
    epochs = [each["epoch"] + 1 for each in history.epochs]
    blue, orange = "#56B4E9", "#D55E00"
    axes[0].plot(steps, history.losses, color=blue, linewidth=0.8, label="of a step")
    losses = [each["loss"] for each in history.epochs]
    middles = np.array(epochs) - 0.5
    axes[0].plot(middles, losses, "o-", color=orange, markersize=3, label="of an epoch")
    axes[0].set_ylabel("loss")
    axes[0].legend(fontsize="small", frameon=False)
    for each, name in zip(axes[1:], names, strict=True):
        values = [epoch["held_out"][name] for epoch in history.epochs]
        each.plot(epochs, values, color="#009E73", marker="D", markersize=3)
        each.set_ylabel(f"{name}, held out")
    for each in axes:
        each.set_xlabel("epochs")
        each.grid(color="#E6E6E6")
        each.set_axisbelow(True)
    figure.savefig(path, dpi=150)
