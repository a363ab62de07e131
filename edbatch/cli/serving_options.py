"""Options of `train-policy --serving` and `edbatch compare --serving`."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from edbatch.cli.one_sentence import CommandError

_PANEL = "Serving"
METHODS = ("cross-entropy", "q-learning")

Serving = Annotated[
    bool,
    typer.Option(
        "--serving",
        metavar="",
        help=(
            "For a server whose requests arrive over time, instead of minibatches;"
            " simulated, with the options of this panel."
        ),
        rich_help_panel=_PANEL,
    ),
]
Rates = Annotated[
    str,
    typer.Option(
        "--rate",
        "--rates",
        metavar="R,R,…",
        help=(
            "Requests per second, separated by commas; 70% means 70% of what the best"
            " heuristic can serve."
        ),
        rich_help_panel=_PANEL,
    ),
]
Burst = Annotated[
    float,
    typer.Option(
        metavar="B",
        min=1,
        help="Arrivals in bursts: busy periods have B times the rate of quiet ones.",
        rich_help_panel=_PANEL,
    ),
]
Overhead = Annotated[
    float,
    typer.Option(
        metavar="US",
        min=0,
        help="Fixed cost of a wave in microseconds, added to that of its batches.",
        rich_help_panel=_PANEL,
    ),
]
Requests = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help=(
            "Requests of a simulation, by default 1,000 to train and 2,000 to compare."
        ),
        rich_help_panel=_PANEL,
    ),
]
MaxRows = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        help="Maximum number of rows of a batch.",
        rich_help_panel=_PANEL,
    ),
]
Objective = Annotated[
    str,
    typer.Option(
        metavar="mean|p99|deadline:MS",
        help=(
            "What to train for: the mean or the 99th percentile of the time to the"
            " answer, or few answers later than a deadline."
        ),
        rich_help_panel=_PANEL,
    ),
]
Population = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=2,
        help="Rules that a generation of the cross-entropy method draws.",
        rich_help_panel=_PANEL,
    ),
]
Episodes = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help=(
            "Episodes of Q-learning, for each encoding; 20 for each of --generations by"
            " default."
        ),
        rich_help_panel=_PANEL,
    ),
]
Method = Annotated[
    str,
    typer.Option(
        metavar="cross-entropy|q-learning",
        help=(
            "What to learn: the weights of a rule, by the cross-entropy method, or a"
            " state machine, by Q-learning."
        ),
        rich_help_panel=_PANEL,
    ),
]
Beside = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Another policy of train-policy --serving, to compare as well.",
        rich_help_panel=_PANEL,
    ),
]
Deadline = Annotated[
    float,
    typer.Option(
        metavar="MS",
        min=0,
        help="Milliseconds within which an answer counts as goodput.",
        rich_help_panel=_PANEL,
    ),
]


@dataclass(frozen=True)
class ServingOptions:
    """Options of the simulation, for training and for comparing."""

    rates: Rates = "30%,50%,70%,90%"
    burst: Burst = 1.0
    overhead_us: Overhead = 200.0
    requests: Requests = None
    max_rows: MaxRows = 256


@dataclass(frozen=True)
class ServingTraining:
    """Options of training with `train-policy --serving`."""

    objective: Objective = "p99"
    method: Method = METHODS[0]
    population: Population = 48
    episodes: Episodes = None


def rate_text(rate: float) -> str:
    """Formats requests per second: as an integer from 100 on, below with four digits.

    Example:
        >>> rate_text(0.4), rate_text(12.346), rate_text(1234.5)
        ('0.4', '12.35', '1,234')
    """
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.4g}"


def parse_rates(text: str) -> list[tuple[float, bool]]:
    """Parses rates.

    Args:
        text: Numbers separated by commas, each optionally with a percent sign.

    Returns:
        Each rate, as a fraction if it has a percent sign, and whether it has one.

    Raises:
        CommandError: The text is malformed, or a number is out of range.

    Example:
        >>> parse_rates("70%,1200")
        [(0.7, True), (1200.0, False)]
    """
    found = []
    for each in text.split(","):
        word = each.strip()
        try:
            number = float(word.removesuffix("%"))
        except ValueError:
            number = 0.0
        if not 1e-6 <= number < 1e9:
            raise CommandError(
                "--rate takes requests per second from 1e-6 to 1e9, or percentages of"
                " what the best heuristic can serve, separated by commas, but has"
                f" {word!r}; write for example 30%,50%,70%,90%"
            )
        is_share = word.endswith("%")
        found.append((number / 100 if is_share else number, is_share))
    return found


def check_given(
    context: typer.Context, serving: bool, of_minibatches: Collection[str]
) -> None:
    """Checks that every given option is used and every number is finite.

    Args:
        context: The call of the command.
        serving: Whether --serving was given.
        of_minibatches: Names of the options that are not used with --serving.

    Raises:
        CommandError: A given option is not used, or a number is not finite.
    """
    command = context.info_name
    for option in given_options(context):
        name = option.opts[0]
        value = context.params[option.name]
        if isinstance(value, float) and not math.isfinite(value):
            raise CommandError(f"{name} takes a finite number but received {value}")
        if serving and option.name in of_minibatches:
            raise CommandError(
                f"{name} belongs to minibatches but --serving was given as well; leave"
                f" one out of {command}"
            )
        if not serving and getattr(option, "rich_help_panel", None) == _PANEL:
            raise CommandError(
                f"{name} belongs to --serving, which was not given; give it too, or"
                f" leave {name} out of {command}"
            )


def given_options(context: typer.Context) -> list[Any]:
    """Returns the options that are given on the command line."""

    def is_given(option: Any) -> bool:
        source = context.get_parameter_source(option.name)
        return source is not None and source.name == "COMMANDLINE"

    return list(filter(is_given, context.command.params))
