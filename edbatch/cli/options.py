"""Options that several commands share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from edbatch.models import WORKLOADS

_WHAT = "What to batch"
NAMES = ", ".join(WORKLOADS)

Workload = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"A ready workload: {NAMES}.",
        rich_help_panel=_WHAT,
    ),
]
Data = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="PATH",
        help=(
            "A file or folder to read instances from, in the format of the workload"
            " (`edbatch workloads` lists them), also .gz; may be given several times."
            " Without it, instances are sampled."
        ),
        rich_help_panel=_WHAT,
    ),
]
Arity = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help=(
            "N-ary trees only: the largest number of children of a node. 2, the"
            " default, binarizes the trees."
        ),
        rich_help_panel=_WHAT,
    ),
]
Classify = Annotated[
    str | None,
    typer.Option(
        metavar="root|nodes",
        help="Trees only: what is classified, the root (default) or all nodes.",
        rich_help_panel=_WHAT,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:FUNCTION",
        help=(
            "Your own model(params, instance) in place of a workload; modules in the"
            " current folder are found."
        ),
        rich_help_panel=_WHAT,
    ),
]
Instances = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:FUNCTION",
        help=(
            "With --model: a function that returns a list of instances. It takes"
            " nothing, or a numpy.random.Generator and how many to return."
        ),
        rich_help_panel=_WHAT,
    ),
]
Params = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:FUNCTION",
        help=(
            "With --model: a function that returns the model's parameters, of which"
            " only shapes matter here. It takes nothing, or a jax.random key. Without"
            " it the model gets an empty dict."
        ),
        rich_help_panel=_WHAT,
    ),
]


@dataclass(frozen=True)
class TaskOptions:
    """The options above, which say what to batch."""

    workload: str | None
    data: list[Path] | None
    arity: int | None
    classify: str | None
    model: str | None
    instances: str | None
    params: str | None


BatchSize = Annotated[
    int, typer.Option(metavar="N", min=1, help="Instances per minibatch.")
]
Minibatches = Annotated[
    int, typer.Option(metavar="M", min=1, help="Number of minibatches.")
]
Seed = Annotated[
    int, typer.Option(metavar="N", min=0, help="The same seed gives the same result.")
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", metavar="", help="Print JSON, for programs, and nothing else."
    ),
]
