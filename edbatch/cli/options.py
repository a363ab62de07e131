"""Options that several commands share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

_WHAT = "What to batch"

# Not read from the workloads: importing these takes long, and help should not.
NAMES = (
    "tree-lstm, tree-gru, mv-rnn, tree-lstm-2type, tree-lstm-childsum, bilstm-tagger,"
    " bilstm-tagger-char, lattice-lstm, lattice-gru, dag-lstm, lstm-nmt or"
    " neural-module-network"
)

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
            "A file or folder to read instances from; may be given several times."
            " tree-lstm, -2type, tree-gru and mv-rnn read Penn Treebank brackets,"
            " tree-lstm-childsum CoNLL-U, the taggers CoNLL-U or columns of tokens and"
            " tags, lattice-lstm and -gru columns of characters and tags and, as"
            " another file, a word list, dag-lstm lattices in PLF, lstm-nmt sentences"
            " with a tab between the languages, neural-module-network questions of"
            " CLEVR; each also .gz. Without it, instances are sampled."
        ),
        rich_help_panel=_WHAT,
    ),
]
Arity = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help=(
            "tree-lstm only: the largest number of children of a node. 2, the default,"
            " binarizes the trees."
        ),
        rich_help_panel=_WHAT,
    ),
]
Classify = Annotated[
    str | None,
    typer.Option(
        metavar="root|nodes",
        help="tree-lstm only: what is classified, the root (default) or all nodes.",
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
