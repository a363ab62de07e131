"""Options of `train-policy` for training and logging."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from edbatch.policies.fsm.settings import Settings

_HOW = "Training"
_LOGS = "Metrics"

Encoding = Annotated[
    str,
    typer.Option(
        metavar="fall|sort|max|base",
        help=(
            "What the policy sees of the operations that are ready: the two types whose"
            " batches most reduce a bound on the remaining batches (fall), which types"
            " there are (base), also which is most frequent (max), or all of them by"
            " frequency (sort)."
        ),
    ),
]
Trials = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        help="How many schedules to try at most; it ends early at the lower bound.",
    ),
]
NStep = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        help="Steps before a return is estimated by the table.",
        rich_help_panel=_HOW,
    ),
]
Alpha = Annotated[
    float,
    typer.Option(
        metavar="A",
        min=0,
        help=(
            "Weight of the ratio of the sufficient condition in the reward; not used"
            " with the encoding fall."
        ),
        rich_help_panel=_HOW,
    ),
]
LearningRate = Annotated[
    float,
    typer.Option(
        metavar="R",
        min=0,
        max=1,
        help="Smallest learning rate of the table's entries.",
        rich_help_panel=_HOW,
    ),
]
Epsilon = Annotated[
    float,
    typer.Option(
        metavar="E",
        min=0,
        max=1,
        help="Share of random actions in the first trial; falls to 0.",
        rich_help_panel=_HOW,
    ),
]
Generations = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        help=(
            "With the encoding fall: how often the weights of the smoothed bound are"
            " tuned, 12 by default. With --serving: generations of each of three"
            " searches by the cross-entropy method, 20 by default."
        ),
        rich_help_panel=_HOW,
    ),
]
Patience = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        help="After how many evaluations without improvement to stop.",
        rich_help_panel=_HOW,
    ),
]
Metrics = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A .csv file for the evaluations; OUT.metrics.csv by default.",
        rich_help_panel=_LOGS,
    ),
]
TensorBoard = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help=(
            "Also write event files for TensorBoard to this folder. Needs tensorboardX:"
            " pip install 'edbatch\\[tensorboard]'."
        ),
        rich_help_panel=_LOGS,
    ),
]


@dataclass(frozen=True)
class TrainingOptions:
    """Options of training."""

    encoding: Encoding = "fall"
    trials: Trials = 1000
    n_step: NStep = 4
    alpha: Alpha = 0.5
    learning_rate: LearningRate = 0.05
    epsilon: Epsilon = 0.3
    generations: Generations = None
    patience: Patience = 15

    def settings(self, seed: int) -> "Settings":
        """Returns the settings of a training.

        Raises:
            EdbatchError: A setting is out of range.
        """
        from edbatch.policies.fsm.settings import Settings

        given = vars(self) | {"seed": seed}
        if self.generations is None:
            given["generations"] = 12
        found = Settings(**given)
        found.check_ranges()
        return found


@dataclass(frozen=True)
class LogOptions:
    """Options of logging."""

    metrics: Metrics = None
    tensorboard: TensorBoard = None
