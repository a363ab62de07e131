"""`edbatch calibrate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edbatch.cli import options
from edbatch.cli.console import print_json, print_table, progress_bar, say
from edbatch.cli.one_sentence import CommandError

if TYPE_CHECKING:
    from edbatch.benchmark import Calibration
    from edbatch.cli.task import Task

_SHOWN = 4  # number of widths in the table; the file has all of them


@options.spread
def calibrate(
    task_options: options.TaskOptions,
    hidden: options.Hidden = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the costs to this .json file, for edbatch.policies.load_costs.",
        ),
    ] = None,
    batch_size: options.BatchSize = 64,
    minibatches: Annotated[
        int,
        typer.Option(
            metavar="M",
            min=1,
            help="How many to measure on; as many again to check the costs by.",
        ),
    ] = 4,
    rounds: Annotated[
        int, typer.Option(metavar="R", min=1, help="How often to time everything.")
    ] = 7,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Measure the cost of a model's operations as a function of batch size.

    Fewer batches are faster only if all batches cost the same. This command times each
    type of operation in chunks of each width, inside the compiled program on this
    machine. 'fixed' is the cost of one more batch; the rest of the cost is per node and
    does not depend on the schedule. Predicted and measured times of other minibatches
    show how accurate the costs are. Keep the machine otherwise idle.

    Example: edbatch calibrate --workload lattice-lstm --hidden 128 --out costs.json
    """
    from edbatch.benchmark.minibatches import with_arrays
    from edbatch.cli.output_file import check_distinct, check_writable
    from edbatch.cli.task import load_task

    check_writable("--out", out)
    check_distinct({"--out": out}, {"--data": task_options.data})
    task_options.check_hidden(hidden)
    task = load_task(task_options, seed, 2 * batch_size * minibatches)
    hidden = None if task_options.model is not None else hidden or 128
    if hidden is None:
        values = with_arrays(task.params, seed)
    else:
        values = _ready_params(task_options, hidden, seed)
    found = _measure(task, values, hidden, batch_size, minibatches, rounds, seed)
    if out is not None:
        found.costs.save(out)
    if json:
        print_json(to_json(found, out))
    else:
        _print(found)
    if out is None:
        say("The costs were not saved; --out FILE saves them.")
    else:
        say(f"The costs are in {out}.")


def _ready_params(task_options: options.TaskOptions, hidden: int, seed: int) -> Any:
    from edbatch.benchmark.minibatches import random_params
    from edbatch.cli.task import find_workload

    name = task_options.workload
    assert name is not None, "a task without a model has a workload"
    ready = find_workload(
        name, arity=task_options.arity, classify=task_options.classify
    )
    return random_params(ready, hidden, seed)


def _measure(
    task: "Task",
    params: Any,
    hidden: int | None,
    batch_size: int,
    minibatches: int,
    rounds: int,
    seed: int,
) -> "Calibration":
    import numpy as np

    from edbatch.benchmark import calibrate as measure
    from edbatch.cli import user_code
    from edbatch.cli.minibatches import draw, refusing_values, say_if_repeated

    rng = np.random.default_rng(seed)
    count = len(task.instances)
    if count < 2:
        raise CommandError(
            "a calibration needs 2 instances or more, one of them to check the costs"
            f" by, but there is {count}; give more data"
        )
    say_if_repeated(batch_size, count // 2)
    order = rng.permutation(count)
    seen, unseen = (
        [
            [task.instances[int(k)] for k in batch]
            for batch in draw(half, batch_size, minibatches, rng)
        ]
        for half in (order[: count // 2], order[count // 2 :])
    )
    with progress_bar() as bar, user_code.running("the model"):
        shown = bar.add_task("Recording and compiling", total=None)

        def progress(done: int, total: int, what: str) -> None:
            bar.update(shown, completed=done, total=total, description=what)

        with task.params_hint(), refusing_values():
            return measure(
                task.model,
                params,
                seen,
                unseen,
                rounds=rounds,
                workload=task.description,
                hidden=hidden,
                progress=progress,
            )


def to_json(found: "Calibration", out: Path | None) -> dict[str, Any]:
    """Converts costs and predictions to JSON values."""
    from dataclasses import asdict

    costs = found.costs
    fits = [costs.affine_us(key) for key in costs.types]
    weights = costs.batch_overhead(costs.types)
    rows = zip(
        costs.types,
        costs.batches,
        fits,
        weights,
        costs.measured_widths,
        costs.chunk_us,
        strict=True,
    )
    return {
        "out": None if out is None else str(out),
        "widths": list(costs.widths),
        "switch_us": costs.switch_us,
        "call_us": costs.call_us,
        "types": [
            {
                "type": str(key),
                "batches": batches,
                "fixed_us": round(fixed_us, 4),
                "node_us": round(node_us, 4),
                "overhead": round(float(weight), 4),
                "measured_widths": measured,
                "chunk_us": list(chunk_us),
            }
            for key, batches, (fixed_us, node_us), weight, measured, chunk_us in rows
        ],
        "predictions": [asdict(each) for each in found.predictions],
        "record": None if costs.record is None else asdict(costs.record),
    }


def _print(found: "Calibration") -> None:
    costs, record = found.costs, found.costs.record
    assert record is not None, "calibrate keeps a record"
    size = "" if record.hidden is None else f", hidden {record.hidden}"
    shown = costs.widths[:: max(1, -(-len(costs.widths) // _SHOWN))]
    columns = [costs.widths.index(width) for width in shown]
    print_table(
        (
            "type",
            "batches",
            "fixed",
            "per node",
            *(f"{width} rows" for width in shown),
        ),
        [
            (
                str(key),
                round(batches, 1),
                *costs.affine_us(key),
                *(chunk_us[k] if k < measured else None for k in columns),
            )
            for key, batches, measured, chunk_us in zip(
                costs.types,
                costs.batches,
                costs.measured_widths,
                costs.chunk_us,
                strict=True,
            )
        ],
        f"{record.workload}{size}: microseconds on this {record.device}, of a batch"
        " (fixed part, and per node) and of chunks; a dash: a width without use here",
    )
    print_table(
        ("policy", "batches", "predicted ms", "measured ms", "error %"),
        [
            (
                each.policy,
                each.batches,
                each.predicted_ms,
                each.measured_ms,
                round(each.error_percent, 1),
            )
            for each in found.predictions
        ],
        f"{record.minibatches} other minibatches of {record.batch_size}; of each,"
        f" {costs.call_us / 1e3:.2f} ms are not spent on batches",
    )
