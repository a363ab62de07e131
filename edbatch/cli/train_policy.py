"""`edbatch train-policy`, also installed as `train-policy`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edbatch.cli import options, serving_options, training_options
from edbatch.cli.console import print_json, say, stage
from edbatch.cli.one_sentence import CommandError
from edbatch.cli.train_serving import train_serving
from edbatch.ctrl_c import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from edbatch.policies import TrainingRecord

OTHER_SIZES = (8, 32, 128)
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
    encoding: training_options.Encoding = "fall",
    batch_size: options.BatchSize = 64,
    minibatches: Annotated[
        int,
        typer.Option(
            metavar="M",
            min=1,
            help="How many to train on; as many to validate on, and to report on.",
        ),
    ] = 16,
    trials: training_options.Trials = 1000,
    n_step: training_options.NStep = 4,
    alpha: training_options.Alpha = 0.5,
    learning_rate: training_options.LearningRate = 0.05,
    epsilon: training_options.Epsilon = 0.3,
    generations: training_options.Generations = None,
    patience: training_options.Patience = 15,
    seed: options.Seed = 0,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            metavar="",
            help=(
                "Go on with a training that was interrupted: give the same options, and"
                " the same --out, beside which its checkpoint is."
            ),
        ),
    ] = False,
    costs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=(
                "Learn to run batches of little cost, not few of them, by the costs"
                " that edbatch calibrate measured."
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
    rate: serving_options.Rates = serving_options.DEFAULT_RATES,
    objective: serving_options.Objective = "p99",
    method: serving_options.Method = "cross-entropy",
    burst: serving_options.Burst = 1.0,
    overhead_us: serving_options.Overhead = 200.0,
    requests: serving_options.Requests = 1000,
    max_rows: serving_options.MaxRows = 256,
    population: serving_options.Population = 48,
    episodes: serving_options.Episodes = None,
    metrics: training_options.Metrics = None,
    tensorboard: training_options.TensorBoard = None,
    json: options.Json = False,
) -> None:
    """Learn in which order to run the operations of a model.

    A policy decides which operations of a minibatch run together. It is trained on
    minibatches drawn from three fifths of your data, judged on the way by a fifth, and
    compared with the heuristics on the last fifth, also at sizes that it was not
    trained on; the seed draws. Fewer batches are better; no policy can have fewer than
    the lower bound. Where greedy already meets it on every minibatch nothing is
    trained: the file then says to follow greedy, as eb.batch does without it.

    Ctrl-C ends the training early: the best policy so far is compared and written, and
    the exit code is 130. With --out a checkpoint stands beside the policy until
    training has ended; --resume goes on from there to the very same policy.

    Beside --out the held-out batches of each evaluation stand in a CSV file, by trial;
    --metrics names another, --tensorboard a folder for TensorBoard.

    With --serving the policy is for a server: it decides between batches which
    operations run, whether to wait, and when to look for new requests. It is trained
    in simulation, at the rates of --rate, with the costs of --costs, and compared by
    edbatch compare --serving.

    Example: train-policy --workload tree-lstm --data trees.ptb --out tree.json
    """
    import numpy as np

    from edbatch.cli.minibatches import draw, record, split
    from edbatch.cli.output_file import check_writable
    from edbatch.cli.policy_training import LogFiles, train
    from edbatch.cli.rows import as_rows, comparisons, print_rows, where_beaten
    from edbatch.cli.task import load_task
    from edbatch.policies import load_costs
    from edbatch.policies.fsm.settings import Settings
    from edbatch.schedule.interrupt import deferred_interrupt

    task_options = options.TaskOptions(
        workload, data, arity, classify, model, instances, params
    )
    check_writable("--out", out)
    logs = LogFiles.of(out, metrics, tensorboard, resume=resume)
    if serving_:
        serving_options.refuse("train-policy", resume=resume, train_anyway=train_anyway)
        given = serving_options.ServingOptions(
            rate, burst, overhead_us, requests, max_rows, costs, seed
        )
        how = serving_options.ServingTraining(
            objective, method, generations, population, episodes
        )
        train_serving(task_options, given, how, out, logs, json)
        return
    settings = Settings(
        encoding=encoding,
        trials=trials,
        seed=seed,
        n_step=n_step,
        alpha=alpha,
        learning_rate=learning_rate,
        epsilon=epsilon,
        generations=12 if generations is None else generations,
        patience=patience,
    )
    settings.check_ranges()
    measured = None if costs is None else load_costs(costs)
    if resume and out is None:
        raise CommandError(
            "--resume goes on from the checkpoint beside --out but --out is missing;"
            " name the file that the interrupted training was to write"
        )
    checkpoint = None if out is None else out.with_name(f"{out.name}.checkpoint")
    samples = max(_LEAST_SAMPLES, 2 * batch_size * minibatches)
    task = load_task(task_options, seed, samples)
    rng = np.random.default_rng(seed)
    to_train, to_judge, held_out = split(len(task.instances), rng)
    groups = [
        draw(indices, batch_size, minibatches, rng)
        for indices in (to_train, to_judge, held_out)
    ]
    others = [size for size in OTHER_SIZES if size != batch_size]
    groups += [draw(held_out, size, minibatches, rng) for size in others]
    graphs, judged, reported, *elsewhere = record(task, *groups)
    # Ctrl-C ends the training; another one waits until the policy is saved.
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
            anyway=train_anyway,
        )
        training = policy.training
        assert training is not None, "train_policy keeps a record"
        if out is not None and checkpoint is not None:
            policy.save(out)
            if training.stopped != "interrupted":
                checkpoint.unlink(missing_ok=True)
    with stage("Comparing with the heuristics"):
        groups_by_size = dict(
            zip((batch_size, *others), (reported, *elsewhere), strict=True)
        )
        table = {
            size: comparisons(policy, structures)
            for size, structures in groups_by_size.items()
        }
    rows = [row for size, found in table.items() for row in as_rows(found, size)]
    if json:
        summary = {
            "out": None if out is None else str(out),
            "states": len(policy.states),
            "rows": rows,
            "training": training.to_json(),
        }
        print_json(summary)
    else:
        shown = [row for row in rows if row["batch_size"] == batch_size]
        title = (
            f"{task.description}: batches per minibatch of {batch_size},"
            f" mean of {len(reported)} held out"
        )
        print_rows(shown, title)
        shown = [row for row in rows if row["batch_size"] != batch_size]
        print_rows(shown, "The same policy at sizes that it was not trained on")
    say(describe_outcome(training, len(policy.states)))
    for size, found in table.items():
        if beaten := where_beaten(found, size):
            say(beaten)
        if training.stopped == "greedy" and found[-1].worst_ratio > 1:
            say(
                f"At {size:,} instances per minibatch, which it was not asked about,"
                f" greedy runs {found[-1].mean_ratio:.3f} times the bound; with that"
                " --batch-size a policy is trained."
            )
    if out is None:
        say("The policy was not saved; --out FILE saves it.")
    else:
        say(f"The policy is in {out}.")
    logs.say()
    if training.stopped == "interrupted":
        if checkpoint is not None:
            say("The same command with --resume goes on with the training.")
        raise typer.Exit(EXIT_INTERRUPTED)


def describe_outcome(record: "TrainingRecord", states: int) -> str:
    """Says in a sentence how training ended."""
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
        how += "did not meet the greedy heuristic, so the policy follows that"
    trials = "1 trial" if record.trials == 1 else f"{record.trials:,} trials"
    if record.trials == 0 and record.stopped == "lower bound":
        trials = "no trial was needed"
    return f"Training {how}: {trials}, {record.elapsed_s:.1f} s, {states:,} states."
