"""`edbatch train-policy`, also installed as `train-policy`."""

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edbatch.cli import options, serving_options
from edbatch.cli.console import print_json, say, stage
from edbatch.cli.one_sentence import CommandError
from edbatch.cli.train_serving import train_serving
from edbatch.cli.training_options import LogOptions, TrainingOptions
from edbatch.ctrl_c import EXIT_INTERRUPTED
from edbatch.errors import EdbatchError

if TYPE_CHECKING:
    from edbatch.cli.task import Task
    from edbatch.graph import GraphStructure
    from edbatch.policies import CostModel, StateMachine, TrainingRecord
    from edbatch.policies.fsm.settings import Settings

    BySize = dict[int, list[GraphStructure]]

OTHER_SIZES = (8, 32, 128)
_OF_MINIBATCHES = (
    "batch_size",
    "minibatches",
    "resume",
    "train_anyway",
    *(each.name for each in fields(TrainingOptions) if each.name != "generations"),
)


@options.spread
def train_policy(
    *,
    context: typer.Context,
    task_options: options.TaskOptions,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the policy to this .json file, for eb.batch(model, FILE).",
        ),
    ] = None,
    training: TrainingOptions,
    batch_size: options.BatchSize = 64,
    minibatches: Annotated[
        int,
        typer.Option(
            metavar="M",
            min=1,
            help="How many to train on; as many to validate on, and to report on.",
        ),
    ] = 16,
    seed: options.Seed = 0,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            metavar="",
            help=(
                "Continue an interrupted training: give the same options, and the same"
                " --out, next to which its checkpoint is."
            ),
        ),
    ] = False,
    costs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=(
                "Minimize the cost of the batches instead of their number, with the"
                " costs that edbatch calibrate measured."
            ),
        ),
    ] = None,
    train_anyway: Annotated[
        bool,
        typer.Option(
            "--train-anyway",
            metavar="",
            help=(
                "Train even where the greedy heuristic, which eb.batch follows without"
                " a policy, already meets the lower bound on every minibatch."
            ),
        ),
    ] = False,
    serving_: serving_options.Serving = False,
    simulation: serving_options.ServingOptions,
    of_serving: serving_options.ServingTraining,
    log: LogOptions,
    json: options.Json = False,
) -> None:
    """Learn in which order to run the operations of a model.

    A policy decides which operations of a minibatch run together. It is trained on
    minibatches drawn from three fifths of your data, evaluated during training on one
    fifth, and compared with the heuristics on the last fifth, also at batch sizes that
    it was not trained on. The seed determines the minibatches. Fewer batches are
    better; no policy can have fewer than the lower bound. If greedy already meets the
    bound on every minibatch, nothing is trained: the policy file then selects greedy,
    which is also the default of eb.batch.

    Ctrl-C or SIGTERM ends the training early: the best policy so far is compared and
    written, and the exit code is 130. With --out a checkpoint is kept next to the
    policy until training ends; --resume continues from it and reaches exactly the same
    policy.

    With --out, the held-out batches of each evaluation are written to a CSV file next
    to it, by trial; --metrics names another file, --tensorboard a folder for
    TensorBoard.

    With --serving the policy is for a server: between batches it decides which
    operations run, whether to wait, and when to check for new requests. It is trained
    in simulation, at the rates of --rate, with the costs of --costs, and compared by
    edbatch compare --serving. There is no checkpoint, and no --resume.

    Example: train-policy --workload tree-lstm --data trees.ptb --out tree.json
    """
    from edbatch.cli.only_writer import only_writer
    from edbatch.cli.output_file import check_distinct, check_writable
    from edbatch.cli.policy_training import LogFiles, make_ready, train
    from edbatch.cli.task import load_task
    from edbatch.policies import load_costs
    from edbatch.schedule.interrupt import deferred_interrupt

    serving_options.check_given(context, serving_, _OF_MINIBATCHES)
    check_writable("--out", out)
    logs = LogFiles.of(out, log.metrics, log.tensorboard, resume=resume)
    checkpoint = None if serving_ else _checkpoint_of(out)
    check_distinct(
        {"--out": out, "--metrics": logs.csv, "the checkpoint of --out": checkpoint},
        {"--data": task_options.data, "--costs": costs},
    )
    context.with_resource(only_writer("--out", out))
    context.with_resource(only_writer("--metrics", log.metrics))
    if serving_:
        train_serving(
            task_options,
            simulation,
            of_serving,
            costs,
            seed,
            generations=training.generations,
            out=out,
            logs=logs,
            json=json,
        )
        return
    settings = training.settings(seed)
    measured = None if costs is None else load_costs(costs)
    checkpoint = _checkpoint(out, resume, settings, measured)
    from edbatch.cli.minibatches import samples_to_divide

    samples = samples_to_divide(batch_size * minibatches)
    task = load_task(task_options, seed, samples)
    graphs, judged, reported = _record(task, batch_size, minibatches, seed)
    anyway = train_anyway or resume
    is_needed = make_ready([*graphs, *judged], settings, anyway=anyway)
    # Ctrl-C ends the training; a second one is deferred until the policy is saved.
    with deferred_interrupt():
        policy = train(
            graphs,
            judged,
            settings,
            logs,
            workload=task.description,
            checkpoint=checkpoint,
            resume=resume,
            costs=measured,
            is_needed=is_needed,
        )
        record = policy.training
        assert record is not None, "train_policy keeps a record"
        if out is not None:
            try:
                policy.save(out)
            except EdbatchError as error:
                if checkpoint is None or not checkpoint.exists():
                    raise
                raise CommandError(
                    f"{error}, and rename {checkpoint} to its name with .checkpoint for"
                    " --resume, which goes on from what was found"
                ) from error
            if checkpoint is not None and record.stopped != "interrupted":
                checkpoint.unlink(missing_ok=True)
    _report(policy, record, reported, task.description, out, json=json)
    logs.say()
    if record.stopped == "interrupted":
        if checkpoint is not None:
            say("The same command with --resume goes on with the training.")
        raise typer.Exit(EXIT_INTERRUPTED)


def _checkpoint(
    out: Path | None, resume: bool, settings: "Settings", costs: "CostModel | None"
) -> Path | None:
    """Returns the checkpoint of the policy's file, after checking --resume."""
    from edbatch.policies.fsm.checkpoint import check_checkpoint

    found = _checkpoint_of(out)
    if out is None or found is None:
        if resume:
            raise CommandError(
                "--resume continues from the checkpoint next to --out but --out is"
                f" {'missing' if out is None else 'no file'}; name the file that the"
                " interrupted training was to write"
            )
        return None
    if resume and not found.exists():
        raise CommandError(
            f"--resume goes on from {found}, which an interrupted training leaves, but"
            " there is no such file"
            + (f"; {out} is there, so that training has ended" if out.exists() else "")
            + "; start it without --resume"
        )
    if resume:
        check_checkpoint(found, settings.as_json(), costs)
    elif found.exists():
        say(
            f"Note: the training starts from the beginning and will replace {found},"
            " left by an interrupted one; with --resume it would continue from there."
        )
    return found


def _checkpoint_of(out: Path | None) -> Path | None:
    """Returns the checkpoint's path next to the policy; None for devices and pipes."""
    if out is None or (out.exists() and not out.is_file()):
        return None
    return out.with_name(f"{out.name}.checkpoint")


def _record(
    task: "Task", batch_size: int, minibatches: int, seed: int
) -> "tuple[list[GraphStructure], list[GraphStructure], BySize]":
    """Records minibatches to train on, to validate on, and held-out ones by size."""
    import numpy as np

    from edbatch.cli.minibatches import draw, record, say_if_repeated, split

    rng = np.random.default_rng(seed)
    to_train, to_judge, held_out = parts = split(len(task.instances), rng)
    say_if_repeated(batch_size, *map(len, parts))
    groups = [
        draw(indices, batch_size, minibatches, rng)
        for indices in (to_train, to_judge, held_out)
    ]
    others = [size for size in OTHER_SIZES if size != batch_size]
    groups += [draw(held_out, size, minibatches, rng) for size in others]
    graphs, judged, *reported = record(task, *groups)
    return graphs, judged, dict(zip((batch_size, *others), reported, strict=True))


def _report(
    policy: "StateMachine",
    record: "TrainingRecord",
    reported: "BySize",
    description: str,
    out: Path | None,
    *,
    json: bool,
) -> None:
    """Compares the policy with the heuristics, and reports how training ended."""
    from edbatch.cli.rows import as_rows, comparisons, print_rows, where_beaten

    with stage("Comparing with the heuristics"):
        table = {size: comparisons(policy, some) for size, some in reported.items()}
    own, *elsewhere = [as_rows(found, size) for size, found in table.items()]
    others = [row for rows in elsewhere for row in rows]
    if json:
        summary = {
            "out": None if out is None else str(out),
            "states": len(policy.states),
            "rows": own + others,
            "training": record.to_json(),
        }
        print_json(summary)
    else:
        size, held_out = next(iter(reported.items()))
        title = (
            f"{description}: batches per minibatch of {size}, mean of"
            f" {len(held_out)} held out"
        )
        print_rows(own, title)
        print_rows(others, "The same policy at sizes that it was not trained on")
    say(describe_outcome(record, len(policy.states)))
    for size, found in table.items():
        if beaten := where_beaten(found, size):
            say(beaten)
        if record.stopped == "greedy" and found[-1].worst_ratio > 1:
            say(
                f"At {size:,} instances per minibatch, a size that was not checked,"
                f" greedy runs {found[-1].mean_ratio:.3f} times the bound; with that"
                " --batch-size a policy is trained."
            )
    if out is None:
        say("The policy was not saved; --out FILE saves it.")
    else:
        say(f"The policy is in {out}.")


def describe_outcome(record: "TrainingRecord", states: int) -> str:
    """Describes in a sentence how training ended."""
    if record.stopped == "greedy":
        return (
            "greedy already meets the bound on every minibatch: you need no policy."
            " eb.batch follows greedy by default, and so does this policy."
        )
    how = {
        "lower bound": "met the lower bound on every minibatch that it was judged by",
        "trials": "used all trials without meeting every lower bound",
        "patience": "ended as nothing better was found for a while",
        "interrupted": "was interrupted; this is the best policy so far",
    }[record.stopped]
    if record.worse_than_greedy:
        how = {"interrupted": "was interrupted and "}.get(record.stopped, "")
        how += (
            "found nothing as good as the greedy heuristic, so the policy follows"
            " greedy"
        )
    trials = "1 trial" if record.trials == 1 else f"{record.trials:,} trials"
    if record.trials == 0 and record.stopped == "lower bound":
        trials = "no trial was needed"
    return f"Training {how}: {trials}, {record.elapsed_s:.1f} s, {states:,} states."
