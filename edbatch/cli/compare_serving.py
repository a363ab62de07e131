"""`edbatch compare --serving`."""

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edbatch.cli import options
from edbatch.cli.console import print_json, print_out, print_table, say, stage
from edbatch.cli.one_sentence import CommandError
from edbatch.cli.output_file import is_same
from edbatch.cli.serving_options import ServingOptions, rate_text
from edbatch.cli.simulated_server import SimulatedServer, simulated_server

if TYPE_CHECKING:
    from edbatch.graph import TypeKey
    from edbatch.policies.serving import (
        ServingHeuristic,
        ServingMachine,
        ServingRule,
        ServingScore,
    )

_REQUESTS = 2000
_NAMED = 4  # operations named in a message
# Seeds of the requests of a comparison; the seeds of training are different.
_COMPARED_SEEDS = (2_000_001, 2_000_002, 2_000_003)


def compare_for_serving(
    task_options: options.TaskOptions,
    given: ServingOptions,
    costs: Path | None,
    seed: int,
    *,
    policy: str,
    beside: Path | None,
    deadline_ms: float,
    json: bool,
) -> None:
    """Compares policies for serving with the heuristics."""
    from edbatch.policies.registry import is_policy_name
    from edbatch.policies.serving import compare_serving, load_serving_policy

    requests = given.requests or _REQUESTS
    files: list[str | Path] = [policy] if beside is None else [policy, beside]
    if beside is not None and is_same(Path(policy), beside):
        raise CommandError(
            f"--policy and --beside name one file, {beside}; leave --beside out"
        )
    if is_policy_name(policy):
        raise CommandError(
            f"--policy takes a file of train-policy --serving but {policy!r} schedules"
            " minibatches; heuristics for serving are compared with any file"
        )
    learned = [load_serving_policy(each) for each in files]
    server = simulated_server(task_options, given, costs, seed, held_out=True)
    for file, each in zip(files, learned, strict=True):
        _check_types(file, each.types, server.library.type_keys, server)
    bound: list[ServingRule | ServingMachine | ServingHeuristic] = [
        *(each.for_types(server.library.type_keys) for each in learned),
        *server.heuristics,
    ]
    with stage(f"Serving by {len(bound)} policies at {len(server.arrivals)} rates"):
        rows = compare_serving(
            bound,
            server.library,
            server.config,
            server.arrivals,
            requests=requests,
            seeds=[seed + each for each in _COMPARED_SEEDS],
            deadline_ms=deadline_ms,
        )
    if len(files) > 1:  # policies are named by their kind, so both may have one name
        names = dict(enumerate(_names(files)))
        rows = [
            replace(row, policy=names.get(place % len(bound), row.policy))
            for place, row in enumerate(rows)
        ]
    if json:
        print_json([_rounded(row, server.capacity) for row in rows])
    else:
        print_out(
            f"{server.task.description}: {len(_COMPARED_SEEDS)} runs of"
            f" {requests:,} requests, times in ms. The best heuristic can serve"
            f" {rate_text(server.capacity)} requests/s."
        )
        for process in server.arrivals:
            at_rate = [row for row in rows if row.rate == process.rate]
            shown = shown_rows(at_rate, len(learned))
            _print_rate(shown, process.rate, server.capacity, deadline_ms)
    say(f"Costs are {server.costs}; a wave costs {given.overhead_us:g} µs more.")
    for process in server.arrivals:
        at_rate = [row for row in rows if row.rate == process.rate]
        at_rate = shown_rows(at_rate, len(learned))
        others = at_rate[len(learned) :]
        for row in at_rate[: len(learned)]:
            say(outcome([row, *others]))


def _check_types(
    file: str | Path,
    known: "tuple[TypeKey, ...]",
    asked: "tuple[TypeKey, ...]",
    server: SimulatedServer,
) -> None:
    """Reports the operations of the model that a policy was not trained on.

    Raises:
        CommandError: The policy was trained on none of them.
    """
    cells = {(each.cell, each.path) for each in known}
    unknown = [each for each in asked if (each.cell, each.path) not in cells]
    names = ", ".join(sorted({repr(str(each)) for each in unknown})[:_NAMED])
    if len(unknown) == len(asked):
        raise CommandError(
            f"{file} was trained on none of the operations of"
            f" {server.task.description}, such as {names}; train one for it by"
            " train-policy --serving"
        )
    if unknown:
        say(
            f"{file} was not trained on {names}"
            f"{' and others' if len(unknown) > _NAMED else ''}, for which it decides as"
            " for the average of those that it knows."
        )


def outcome(rows: "list[ServingScore]") -> str:
    """Compares a learned policy with the best heuristics at one rate, in a sentence.

    Args:
        rows: The row of the learned policy, then those of the heuristics.

    Returns:
        The sentence.
    """
    learned, *others = rows
    parts = []
    for what, name in (("mean", "mean_ms"), ("p99", "p99_ms")):
        best = min(others, key=lambda row: (getattr(row, name), row.p99_ms))
        if not math.isfinite(getattr(learned, name)):
            parts.append(f"no {what}, as it kept waiting and was given up")
            continue
        change = getattr(learned, name) / getattr(best, name) - 1
        way = "below" if change < 0 else "above"
        size = f"{abs(change):.1%}"
        difference = "within 0.1% of" if size == "0.0%" else f"{size} {way}"
        parts.append(f"{what} {difference} that of {best.policy}")
    said = f"{learned.policy} has {' and '.join(parts)}"
    best = min(others, key=_lateness)
    if best.late or learned.late:
        said += f", {learned.late:.1%} late where {best.policy} has {best.late:.1%}"
    return f"At {rate_text(learned.rate)} requests/s: {said}."


def _rounded(row: "ServingScore", capacity: float) -> dict[str, Any]:
    values = asdict(row)
    for name, value in values.items():
        if isinstance(value, float):  # null if the simulation was abandoned
            values[name] = round(value, 4) if math.isfinite(value) else None
    return values | {"load": round(row.rate / capacity, 4)}


def _print_rate(
    rows: "list[ServingScore]", rate: float, capacity: float, deadline_ms: float
) -> None:
    print_table(
        ("policy", "mean", "p50", "p95", "p99", "goodput", "late %", "rows", "wave"),
        [
            (
                row.policy,
                *map(_brief, (row.mean_ms, row.p50_ms, row.p95_ms, row.p99_ms)),
                _brief(row.goodput),
                round(100 * row.late, 1),
                round(row.rows_per_batch),
                round(row.batches_per_wave),
            )
            for row in rows
        ],
        f"{rate_text(rate)} requests/s, {rate / capacity:.0%} of that; goodput:"
        f" answers/s within {deadline_ms:g} ms",
    )


def shown_rows(rows: "list[ServingScore]", learned: int = 0) -> "list[ServingScore]":
    """Keeps, for each heuristic, the wave length with the smallest 99th percentile.

    The rows with the smallest mean and with the fewest late answers are kept, too.

    Args:
        rows: The rows at one rate.
        learned: Number of rows of learned policies at the beginning; all are kept.

    Returns:
        The rows to show.
    """
    best: dict[str, ServingScore] = {}
    for row in rows[learned:]:
        name = row.policy.partition(",")[0]
        if name not in best or row.p99_ms < best[name].p99_ms:
            best[name] = row
    heuristics = rows[learned:]
    kept = [*best.values()]
    if heuristics:
        kept += [min(heuristics, key=_mean), min(heuristics, key=_lateness)]
    return [*rows[:learned], *(row for row in heuristics if row in kept)]


def _mean(row: "ServingScore") -> tuple[float, float]:
    return row.mean_ms, row.p99_ms


def _lateness(row: "ServingScore") -> tuple[float, float]:
    return row.late, row.p99_ms


def _names(files: list[str | Path]) -> list[str]:
    """Names policies by file name, or by whole path if file names collide."""
    names = [Path(each).name for each in files]
    return names if len({*names}) == len(names) else [str(each) for each in files]


def _brief(number: float) -> float | int | None:
    if not math.isfinite(number):
        return None
    return number if number < 100 else round(number)
