"""`edbatch train-policy`, also installed as `train-policy`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edbatch.cli import options
from edbatch.cli.console import print_json, progress_bar, say, stage
from edbatch.cli.one_sentence import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from edbatch.graph import GraphStructure
    from edbatch.policies import StateMachine, TrainingRecord

_LEAST_SAMPLES = 500  # a fifth of fewer may be all alike


def train_policy(
    workload: options.Workload = None,
    data: options.Data = None,
    arity: options.Arity = None,
    classify: options.Classify = None,
    model: options.Model = None,
    instances: options.Instances = None,
    params: options.Params = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the policy to this .json file, for eb.batch(model, FILE).",
        ),
    ] = None,
    encoding: Annotated[
        str,
        typer.Option(
            metavar="base|max|sort",
            help=(
                "What the policy sees of the operations that are ready: which types"
                " there are (base), also which is most frequent (max), or all of them"
                " by frequency (sort)."
            ),
        ),
    ] = "sort",
    batch_size: options.BatchSize = 64,
    minibatches: Annotated[
        int,
        typer.Option(
            metavar="M",
            min=1,
            help="How many to train on; as many again to judge by, and to report on.",
        ),
    ] = 16,
    trials: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="How many schedules to try at most; it ends early at the lower bound.",
        ),
    ] = 1000,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Learn in which order to run the operations of a model.

    A policy decides which operations of a minibatch run together. It is trained on
    minibatches drawn from your data, and compared with the heuristics on minibatches of
    instances that were held out: a fifth, chosen by the seed, never trained on. Fewer
    batches are better; no policy can have fewer than the lower bound.

    Ctrl-C ends the training early: the best policy so far is compared and written, and
    the exit code is 130.

    Example: train-policy --workload tree-lstm --data trees.ptb --out tree.json
    """
    import numpy as np

    from edbatch.cli.minibatches import draw, record, split
    from edbatch.cli.output_file import check_writable
    from edbatch.cli.rows import compare_rows, print_rows
    from edbatch.cli.task import load_task
    from edbatch.policies.encoding import encoding_id

    encoding_id(encoding)
    check_writable("--out", out)
    task_options = options.TaskOptions(
        workload, data, arity, classify, model, instances, params
    )
    samples = max(_LEAST_SAMPLES, 2 * batch_size * minibatches)
    task = load_task(task_options, seed, samples)
    rng = np.random.default_rng(seed)
    to_train, held_out = split(len(task.instances), rng)
    groups = [
        draw(indices, batch_size, minibatches, rng)
        for indices in (to_train, held_out, held_out)
    ]
    graphs, judged, reported = record(task, *groups)
    policy = _train(graphs, judged, encoding, trials, seed, task.description)
    if out is not None:
        policy.save(out)
    with stage("Comparing with the heuristics"):
        rows = compare_rows(policy, reported)
    training = policy.training
    assert training is not None, "train_policy keeps a record"
    if json:
        summary = {
            "out": None if out is None else str(out),
            "states": len(policy.states),
            "rows": rows,
            "training": training.to_json(),
        }
        print_json(summary)
    else:
        title = (
            f"{task.description}: batches per minibatch of {batch_size},"
            f" mean of {len(reported)} held out"
        )
        print_rows(rows, title)
    say(describe_outcome(training, len(policy.states)))
    if out is None:
        say("The policy was not saved; --out FILE saves it.")
    else:
        say(f"The policy is in {out}.")
    if training.stopped == "interrupted":
        raise typer.Exit(EXIT_INTERRUPTED)


def _train(
    graphs: "list[GraphStructure]",
    judged: "list[GraphStructure]",
    encoding: str,
    trials: int,
    seed: int,
    description: str,
) -> "StateMachine":
    from edbatch.policies import train_policy as train

    columns = "{task.fields[found]}"
    with progress_bar(columns) as bar:
        shown = bar.add_task("Training", total=trials, found="")

        def progress(trial: int, trials: int, batches: float, bound: float) -> None:
            found = f"{batches:.1f} batches, lower bound {bound:.1f}"
            bar.update(shown, completed=trial, found=found)

        return train(
            graphs,
            judged,
            encoding=encoding,
            trials=trials,
            seed=seed,
            workload=description,
            progress=progress,
        )


def describe_outcome(record: "TrainingRecord", states: int) -> str:
    """Says in a sentence how training ended.

    Args:
        record: The record of the training.
        states: Number of states of the policy.

    Returns:
        The sentence.
    """
    how = {
        "lower bound": "met the lower bound on every minibatch that it was judged by",
        "trials": "used all trials without meeting every lower bound",
        "interrupted": "was interrupted; this is the best policy so far",
    }[record.stopped]
    if record.worse_than_greedy:
        how = {"interrupted": "was interrupted and "}.get(record.stopped, "")
        how += "did not meet the greedy heuristic, so the policy follows that"
    trials = "1 trial" if record.trials == 1 else f"{record.trials:,} trials"
    return f"Training {how}: {trials}, {record.elapsed_s:.1f} s, {states:,} states."
