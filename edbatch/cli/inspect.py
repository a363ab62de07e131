"""`edbatch inspect`."""

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edbatch.cli import options
from edbatch.cli.console import print_fields, print_json, print_out, print_table, say
from edbatch.cli.one_sentence import CommandError

if TYPE_CHECKING:
    from edbatch.policies import StateMachine, TrainingRecord


@options.spread
def inspect(
    *,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help=(
                "A policy file of train-policy, or zoo:NAME for the ready-made policy"
                " of a workload. Not with --cell."
            ),
            show_default=False,
        ),
    ] = None,
    states: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="How many states to show, most visited first."
        ),
    ] = 30,
    plot: Annotated[
        Path | None,
        options.picture("the states"),
    ] = None,
    cell: Annotated[
        bool,
        typer.Option(
            "--cell",
            metavar="",
            help=(
                "Show the cells of a model instead, before and after the memory planner"
                " packed what they compute."
            ),
        ),
    ] = False,
    task_options: options.TaskOptions,
    hidden: Annotated[
        int | None,
        typer.Option(
            metavar="H",
            min=1,
            help=(
                "With --cell: length of a ready workload's states, 128 by default; your"
                " own model has that of its parameters."
            ),
        ),
    ] = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Show the actions of a policy, or how cells are packed.

    A state is the policy's view of the operations that are ready to run: their types,
    each written as cell@parameters/number of operands. With the encoding 'fall' these
    are the two types whose batches most reduce a bound on the remaining batches, the
    better one first. For each state the policy names the type that runs next. Visits
    count how often training was in the state; the value is the expected return.

    With --cell, each row is a type of operation that occurs in the model's data: the
    products of one instance as written and as run, and the size of the weights that
    are packed once per call.

    Example: edbatch inspect tree.json --plot tree.png

    Example: edbatch inspect --cell --workload lstm-nmt --hidden 64
    """
    if cell:
        from edbatch.cli.cells import inspect_cells

        _reject("shows a policy, but --cell shows cells", FILE=file, plot=plot)
        inspect_cells(task_options, hidden, seed, json=json)
        return
    _reject("says whose cells to show, but --cell is missing", **vars(task_options))
    _reject("says whose cells to show, but --cell is missing", hidden=hidden)
    if file is None:
        raise CommandError("Missing argument 'FILE'; see 'edbatch inspect --help'")
    _inspect_policy(file, states, plot, json=json)


def _reject(what_it_does: str, **given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            name = name if name.isupper() else f"--{name}"
            raise CommandError(
                f"{name} {what_it_does}; see 'edbatch inspect --help' for what goes"
                " together"
            )


def _inspect_policy(file: str, states: int, plot: Path | None, *, json: bool) -> None:
    from edbatch.cli.output_file import check_distinct, check_writable
    from edbatch.policies.files.policy_file import policy_text

    check_writable("--plot", plot)
    check_distinct({"--plot": plot}, {"FILE": file})
    policy = _find(file)
    if plot is not None:
        from edbatch.cli.pictures import draw_policy

        draw_policy(policy, plot, states)
    if json:
        print_json(json_format.loads(policy_text(policy)))
    else:
        _print_policy(policy, file, states)
    if plot is not None:
        say(f"The picture is in {plot}.")


def _find(name: str) -> "StateMachine":
    from edbatch.policies import StateMachine, get_policy, load_policy

    found = get_policy(name) if name.startswith("zoo:") else load_policy(name)
    assert isinstance(found, StateMachine), "policies in files are state machines"
    return found


def _print_policy(policy: "StateMachine", name: str, limit: int) -> None:
    from edbatch.policies.fsm.machine_state import type_labels

    labels = type_labels(policy.types)
    fields: list[tuple[str, Any]] = [
        ("policy", name),
        ("encoding", policy.encoding),
        ("types", ", ".join(labels)),
        ("states", len(policy.states)),
    ]
    print_fields(fields)
    if not policy.states:
        print_out(f"It has no states, and follows {policy.otherwise} everywhere.")
    ranked = sorted(policy.states, key=lambda state: -state.visits)
    rows = [
        (
            frontier_text(policy.encoding, [labels[k] for k in state.frontier]),
            labels[state.action],
            state.visits,
            float(state.value),
        )
        for state in ranked[:limit]
    ]
    if rows:
        print_table(("types that are ready", "runs", "visits", "value"), rows)
    if len(ranked) > limit:
        say(f"{len(ranked) - limit:,} more states; --states N shows more.")
    if policy.training is None:
        say("The file has no training record.")
        return
    record = policy.training.to_json()
    record["curve"] = _curve(policy.training)
    versions = record.pop("versions")
    record["versions"] = ", ".join(f"{k} {v}" for k, v in versions.items())
    print_fields((name.replace("_", " "), value) for name, value in record.items())


def _curve(record: "TrainingRecord") -> str:
    """Summarizes the training curve in words."""
    if not record.curve:
        return "no evaluation"
    (_, first), *others = record.curve
    if not others:
        return f"1 evaluation: {first:,.2f} batches"
    best = min(batches for _, batches in record.curve)
    return (
        f"{len(record.curve)} evaluations: {first:,.2f} batches at first, {best:,.2f}"
        " at best; --json has all"
    )


def frontier_text(encoding: str, labels: list[str]) -> str:
    """Formats an encoded frontier as readable text.

    Args:
        encoding: The encoding.
        labels: Names of the types, in the order of the encoding.

    Returns:
        For example ``compose/4 > leaf/0``: more nodes of the first than of the second,
        or, for ``"fall"``, a batch of the first reduces the bound more.

    Example:
        >>> frontier_text("max", ["leaf/0", "compose/4", "leaf/0"])
        'compose/4, leaf/0 (most: leaf/0)'
    """
    if encoding in ("sort", "fall"):
        return " > ".join(labels)
    if encoding == "max":
        return f"{', '.join(labels[1:])} (most: {labels[0]})"
    return ", ".join(labels)
