"""Trains a policy for `train-policy`, with a progress bar and logs of metrics."""

from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from edbatch.cli.console import progress_bar, say, stage
from edbatch.cli.output_file import check_writable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from edbatch.graph import GraphStructure
    from edbatch.policies import CostModel, StateMachine
    from edbatch.policies.fsm.settings import Settings

_BEST = "held_out/best_batches"
Write = Callable[[int, "Mapping[str, float]"], None]


@dataclass(frozen=True)
class LogFiles:
    """Files for the metrics of a training.

    Attributes:
        csv: The CSV file, or None.
        tensorboard: Folder for event files, or None; only with `csv`.
        resume: Whether to continue the files of an interrupted training.
    """

    csv: Path | None = None
    tensorboard: Path | None = None
    resume: bool = False

    @classmethod
    def of(
        cls,
        out: Path | None,
        metrics: Path | None,
        tensorboard: Path | None,
        *,
        resume: bool,
    ) -> Self:
        """Determines the files from the options, and checks them before long work.

        Args:
            out: The file of the policy; its name gives the default CSV file.
            metrics: The CSV file, if one is named.
            tensorboard: The folder for event files, if one is named.
            resume: Whether to continue the files of an interrupted training.

        Returns:
            The files.

        Raises:
            EdbatchError: A file cannot be written, or tensorboardX is not installed.
        """
        from edbatch.metric_log import check_tensorboard

        # If `out` is a device or a pipe, no file is written next to it.
        if metrics is None and out is not None and (out.is_file() or not out.exists()):
            metrics = out.with_name(f"{out.name}.metrics.csv")
        check_writable("--metrics", metrics)
        if tensorboard is not None:
            from edbatch.cli.output_file import make_folder

            check_tensorboard()
            make_folder("--tensorboard", tensorboard)
            metrics = metrics or tensorboard / "metrics.csv"
        return cls(metrics, tensorboard, resume)

    @contextmanager
    def open(self) -> "Iterator[Write]":
        """Opens the log at the first write; without a file, writes are ignored."""
        from edbatch.metric_log import MetricLog

        with ExitStack() as stack:
            log: MetricLog | None = None

            def write(step: int, metrics: "Mapping[str, float]") -> None:
                nonlocal log
                if log is None and self.csv is not None:
                    log = stack.enter_context(
                        MetricLog(self.csv, self.tensorboard, resume=self.resume)
                    )
                if log is not None:
                    log.write(step, metrics)

            yield write

    def last(self, name: str) -> float | None:
        """Returns the last value of a metric in an interrupted training's CSV file."""
        if not self.resume or self.csv is None or not self.csv.exists():
            return None
        from edbatch.metric_log import read_metrics

        _, rows = read_metrics(self.csv)
        values = [row.get(name) for row in rows]
        return next((float(each) for each in reversed(values) if each), None)

    def say(self) -> None:
        """Prints the location of the metrics."""
        if self.csv is not None:
            events = f", for TensorBoard in {self.tensorboard}"
            say(f"Metrics are in {self.csv}{events if self.tensorboard else ''}.")


def make_ready(
    graphs: "list[GraphStructure]", settings: "Settings", *, anyway: bool
) -> bool:
    """Compiles the functions of a training, unless greedy suffices.

    There is no result to save yet, so Ctrl-C may end the command during this step.

    Args:
        graphs: Minibatches to train and to evaluate on.
        settings: The settings of the training.
        anyway: Whether to train even if greedy meets the lower bound.

    Returns:
        Whether to train.
    """
    from edbatch.policies import Greedy, meets_bounds, warm_up

    with stage("Scheduling by greedy"):
        is_needed = anyway or not meets_bounds(Greedy(), graphs)
    if is_needed:
        with stage("Compiling (the first time, Numba takes up to a minute)"):
            warm_up(settings.encoding)
    return is_needed


def train(
    graphs: "list[GraphStructure]",
    judged: "list[GraphStructure]",
    settings: "Settings",
    logs: LogFiles,
    *,
    workload: str,
    checkpoint: Path | None,
    resume: bool,
    costs: "CostModel | None",
    is_needed: bool,
) -> "StateMachine":
    """Trains a policy with a progress bar, unless greedy suffices.

    Args:
        graphs: Minibatches to train on.
        judged: Minibatches to evaluate on.
        settings: The settings of the training.
        logs: The files for metrics.
        workload: As in `edbatch.policies.train_policy`.
        checkpoint: As in `edbatch.policies.train_policy`.
        resume: As in `edbatch.policies.train_policy`.
        costs: As in `edbatch.policies.train_policy`.
        is_needed: Whether to train, as returned by `make_ready`.

    Returns:
        The policy.
    """
    from edbatch.policies import train_policy

    run: Any = partial(
        train_policy,
        graphs,
        judged,
        **asdict(settings),
        workload=workload,
        checkpoint=checkpoint,
        resume=resume,
        costs=costs,
    )
    with logs.open() as write:
        if not is_needed:
            policy: StateMachine = run(if_needed=True)
            assert policy.training is not None, "train_policy keeps a record"
            bound = policy.training.held_out_lower_bound
            for trial, batches in policy.training.curve:
                write(trial, _metrics(batches, batches, bound))
            return policy
        return _train_and_show(run, settings.trials, write, logs.last(_BEST))


def _train_and_show(
    run: Any, trials: int, write: Write, best: float | None
) -> "StateMachine":
    columns = "{task.fields[found]}"
    with progress_bar(columns) as bar:
        shown = bar.add_task("Training", total=trials, found="")

        def progress(trial: int, trials: int, batches: float, bound: float) -> None:
            nonlocal best
            best = batches if best is None else min(best, batches)
            found = f"{batches:.1f} batches, lower bound {bound:.1f}"
            bar.update(shown, completed=trial, found=found)
            write(trial, _metrics(batches, best, bound))

        policy: StateMachine = run(progress=progress)
        return policy


def _metrics(batches: float, best: float, bound: float) -> dict[str, float]:
    """Returns metrics of an evaluation; with costs, batches are weighted by cost."""
    return {
        "held_out/batches": batches,
        _BEST: best,
        "held_out/lower_bound": bound,
        "held_out/ratio": batches / bound if bound else 1.0,
    }
