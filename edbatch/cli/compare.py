"""`edbatch compare`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edbatch.cli import options, serving_options
from edbatch.cli.compare_serving import compare_for_serving
from edbatch.cli.console import print_json, say, stage

if TYPE_CHECKING:
    from edbatch.cli.minibatches import Drawn
    from edbatch.cli.task import Task
    from edbatch.policies import Comparison
    from edbatch.schedule import Policy


_OF_MINIBATCHES = (
    "batch_size",
    "minibatches",
    "search_ms",
    "held_out",
    "exact",
    "memory",
    "hidden",
    "plot",
)


@options.spread
def compare(
    *,
    context: typer.Context,
    task_options: options.TaskOptions,
    policy: Annotated[
        str,
        typer.Option(
            metavar="POLICY",
            help=(
                "The policy to compare, the 'learned' rows: a file of train-policy, or"
                " zoo:NAME for the ready-made policy of a workload. A heuristic is"
                " accepted, too, and shown in these rows."
            ),
        ),
    ],
    batch_size: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N",
            min=1,
            help=(
                "Instances per minibatch, 64 by default; may be given several times, to"
                " see how the policy does at sizes that it was not trained on."
            ),
        ),
    ] = None,
    minibatches: options.Minibatches = 16,
    search_ms: Annotated[
        float,
        typer.Option(
            metavar="MS",
            min=0,
            help="Time for the search of the 'searched' row; 0 leaves the row out.",
        ),
    ] = 20.0,
    held_out: Annotated[
        bool,
        typer.Option(
            "--held-out",
            metavar="",
            help=(
                "Draw only from the fifth of the data that train-policy did not use"
                " with the same data and seed."
            ),
        ),
    ] = False,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            metavar="",
            help=(
                "Also find out how few batches are possible, by exact search over parts"
                " of the minibatch; takes seconds for each."
            ),
        ),
    ] = False,
    memory: Annotated[
        bool,
        typer.Option(
            "--memory",
            metavar="",
            help=(
                "Show what the minibatches cost in memory instead: bytes that batches"
                " read in place and that they gather, padding, arenas, before and after"
                " the layout is aligned."
            ),
        ),
    ] = False,
    hidden: Annotated[
        int,
        typer.Option(
            metavar="H", min=1, help="Length of a ready model's states, for --memory."
        ),
    ] = 128,
    plot: Annotated[
        Path | None,
        options.picture("the comparison"),
    ] = None,
    serving_: serving_options.Serving = False,
    simulation: serving_options.ServingOptions,
    costs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What batches cost, measured by edbatch calibrate.",
            rich_help_panel="Serving",
        ),
    ] = None,
    deadline_ms: serving_options.Deadline = 50.0,
    beside: serving_options.Beside = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Compare a trained policy with the heuristics of the field.

    All policies schedule the same minibatches, drawn with the seed. The table shows
    means: batches per minibatch (fewer are better), the lower bound (no policy has
    fewer), the mean and worst ratio of the two, how often the policy met a state that
    training never saw, and the time to find a schedule.

    The row 'learned' is what eb.batch runs: the policy with its guard, which takes the
    schedule of a heuristic where that has fewer batches; 'learned alone' is the policy
    itself. 'searched' adds a search, as eb.batch does with search=. Only batches are
    counted; the model does not run. To measure their time as well, use edbatch bench
    --policies.

    --exact adds a proven lower bound that is closer to the fewest possible batches, the
    mean ratio to it, and the number of minibatches on which the policy is proven
    optimal. --memory shows a row per policy and layout, for the model at --hidden.

    --serving compares a policy of train-policy --serving on requests that arrive over
    time, by the time from arrival to answer (mean and percentiles) and by goodput. The
    others are the heuristics in waves of 1, 8 and 32 batches between two checks for new
    requests (the table has the best of them), cells in order of arrival (the idea of
    BatchMaker), and whole requests, run at once or in windows of 2, 5 and 10 ms.
    Instances and arrival times are ones that training with the same seed did not see.

    Example: edbatch compare --workload tree-lstm --data trees.ptb --policy tree.json
    """
    from edbatch.cli.one_sentence import CommandError
    from edbatch.cli.task import load_task
    from edbatch.policies import get_policy

    serving_options.check_given(context, serving_, _OF_MINIBATCHES)
    if serving_:
        compare_for_serving(
            task_options,
            simulation,
            costs,
            seed,
            policy=policy,
            beside=beside,
            deadline_ms=deadline_ms,
            json=json,
        )
        return
    if memory:
        for option in serving_options.given_options(context):
            if option.name in ("plot", "exact", "search_ms"):
                raise CommandError(
                    f"{option.opts[0]} belongs to the comparison of batches but"
                    " --memory was given as well; leave one out of compare"
                )
    if plot is not None:
        from edbatch.cli.output_file import check_distinct, check_writable
        from edbatch.cli.pictures import check_suffix

        check_suffix(plot)
        check_writable("--plot", plot)
        read = {"--data": task_options.data, "--policy": policy}
        check_distinct({"--plot": plot}, read)
    learned = get_policy(policy)
    if held_out and task_options.model is None and not task_options.data:
        raise CommandError(
            "--held-out divides the data as train-policy did but no data are given, and"
            " the sampled instances are not the ones of the training; add --data, or"
            " leave --held-out out and sample others with another --seed"
        )
    sizes = [*dict.fromkeys(batch_size or [64])]
    count = max(sizes) * minibatches
    if held_out and not task_options.data:
        count = _samples_of_training(learned)
    task = load_task(task_options, seed, count, hidden if memory else 2)
    drawn = _draw(task, sizes, minibatches, seed, held_out)
    title = (
        f"{task.description}: means of {minibatches} minibatches of"
        f" {', '.join(map(str, sizes))}"
    )
    if memory:
        _compare_memory(task, learned, drawn, title, json)
        return
    table, rows = _compare_batches(task, learned, drawn, search_ms, exact)
    _show(table, rows, title, plot, json)


def _samples_of_training(policy: "Policy") -> int:
    """Returns how many instances the training of a policy requested.

    The division of the instances depends on this number.

    Raises:
        CommandError: The policy has no training record.
    """
    from edbatch.cli.minibatches import samples_to_divide
    from edbatch.cli.one_sentence import CommandError

    record = getattr(policy, "training", None)
    if record is None:
        raise CommandError(
            "--held-out divides the instances as the training of the policy did but"
            f" {policy.name!r} has no record of one; leave --held-out out and sample"
            " others with another --seed"
        )
    return samples_to_divide(round(record.batch_size * record.minibatches))


def _draw(
    task: "Task", sizes: list[int], minibatches: int, seed: int, held_out: bool
) -> "dict[int, Drawn]":
    """Draws the minibatches of each size, with --held-out from held-out instances."""
    import numpy as np

    from edbatch.cli.minibatches import draw, say_if_repeated, split

    rng = np.random.default_rng(seed)
    drawn_from = np.arange(len(task.instances))
    if held_out:
        _, _, drawn_from = split(len(task.instances), rng)
    say_if_repeated(max(sizes), len(drawn_from))
    return {size: draw(drawn_from, size, minibatches, rng) for size in sizes}


def _show(
    table: "dict[int, list[Comparison]]",
    rows: list[dict[str, Any]],
    title: str,
    plot: Path | None,
    json: bool,
) -> None:
    from edbatch.cli.rows import print_rows, where_beaten

    if plot is not None:
        from edbatch.cli.pictures import draw_comparison

        draw_comparison(table, plot, title)
    if json:
        print_json(rows)
    else:
        print_rows(rows, title)
    for size, found in table.items():
        if beaten := where_beaten(found, size):
            say(beaten)
    if plot is not None:
        say(f"The picture is in {plot}.")


def _compare_batches(
    task: "Task",
    learned: "Policy",
    drawn: "dict[int, Drawn]",
    search_ms: float,
    exact: bool,
) -> "tuple[dict[int, list[Comparison]], list[dict[str, Any]]]":
    """Returns the comparisons by minibatch size, and the rows to show."""
    from edbatch.cli.minibatches import record
    from edbatch.cli.rows import add_optima, as_rows, comparisons

    rows: list[dict[str, Any]] = []
    table: dict[int, list[Comparison]] = {}
    groups = record(task, *drawn.values())
    for size, structures in zip(drawn, groups, strict=True):
        with stage(f"Scheduling minibatches of {size}"):
            table[size] = comparisons(learned, structures, search_ms)
        added = as_rows(table[size], size)
        if exact:
            with stage(f"Looking for the optimum of minibatches of {size}"):
                add_optima(added, learned, structures, table[size])
        rows += added
    return table, rows


def _compare_memory(
    task: "Task", learned: "Policy", drawn: "dict[int, Drawn]", title: str, json: bool
) -> None:
    from edbatch.cli.memory_rows import memory_rows, print_memory_rows
    from edbatch.cli.minibatches import record_graphs
    from edbatch.policies import Agenda, Depth, guarded

    policies = {"learned": guarded(learned), "agenda": Agenda(), "depth": Depth()}
    rows = []
    groups = record_graphs(task, *drawn.values())
    for size, graphs in zip(drawn, groups, strict=True):
        with stage(f"Laying out minibatches of {size}"):
            rows += memory_rows(policies, graphs, size)
    if json:
        print_json(rows)
    else:
        print_memory_rows(rows, title)
