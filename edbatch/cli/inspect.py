"""`edbatch inspect`."""

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edbatch.cli import options
from edbatch.cli.console import print_fields, print_json, print_table, say

if TYPE_CHECKING:
    from edbatch.policies import StateMachine


def inspect(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help=(
                "A policy file of train-policy, or zoo:NAME for the ready-made policy"
                " of a workload."
            ),
        ),
    ],
    states: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="How many states to show, most visited first."
        ),
    ] = 30,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="PICTURE",
            help=(
                "Also draw the states: a .png, .pdf or .svg file. Needs matplotlib:"
                " pip install 'edbatch\\[plot]'."
            ),
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Show what a policy does and how it was trained.

    A state is what the policy sees of the operations that are ready to run: their
    types, a type being written as cell@parameters/number of operands. With the encoding
    'fall' these are the two types whose batches lower a bound on what remains most, the
    better one first. For each state the policy names the type that runs next. Visits
    count how often training was there; the value is the return that it expected.

    Example: edbatch inspect tree.json --plot tree.png
    """
    from edbatch.cli.output_file import check_writable
    from edbatch.policies.policy_file import policy_text

    check_writable("--plot", plot)
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
    from edbatch.policies.policy_file import type_labels

    labels = type_labels(policy.types)
    fields: list[tuple[str, Any]] = [
        ("policy", name),
        ("encoding", policy.encoding),
        ("types", ", ".join(labels)),
        ("states", len(policy.states)),
    ]
    print_fields(fields)
    ranked = sorted(policy.states, key=lambda state: -state.visits)
    print_table(
        ("types that are ready", "runs", "visits", "value"),
        [
            (
                frontier_text(policy.encoding, [labels[k] for k in state.frontier]),
                labels[state.action],
                state.visits,
                float(state.value),
            )
            for state in ranked[:limit]
        ],
    )
    if len(ranked) > limit:
        say(f"{len(ranked) - limit:,} more states; --states N shows more.")
    if policy.training is None:
        say("The file has no training record.")
        return
    record = policy.training.to_json()
    versions = record.pop("versions")
    record["versions"] = ", ".join(f"{k} {v}" for k, v in versions.items())
    print_fields((name.replace("_", " "), value) for name, value in record.items())


def frontier_text(encoding: str, labels: list[str]) -> str:
    """Writes an encoded frontier for people.

    Args:
        encoding: The encoding.
        labels: Names of the types, in the order of the encoding.

    Returns:
        For example ``compose/4 > leaf/0``: more of the first than of the second, or,
        for `"fall"`, a batch of the first lowers the bound by more.

    Example:
        >>> frontier_text("max", ["leaf/0", "compose/4", "leaf/0"])
        'compose/4, leaf/0 (most: leaf/0)'
    """
    if encoding in ("sort", "fall"):
        return " > ".join(labels)
    if encoding == "max":
        return f"{', '.join(labels[1:])} (most: {labels[0]})"
    return ", ".join(labels)
