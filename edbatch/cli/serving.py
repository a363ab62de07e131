"""`train-policy --serving` and `edbatch compare --serving`."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edbatch.cli import options
from edbatch.cli.console import (
    print_json,
    print_out,
    print_table,
    progress_bar,
    say,
    stage,
)
from edbatch.cli.one_sentence import CommandError
from edbatch.errors import nearest, shown

if TYPE_CHECKING:
    import numpy as np

    from edbatch.cli.task import Task
    from edbatch.policies.serving import Objective as Goal
    from edbatch.policies.serving import (
        ServingHeuristic,
        ServingMachine,
        ServingRule,
        ServingScore,
    )
    from edbatch.schedule.serving import Arrivals, InstanceLibrary, ServingConfig

_PANEL = "Serving"
_SAMPLES = 500
DEFAULT_RATES = "30%,50%,70%,90%"
# Seeds of the requests that are compared on; those of training begin elsewhere.
_COMPARED_SEEDS = (2_000_001, 2_000_002, 2_000_003)

Serving = Annotated[
    bool,
    typer.Option(
        "--serving",
        metavar="",
        help=(
            "For a server, to which requests come over time, in place of minibatches;"
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
            "Requests per second, several with commas between them; 70% is that share"
            " of what the best heuristic can serve."
        ),
        rich_help_panel=_PANEL,
    ),
]
Burst = Annotated[
    float,
    typer.Option(
        metavar="B",
        min=1,
        help="Arrivals in bursts: busy times of B times the rate of quiet ones.",
        rich_help_panel=_PANEL,
    ),
]
Overhead = Annotated[
    float,
    typer.Option(
        metavar="US",
        min=0,
        help="Microseconds that a wave of batches costs beside the batches.",
        rich_help_panel=_PANEL,
    ),
]
Requests = Annotated[
    int,
    typer.Option(
        metavar="N", min=1, help="Requests of a simulation.", rich_help_panel=_PANEL
    ),
]
MaxRows = Annotated[
    int,
    typer.Option(
        metavar="N", min=1, help="No batch has more rows.", rich_help_panel=_PANEL
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
Generations = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        help=(
            "Generations of each of three searches by the cross-entropy method; of"
            " Q-learning, twentieths of the episodes."
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
EPISODES = 20  # per generation
METHODS = ("cross-entropy", "q-learning")
Deadline = Annotated[
    float,
    typer.Option(
        metavar="MS",
        min=0,
        help="Goodput counts answers that come within so many milliseconds.",
        rich_help_panel=_PANEL,
    ),
]


@dataclass(frozen=True)
class ServingOptions:
    """The options above that both commands have."""

    rates: str
    burst: float
    overhead_us: float
    requests: int
    max_rows: int
    costs: Path | None
    seed: int


@dataclass(frozen=True, eq=False)
class _Server:
    """What both commands simulate."""

    task: "Task"
    library: "InstanceLibrary"
    config: "ServingConfig"
    heuristics: "tuple[ServingHeuristic, ...]"
    arrivals: "list[Arrivals]"
    capacity: float
    costs: str


def train_serving(
    task_options: options.TaskOptions,
    given: ServingOptions,
    objective: str,
    method: str,
    generations: int,
    out: Path | None,
    json: bool,
) -> None:
    """Trains a policy for serving, and writes it."""
    from edbatch.cli.output_file import check_writable
    from edbatch.policies.serving import Objective as Goal

    goal = Goal.parse(objective)
    if method not in METHODS:
        raise CommandError(
            f"--method is {' or '.join(METHODS)} but is {shown(method)};"
            f" {nearest(method, METHODS)}"
        )
    check_writable("--out", out)
    server = _server(task_options, given, held_out=False)
    with progress_bar("{task.fields[found]}") as bar:
        row = bar.add_task("Training", total=3 * generations, found="")

        def progress(done: int, total: int, loss: float) -> None:
            bar.update(row, completed=done, total=total, found=f"loss {loss:+.3f}")

        rule = _train(
            server, goal, method, generations, given.requests, given.seed, progress
        )
    if out is not None:
        rule.save(out)
    training = rule.training
    assert training is not None, "train_serving_policy keeps a record"
    if json:
        print_json(
            {"out": None if out is None else str(out), "training": training.to_json()}
        )
    else:
        print_table(
            ("requests/s", "best heuristic", "learned / best"),
            zip(
                (round(each) for each in training.rates),
                training.best_heuristics,
                training.validation,
                strict=True,
            ),
            f"{server.task.description}: {training.objective} on arrivals that were not"
            " trained on",
        )
    say(f"Training took {training.elapsed_s:.1f} s, costs are {server.costs}.")
    say(
        "The policy was not saved; --out FILE saves it."
        if out is None
        else f"The policy is in {out}."
    )


def _train(
    server: _Server,
    goal: "Goal",
    method: str,
    generations: int,
    requests: int,
    seed: int,
    progress: Callable[[int, int, float], None],
) -> "ServingRule | ServingMachine":
    from edbatch.policies.serving import train_serving_machine, train_serving_policy

    if method == METHODS[0]:
        train: Any = partial(train_serving_policy, generations=generations)
    else:
        train = partial(train_serving_machine, episodes=EPISODES * generations)
    found: ServingRule | ServingMachine = train(
        server.library,
        server.config,
        server.arrivals,
        goal,
        requests=requests,
        seed=seed,
        workload=server.task.description,
        costs=server.costs,
        progress=progress,
    )
    return found


def compare_for_serving(
    task_options: options.TaskOptions,
    given: ServingOptions,
    policy: str,
    beside: Path | None,
    deadline_ms: float,
    json: bool,
) -> None:
    """Compares policies for serving with the heuristics."""
    from edbatch.policies.serving import compare_serving, load_serving_policy

    files: list[str | Path] = [policy] if beside is None else [policy, beside]
    learned = [load_serving_policy(each) for each in files]
    server = _server(task_options, given, held_out=True)
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
            requests=given.requests,
            seeds=[given.seed + each for each in _COMPARED_SEEDS],
            deadline_ms=deadline_ms,
        )
    if json:
        print_json([_rounded(row, server.capacity) for row in rows])
    else:
        print_out(
            f"{server.task.description}: {len(_COMPARED_SEEDS)} runs of"
            f" {given.requests:,} requests, times in ms. The best heuristic can serve"
            f" {server.capacity:,.0f} requests/s."
        )
        for process in server.arrivals:
            _print_rate(rows, process.rate, server.capacity, deadline_ms)
    say(f"Costs are {server.costs}; a wave costs {given.overhead_us:g} µs more.")
    for process in server.arrivals:
        at_rate = [row for row in rows if row.rate == process.rate]
        others = at_rate[len(learned) :]
        for row in at_rate[: len(learned)]:
            say(outcome([row, *others]))


def outcome(rows: "list[ServingScore]") -> str:
    """Says at one rate how a learned policy stands to the best heuristics.

    Args:
        rows: Of the learned policy first, then of the heuristics.

    Returns:
        A sentence.
    """
    learned, *others = rows
    parts = []
    for what, name in (("mean", "mean_ms"), ("p99", "p99_ms")):
        best = min(others, key=lambda row: getattr(row, name))
        change = getattr(learned, name) / getattr(best, name) - 1
        way = "below" if change < 0 else "above"
        parts.append(f"{what} {abs(change):.1%} {way} that of {best.policy}")
    said = f"{learned.policy} has {' and '.join(parts)}"
    best = min(others, key=lambda row: row.late)
    if best.late or learned.late:
        said += f", {learned.late:.1%} late where {best.policy} has {best.late:.1%}"
    return f"At {learned.rate:,.0f} requests/s: {said}."


def _server(
    task_options: options.TaskOptions, given: ServingOptions, held_out: bool
) -> _Server:
    import numpy as np

    from edbatch.cli.minibatches import record, split
    from edbatch.cli.task import load_task
    from edbatch.policies import load_costs
    from edbatch.policies.serving import (
        affine_costs,
        batch_costs,
        capacity,
        serving_heuristics,
    )
    from edbatch.schedule.serving import Arrivals, InstanceLibrary, ServingConfig

    wanted = parse_rates(given.rates)
    measured = None if given.costs is None else load_costs(given.costs)
    task = load_task(task_options, given.seed, _SAMPLES)
    rng = np.random.default_rng(given.seed)
    to_train, _, kept = split(len(task.instances), rng)
    used = (kept if held_out else to_train)[:_SAMPLES]
    (structures,) = record(task, _one_by_one(used))
    library = InstanceLibrary.of(structures)
    if measured is None:
        table = affine_costs(library.num_types, max_rows=given.max_rows)
        source = "not measured (50 µs per batch and 2 µs per row), see --costs"
    else:
        table = batch_costs(measured, library.type_keys, given.max_rows)
        source = f"those of {given.costs}"
    config = ServingConfig(table, given.overhead_us / 1000)
    heuristics = serving_heuristics(library)
    with stage("Measuring what heuristics can serve (Numba may compile for a minute)"):
        most = max(capacity(each, library, config) for each in heuristics)
    rates = [number * most if is_share else number for number, is_share in wanted]
    arrivals = [Arrivals(rate, given.burst) for rate in rates]
    return _Server(task, library, config, heuristics, arrivals, most, source)


def _one_by_one(indices: "np.ndarray") -> "list[np.ndarray]":
    return [indices[k : k + 1] for k in range(len(indices))]


def parse_rates(text: str) -> list[tuple[float, bool]]:
    """Reads rates.

    Args:
        text: Numbers with commas between them, some perhaps with a percent sign.

    Returns:
        Each number, of percents the share, and whether it is a share.

    Raises:
        CommandError: It is something else.

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
        if not 0 < number < 1e9:
            raise CommandError(
                "--rate takes requests per second above 0, or percents of what the best"
                f" heuristic can serve, with commas between them, but has {word!r};"
                " write for example 30%,50%,70%,90%"
            )
        is_share = word.endswith("%")
        found.append((number / 100 if is_share else number, is_share))
    return found


def _rounded(row: "ServingScore", capacity: float) -> dict[str, Any]:
    values = {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in asdict(row).items()
    }
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
                round(row.goodput),
                round(100 * row.late, 1),
                round(row.rows_per_batch),
                round(row.batches_per_wave),
            )
            for row in shown_rows([each for each in rows if each.rate == rate])
        ],
        f"{rate:,.0f} requests/s, {rate / capacity:.0%} of that; goodput: answers/s"
        f" within {deadline_ms:g} ms",
    )


def shown_rows(rows: "list[ServingScore]") -> "list[ServingScore]":
    """Keeps of each heuristic the length of waves with the smallest 99th percentile."""
    best: dict[str, ServingScore] = {}
    for row in rows:
        name = row.policy.partition(",")[0]
        if name not in best or row.p99_ms < best[name].p99_ms:
            best[name] = row
    return [*best.values()]


def _brief(number: float) -> float | int:
    return number if number < 100 else round(number)


def refuse(command: str, **given: object) -> None:
    """Refuses options that belong to minibatches.

    Raises:
        CommandError: One is given.
    """
    for name, value in given.items():
        if value:
            raise CommandError(
                f"--{name.replace('_', '-')} belongs to minibatches but --serving was"
                f" given as well; leave one out of {command}"
            )
