"""Options shared by several commands, and groups of options as dataclasses."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from edbatch.cli.one_sentence import CommandError
from edbatch.models import WORKLOADS

_WHAT = "What to batch"
NAMES = ", ".join(WORKLOADS)


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Replaces dataclass parameters of a command by one option per field.

    Args:
        command: A function for typer, some of whose parameters are annotated with a
            dataclass whose fields are annotated as options.

    Returns:
        The function with the fields instead of these parameters, all keyword-only.

    Example:
        >>> @spread
        ... def show(task: TaskOptions, seed: Seed = 0) -> None:
        ...     print(task.workload, task.arity, seed)
        >>> show(workload="tree-lstm", arity=3)
        tree-lstm 3 0
    """
    groups: dict[str, type] = {}
    parameters: list[Parameter] = []
    hints = get_type_hints(command, include_extras=True)
    for own in signature(command).parameters.values():
        kind = hints[own.name]
        if is_dataclass(kind):
            assert isinstance(kind, type), "a hint names the class"
            groups[own.name] = kind
            parameters += _parameters(kind)
        else:
            own = own.replace(annotation=kind, kind=Parameter.KEYWORD_ONLY)
            parameters.append(own)
    known = Signature(parameters)

    @wraps(command)
    def run(**given: Any) -> None:
        bound = known.bind(**given)
        bound.apply_defaults()
        values = dict(bound.arguments)
        made = {
            name: kind(**{each.name: values.pop(each.name) for each in fields(kind)})
            for name, kind in groups.items()
        }
        with _stdout_of(values.get("json", False)):
            command(**values, **made)

    run.__signature__ = known  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _stdout_of(json: bool) -> AbstractContextManager[None]:
    """Reserves stdout for JSON if the command prints JSON."""
    if not json:
        return nullcontext()
    from edbatch.cli.console import json_alone

    return json_alone()


def _parameters(kind: type) -> list[Parameter]:
    """Returns the fields of a dataclass as parameters."""
    hints = get_type_hints(kind, include_extras=True)
    return [
        Parameter(
            each.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if each.default is MISSING else each.default,
            annotation=hints[each.name],
        )
        for each in fields(kind)
    ]


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
    """Options that name a model and its instances."""

    workload: Workload = None
    data: Data = None
    arity: Arity = None
    classify: Classify = None
    model: Model = None
    instances: Instances = None
    params: Params = None

    @property
    def is_ready(self) -> bool:
        """Whether the task is a ready workload, possibly the default one."""
        return self.model is None and self.instances is None and self.params is None

    def check_hidden(self, hidden: int | None) -> None:
        """Checks that a hidden size is given only for ready workloads.

        Raises:
            CommandError: A hidden size is given for the user's own model.
        """
        if self.model is not None and hidden is not None:
            raise CommandError(
                "--hidden belongs to the ready workloads but --model was given as well;"
                " the function of --params decides how long the states are"
            )


Hidden = Annotated[
    int | None,
    typer.Option(
        metavar="H",
        min=1,
        help=(
            "Length of a ready workload's states, 128 by default; your own model has"
            " that of its parameters."
        ),
    ),
]
Policy = Annotated[
    str,
    typer.Option(
        metavar="FILE|NAME",
        help=(
            "A policy file of train-policy; zoo:NAME for the ready-made policy of a"
            " workload; or depth, agenda, agenda-remaining or greedy."
        ),
    ),
]
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


def picture(of_what: str, remark: str = "") -> Any:
    """Makes the option ``--plot``.

    Args:
        of_what: The subject of the picture, for the help text.
        remark: A remark on when the option can be given, for the help text.

    Returns:
        The option.
    """
    return typer.Option(
        metavar="PICTURE",
        help=(
            f"Also draw {of_what}: a .png, .pdf or .svg file. {remark}Needs"
            " matplotlib: pip install 'edbatch\\[plot]'."
        ),
    )
